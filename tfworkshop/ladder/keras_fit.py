"""The same CNN trained by Keras's own `model.fit`: what 06 is compared with. Run by bench.py.

python -m tfworkshop.ladder.keras_fit VARIANT STEPS BATCH_SIZE DATA    prints images per second
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfworkshop.stages import STAGES

WARMUP = 20  # steps before the clock starts: a multiple of every variant's steps per call


@dataclass(frozen=True)
class Variant:
    """What a user of Keras can switch on."""

    tf_data: bool
    # Keras 3.3 unrolls the steps of a call in Python, and TensorFlow refuses more than 32 of them.
    steps_per_call: int = 1
    jit_compile: bool | str = False
    precision: str = "float32"


VARIANTS = {
    "as it comes": Variant(tf_data=False, jit_compile="auto"),
    "tf.data": Variant(tf_data=True),
    "tf.data, 10 steps a call": Variant(tf_data=True, steps_per_call=10),
    "tf.data, 10 steps a call, XLA": Variant(tf_data=True, steps_per_call=10, jit_compile=True),
    "tf.data, 10 steps a call, bfloat16": Variant(
        tf_data=True, steps_per_call=10, precision="mixed_bfloat16"
    ),
    "tf.data, 10 steps a call, XLA, float16": Variant(
        tf_data=True, steps_per_call=10, jit_compile=True, precision="mixed_float16"
    ),
}


def load_model_class() -> Any:
    """Stage 02's model, so that the CNN is exactly the same."""
    spec = importlib.util.spec_from_file_location("stage_02", STAGES[2].script)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MNISTClassifier


def train(variant: Variant, steps: int, batch_size: int, data: Path) -> float:
    """Images per second: the median over the calls after the warm-up."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as in 06: AMX may be trapped
    model_class = load_model_class()
    import keras
    import tensorflow as tf

    keras.mixed_precision.set_dtype_policy(variant.precision)
    with np.load(data) as file:
        images = (file["x_train"][..., np.newaxis] / np.float32(255)).astype(np.float32)
        labels = file["y_train"].astype(np.int32)
    keras.utils.set_random_seed(1)
    model = model_class()
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=variant.steps_per_call,
        jit_compile=variant.jit_compile,
    )

    calls = math.ceil(steps / variant.steps_per_call)
    warmup_calls = WARMUP // variant.steps_per_call
    ends: list[float] = []  # of each call

    class Clock(keras.callbacks.Callback):
        """Records when a call is over; by then Keras has its losses on the host."""

        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            ends.append(time.perf_counter())
            if len(ends) == warmup_calls + calls:
                self.model.stop_training = True

    total_steps = WARMUP + calls * variant.steps_per_call
    if variant.tf_data:
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).cache().shuffle(60_000)
        dataset = dataset.repeat().batch(batch_size, drop_remainder=True)
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
        model.fit(dataset, steps_per_epoch=total_steps, epochs=1, verbose=0, callbacks=[Clock()])
    else:
        steps_per_epoch = len(images) // batch_size
        used = steps_per_epoch * batch_size  # all batches have the same size
        model.fit(
            images[:used],
            labels[:used],
            batch_size=batch_size,
            epochs=math.ceil(total_steps / steps_per_epoch),
            verbose=0,
            callbacks=[Clock()],
        )
    timed = ends[warmup_calls - 1 :]
    seconds_per_call = [end - start for start, end in itertools.pairwise(timed)]
    return variant.steps_per_call * batch_size / statistics.median(seconds_per_call)


if __name__ == "__main__":
    name, steps, batch_size, data = sys.argv[1:]
    print(train(VARIANTS[name], int(steps), int(batch_size), Path(data)))
