"""Two functions in each step: a discriminator's and a generator's."""

import keras
import tensorflow as tf

keras.utils.set_random_seed(1)
generator = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
discriminator = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
generator_optimizer = keras.optimizers.Adam(1e-3)
discriminator_optimizer = keras.optimizers.Adam(1e-3)
bce = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_discriminator(real, noise):
    with tf.GradientTape() as tape:
        on_real = discriminator(real)
        on_fake = discriminator(generator(noise))
        loss = bce(tf.ones_like(on_real), on_real) + bce(tf.zeros_like(on_fake), on_fake)
    gradients = tape.gradient(loss, discriminator.trainable_variables)
    discriminator_optimizer.apply_gradients(zip(gradients, discriminator.trainable_variables))
    return loss


@tf.function
def train_generator(noise):
    with tf.GradientTape() as tape:
        on_fake = discriminator(generator(noise))
        loss = bce(tf.ones_like(on_fake), on_fake)
    gradients = tape.gradient(loss, generator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients, generator.trainable_variables))
    return loss


for _step in range(45):
    real = tf.random.normal((32, 2))
    d_loss = train_discriminator(real, tf.random.normal((32, 8)))
    g_loss = train_generator(tf.random.normal((32, 8)))
print(float(d_loss).hex(), float(g_loss).hex())
print("steps", 45)
