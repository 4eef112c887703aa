"""Trains until Ctrl+C, and then saves what it has."""

import time

import numpy as np
import tensorflow as tf

weights = tf.Variable(tf.zeros((10, 1)))
x = np.ones((8, 10), "float32")


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - 1.0))
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss


steps = 0
try:
    while True:
        train_step(x)
        steps += 1
        print("step", steps, flush=True)
        time.sleep(0.2 if steps > 25 else 0)
except KeyboardInterrupt:
    print("saved")
print("steps", steps)
