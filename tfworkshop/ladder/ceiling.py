"""How fast this device multiplies matrices: the most that training this model could reach."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

from tfworkshop.processes import output_of
from tfworkshop.stages import ROOT

SIZE = 2048
SECONDS = 1.0  # of multiplying, for each precision


def measure() -> dict[str, float]:
    """FLOP/s by precision, from a separate process: TensorFlow then has the device to itself."""
    _, out, _ = output_of([sys.executable, "-m", "tfworkshop.ladder.ceiling"], cwd=ROOT)
    try:
        return json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return {}


def best_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The fastest of several rounds: other programs can only have slowed it down."""
    names = {name for found in rounds for name in found}
    return {name: max(found.get(name, 0.0) for found in rounds) for name in sorted(names)}


def multiply() -> dict[str, float]:
    # As in stages 05 and 06: some virtual machines advertise AMX but trap it.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    size = 4 * SIZE if gpus else SIZE
    found = {}
    for kind in (tf.float32, tf.bfloat16, *([tf.float16] if gpus else [])):
        a = tf.cast(tf.random.normal([size, size]), kind)
        times = []
        end = time.perf_counter() + SECONDS
        while len(times) < 4 or time.perf_counter() < end:
            start = time.perf_counter()
            float(tf.matmul(a, a)[0, 0])  # waits for the device
            times.append(time.perf_counter() - start)
        found[kind.name] = 2 * size**3 / statistics.median(times[1:])
    return found


if __name__ == "__main__":
    print(json.dumps(multiply()))
