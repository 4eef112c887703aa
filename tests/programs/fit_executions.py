"""model.fit with four batches in each call of the training function."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.rand(960, 20).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
model.compile(loss="mse", optimizer="adam", steps_per_execution=4)
history = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
print([float(loss).hex() for loss in history.history["loss"]])
print("steps", 2 * 960 // 8 // 4)
