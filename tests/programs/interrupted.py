"""Stops training at Ctrl+C, and saves what it has."""

import os
import signal

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
        if steps == 25:
            print("step 25", flush=True)
            os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("saved")
print("steps", steps)
