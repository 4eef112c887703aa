"""A Keras model with a train_step of its own."""

import keras
import numpy as np
import tensorflow as tf


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(tf.square(y_pred - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}


keras.utils.set_random_seed(1)
inputs = keras.Input(shape=(32,))
model = CustomModel(inputs, keras.layers.Dense(1)(inputs))
model.compile(optimizer="adam")
x = np.random.random((1600, 32)).astype("float32")
y = np.random.random((1600, 1)).astype("float32")
history = model.fit(x, y, epochs=1, verbose=0)
print([float(loss).hex() for loss in history.history["loss"]])
print("steps", 1600 // 32)
