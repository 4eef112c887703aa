"""model.fit with tf.data, and callbacks of the user's own."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
x = np.random.rand(640, 20).astype("float32")
y = x.sum(axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(640).batch(16).prefetch(2)


class Count(keras.callbacks.Callback):
    batches = 0

    def on_train_batch_end(self, batch, logs=None):
        Count.batches += 1


model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
model.compile(loss="mse", optimizer=keras.optimizers.SGD(0.01))
history = model.fit(dataset, epochs=2, callbacks=[Count()], verbose=0)
model.evaluate(dataset, verbose=0)
print([loss.hex() for loss in history.history["loss"]])
print("steps", Count.batches)
