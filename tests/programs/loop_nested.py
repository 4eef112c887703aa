"""A tf.function that calls another one; the variables are updated by hand."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
data = rng.normal(size=(60, 64, 10)).astype("float32")
weights = tf.Variable(tf.zeros((10, 1)))


@tf.function
def gradients_of(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    return loss, tape.gradient(loss, weights)


@tf.function
def train_step(x, y):
    loss, gradient = gradients_of(x, y)
    weights.assign_sub(0.1 * gradient)
    return loss


for x in data:
    loss = train_step(x, x.sum(axis=1, keepdims=True))
print(float(loss).hex())
print("steps", len(data))
