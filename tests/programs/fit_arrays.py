"""model.fit with arrays, and a validation after each epoch."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.rand(720, 8, 8, 1).astype("float32")
y = keras.utils.to_categorical(np.random.randint(0, 10, 720), 10)
model = keras.Sequential(
    [
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(x, y, batch_size=32, epochs=3, validation_split=0.1, verbose=0)
print([loss.hex() for loss in history.history["loss"]])
print("steps", 3 * 21)
