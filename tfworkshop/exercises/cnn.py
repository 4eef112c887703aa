"""What the exercises know about the CNN: the shapes and the initial values of its weights."""

from __future__ import annotations

import numpy as np

# Every shape occurs once, so a shape identifies its tensor whatever a script calls it.
SHAPES = {
    "conv_1/kernel": (3, 3, 1, 32),
    "conv_1/bias": (32,),
    "conv_2/kernel": (3, 3, 32, 64),
    "conv_2/bias": (64,),
    "dense_1/kernel": (9216, 128),
    "dense_1/bias": (128,),
    "dense_2/kernel": (128, 10),
    "dense_2/bias": (10,),
}


def initial_weights(shape: tuple[int, ...]) -> np.ndarray:
    """Glorot's initialization, drawn from a generator that depends on the shape alone."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    *window, inputs, outputs = shape
    fan_in = np.prod(window) * inputs
    fan_out = np.prod(window) * outputs
    limit = np.sqrt(6 / (fan_in + fan_out))
    return np.random.default_rng(list(shape)).uniform(-limit, limit, shape).astype(np.float32)
