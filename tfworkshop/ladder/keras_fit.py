"""The same CNN trained by Keras's own `model.fit`: what 06 is compared with. Run by bench.py.

python -m tfworkshop.ladder.keras_fit VARIANT STEPS BATCH_SIZE DATA RESULTS
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from tfworkshop.stages import STAGES

WARMUP = 20  # steps before the clock starts: a multiple of every variant's steps per call

# What a user of Keras can switch on: (tf.data, steps_per_execution, jit_compile, precision).
# Keras 3.3 unrolls the steps of a call in Python, and TensorFlow refuses more than 32 of them.
VARIANTS = {
    "as it comes": (False, 1, "auto", "float32"),
    "tf.data": (True, 1, False, "float32"),
    "tf.data, 10 steps a call": (True, 10, False, "float32"),
    "tf.data, 10 steps a call, XLA": (True, 10, True, "float32"),
    "tf.data, 10 steps a call, bfloat16": (True, 10, False, "mixed_bfloat16"),
    "tf.data, 10 steps a call, XLA, float16": (True, 10, True, "mixed_float16"),
}


def load_model_class():
    """Stage 02's model, so that the CNN is exactly the same."""
    spec = importlib.util.spec_from_file_location("stage_02", STAGES[2].script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MNISTClassifier


def train(variant: str, steps: int, batch_size: int, data: Path) -> dict:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as in 06: AMX may be trapped
    model_class = load_model_class()
    import keras
    import tensorflow as tf

    pipeline, steps_per_call, xla, precision = VARIANTS[variant]
    keras.mixed_precision.set_dtype_policy(precision)
    with np.load(data) as file:
        images = (file["x_train"][..., np.newaxis] / np.float32(255)).astype(np.float32)
        labels = file["y_train"].astype(np.int32)
    keras.utils.set_random_seed(1)
    model = model_class()
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_call,
        jit_compile=xla,
    )

    ends: list[tuple[int, float]] = []

    class Clock(keras.callbacks.Callback):
        """Records when a call is over; by then Keras has its losses on the host."""

        def on_train_batch_end(self, batch, logs=None):
            ends.append((len(ends) * steps_per_call + steps_per_call, time.perf_counter()))
            if ends[-1][0] >= whole:
                self.model.stop_training = True

    whole = WARMUP + -(-steps // steps_per_call) * steps_per_call
    options = {"epochs": 1, "verbose": 0, "callbacks": [Clock()]}
    if pipeline:
        batches = tf.data.Dataset.from_tensor_slices((images, labels)).cache().shuffle(60_000)
        batches = batches.repeat().batch(batch_size, drop_remainder=True)
        model.fit(batches.prefetch(tf.data.AUTOTUNE), steps_per_epoch=whole, **options)
    else:
        kept = len(images) // batch_size * batch_size  # all batches of one size
        options["epochs"] = -(-whole // (kept // batch_size))
        model.fit(images[:kept], labels[:kept], batch_size=batch_size, **options)
    timed = [(step, at) for step, at in ends if step >= WARMUP]
    pairs = zip(timed, timed[1:])
    per_step = [(at - before) / (step - last) for (last, before), (step, at) in pairs]
    return {"variant": variant, "img_per_s": batch_size / statistics.median(per_step)}


if __name__ == "__main__":
    name, steps, batch_size, data, results = sys.argv[1:]
    found = train(name, int(steps), int(batch_size), Path(data))
    Path(results).write_text(json.dumps(found))
