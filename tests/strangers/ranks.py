"""A Horovod training as its users write them, with what TAKE_HOME.md says to paste."""

import contextlib
import itertools

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

NUMBERS = itertools.count()  # of the steps, over all epochs


def profiled(dataset, first=20, last=29, logdir="logs"):
    """Hands on the batches; records some steps, each with the wait for its batch."""
    batches = iter(dataset)
    with contextlib.ExitStack() as window:  # however the loop ends, the profile is written
        for step in NUMBERS:
            if step == first:
                window.enter_context(tf.profiler.experimental.Profile(logdir))
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch  # your step runs here
            if step == last:
                window.close()


hvd.init()
rng = np.random.default_rng(hvd.rank())
x = rng.normal(size=(1024, 20)).astype("float32")
y = x.sum(axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(1024).batch(64)

weights = tf.Variable(tf.zeros((20, 1)))


@tf.function
def training_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, [weights])
    weights.assign_sub(0.1 * grads[0])
    return loss


hvd.broadcast_variables([weights], root_rank=0)
for x, y in profiled(dataset.take(40), first=20 if hvd.rank() == 0 else None):
    loss = training_step(x, y)
if hvd.rank() == 0:
    print(f"loss {float(loss):.4f}")
