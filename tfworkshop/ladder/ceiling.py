"""How fast this device multiplies matrices: the most that training this model could reach."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

from tfworkshop import processes
from tfworkshop.stages import ROOT

SIZE = 2048
SECONDS = 0.7  # of multiplying, for each precision, in each round
ROUNDS = 2  # the faster counts: other programs can only have slowed it down


def measure() -> dict[str, float]:
    """FLOP/s by precision, from a separate process: TensorFlow then has the device to itself."""
    finished = processes.run([sys.executable, "-m", "tfworkshop.ladder.ceiling"], cwd=ROOT)
    if finished.status:
        return {}  # the column stays empty
    speeds: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return speeds


def multiply() -> dict[str, float]:
    # As in stages 05 and 06: some virtual machines advertise AMX but trap it.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    precisions = [tf.float32, tf.bfloat16]
    size = SIZE
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        precisions.append(tf.float16)
        size = 4 * SIZE
    speeds: dict[str, float] = {}
    for precision in precisions * ROUNDS:
        matrix = tf.cast(tf.random.normal([size, size]), precision)
        times: list[float] = []
        end = time.perf_counter() + SECONDS
        while len(times) < 4 or time.perf_counter() < end:
            start = time.perf_counter()
            float(tf.matmul(matrix, matrix)[0, 0])  # waits for the device
            times.append(time.perf_counter() - start)
        speed = 2 * size**3 / statistics.median(times[1:])
        speeds[precision.name] = max(speed, speeds.get(precision.name, 0.0))
    return speeds


if __name__ == "__main__":
    print(json.dumps(multiply()))
