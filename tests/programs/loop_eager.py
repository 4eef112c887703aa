"""A loop without any tf.function."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.normal(size=(1200, 20)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(24)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-2)
steps = 0
for x_batch, y_batch in dataset:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x_batch) - y_batch))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    steps += 1
print(float(loss).hex())
print("steps", steps)
