"""A custom training loop as its users write them, with what TAKE_HOME.md says to paste."""

import contextlib
import itertools

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


rng = np.random.default_rng(0)
x = rng.normal(size=(1024, 20)).astype("float32")
y = (x @ rng.normal(size=(20, 1)) + 0.1 * rng.normal(size=(1024, 1))).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(64)

model = tf.keras.Sequential(
    [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(1)]
)
optimizer = tf.keras.optimizers.Adam(1e-2)
loss_fn = tf.keras.losses.MeanSquaredError()


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=True))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


model.build((None, 20))
optimizer.build(model.trainable_variables)
for epoch in range(3):
    for x, y in profiled(dataset):
        loss = train_step(x, y)
    print(f"epoch {epoch}: loss {float(loss):.4f}")
