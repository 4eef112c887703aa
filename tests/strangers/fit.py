"""Keras's model.fit as its users write it, with what TAKE_HOME.md says to paste."""

import itertools

import keras
import numpy as np
import tensorflow as tf


class ProfileSteps(keras.callbacks.TensorBoard):
    """TensorBoard's callback with step markers that every tool understands."""

    numbers = itertools.count(1)  # as profile_batch counts: over all epochs

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)  # begins the recording
        step = next(self.numbers)
        self.marker = tf.profiler.experimental.Trace("train", step_num=step, _r=1)
        self.marker.__enter__()

    def on_train_batch_end(self, batch, logs=None):
        self.marker.__exit__(None, None, None)
        super().on_train_batch_end(batch, logs)  # ends it


rng = np.random.default_rng(0)
x_train = rng.random((2048, 28, 28, 1), dtype="float32")
y_train = keras.utils.to_categorical(rng.integers(0, 10, 2048), 10)

model = keras.Sequential(
    [
        keras.Input(shape=(28, 28, 1)),
        keras.layers.Conv2D(8, kernel_size=(3, 3), activation="relu"),
        keras.layers.MaxPooling2D(pool_size=(2, 2)),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(
    x_train,
    y_train,
    batch_size=128,
    epochs=2,
    validation_split=0.1,
    callbacks=[ProfileSteps("logs", profile_batch=(20, 29))],
)
