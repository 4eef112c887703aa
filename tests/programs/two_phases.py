"""First a short training, then a longer one of another model."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.rand(800, 64).astype("float32")
encoder = keras.Sequential([keras.layers.Dense(64)], name="encoder")
encoder.compile(loss="mse", optimizer="adam")
encoder.fit(x[:320], x[:320], batch_size=8, verbose=0)
head = keras.Sequential([keras.layers.Dense(64), keras.layers.Dense(1)], name="head")
head.compile(loss="mse", optimizer="adam")
history = head.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0)
print([loss.hex() for loss in history.history["loss"]])
print("steps", 3 * 100)
