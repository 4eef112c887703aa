"""MirroredStrategy on two devices, with a loop of the user's own."""

import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration(), tf.config.LogicalDeviceConfiguration()]
tf.config.set_logical_device_configuration(cpu, two)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
keras.utils.set_random_seed(1)
x = np.random.normal(size=(800, 20)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(16)
with strategy.scope():
    weights = tf.Variable(tf.zeros((20, 1)))


def replica_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ weights - y))
    gradient = tape.gradient(loss, weights)
    context = tf.distribute.get_replica_context()
    weights.assign_sub(0.1 * context.all_reduce(tf.distribute.ReduceOp.MEAN, gradient))
    return loss


@tf.function
def train_step(inputs):
    losses = strategy.run(replica_step, args=inputs)
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


steps = 0
for inputs in strategy.experimental_distribute_dataset(dataset):
    loss = train_step(inputs)
    steps += 1
print(round(float(loss), 6))
print("steps", steps)
