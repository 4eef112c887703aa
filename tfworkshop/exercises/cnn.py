"""What the exercises know about the CNN: the shapes and the initial values of its weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# In order: every shape occurs once, so a shape identifies its tensor.
SHAPES = ((3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (9216, 128), (128,), (128, 10), (10,))


def shape_key(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def first_weights(shape: Sequence[int]) -> np.ndarray:
    """Glorot's initialization, which depends only on the shape, not on what was drawn before."""
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    limit = np.sqrt(6 / (np.prod(shape[:-1]) + shape[-1] * np.prod(shape[:-2])))
    return np.random.default_rng(list(shape)).uniform(-limit, limit, shape).astype(np.float32)
