"""A loop with one tf.function, metrics, and an evaluation after each epoch."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(1024, 20)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
train = tf.data.Dataset.from_tensor_slices((x[:800], y[:800])).shuffle(800).batch(32)
test = tf.data.Dataset.from_tensor_slices((x[800:], y[800:])).batch(16)
model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(1e-3)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = loss_fn(y, logits)
    gradients = tape.gradient(loss, model.trainable_weights)
    optimizer.apply_gradients(zip(gradients, model.trainable_weights))
    return loss


@tf.function
def test_step(x, y):
    accuracy.update_state(y, model(x, training=False))


steps = 0
for epoch in range(3):
    for x_batch, y_batch in train:
        loss = train_step(x_batch, y_batch)
        steps += 1
    accuracy.reset_state()
    for x_batch, y_batch in test:
        test_step(x_batch, y_batch)
    print(epoch, float(loss).hex(), float(accuracy.result()))
print("steps", steps)
