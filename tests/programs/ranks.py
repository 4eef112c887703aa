"""A Horovod training, each process with its own share of the data."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(hvd.rank())
x = rng.normal(size=(1024, 20)).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).repeat().batch(64)
weights = tf.Variable(tf.zeros((20, 1)))


@tf.function
def training_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    weights.assign_sub(0.1 * tape.gradient(loss, [weights])[0])
    return loss


hvd.broadcast_variables([weights], root_rank=0)
for x, y in dataset.take(40):
    loss = training_step(x, y)
if hvd.rank() == 0:
    print(float(loss).hex())
    print("steps", 40)
