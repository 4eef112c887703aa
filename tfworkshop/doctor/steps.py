"""What the doctor tries in a separate process, because each step may crash or hang it.

python -m tfworkshop.doctor.steps STEP ...: every step is announced on stdout before it starts, and
answers with one line of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import tempfile
import time
from pathlib import Path

CUPTI = ("libcupti.so", "libcupti.so.12", "libcupti.so.13", "libcupti.so.11.8")


def can_load(*names: str) -> str | None:
    """The first of these libraries that the loader finds."""
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


def libraries() -> dict:
    """The driver's own library, and the one that the profiler uses."""
    wheels = [  # where tensorflow[and-cuda] puts it, and looks for it
        str(file)
        for folder in sys.path
        for file in Path(folder or ".").glob("nvidia/cuda_cupti/lib/libcupti.so*")
    ]
    return {"cuda": can_load("libcuda.so.1"), "cupti": can_load(*CUPTI, *wheels)}


def pkg_resources() -> dict:
    import pkg_resources  # noqa: F401

    return {}


def tensorflow() -> dict:
    started = time.perf_counter()
    import tensorflow as tf

    seconds = time.perf_counter() - started
    import keras

    return {
        "version": tf.__version__,
        "keras": keras.__version__,
        "seconds": round(seconds, 1),
        "cuda": tf.sysconfig.get_build_info().get("cuda_version", ""),
        "cuda_build": tf.test.is_built_with_cuda(),
    }


def gpus() -> list[dict]:
    import tensorflow as tf

    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [
        {"name": each.get("device_name", "GPU"), "capability": each.get("compute_capability")}
        for each in details
    ]


def xla() -> dict:
    """A function with a product and a sum, with its result checked."""
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def total(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.nn.relu(x @ x))

    started = time.perf_counter()
    value = float(total(tf.ones((16, 16))))
    if value != 16**3:
        raise ValueError(f"XLA computed {value}, not {16**3}")
    return {"seconds": round(time.perf_counter() - started, 1)}


def precision() -> dict[str, float]:
    """Milliseconds of the network's heaviest convolution with its gradients, on a CPU."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return {}  # there the compute capability decides

    @tf.function
    def gradients(images: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            loss = tf.reduce_sum(tf.nn.conv2d(images, kernel, 1, "VALID"))
        return tape.gradient(loss, [images, kernel])

    best = {}
    for dtype in (tf.float32, tf.bfloat16):
        images = tf.cast(tf.random.normal((64, 26, 26, 32)), dtype)
        kernel = tf.cast(tf.random.normal((3, 3, 32, 64)), dtype)
        times, begun = [], time.perf_counter()
        while len(times) < 2 or (len(times) < 12 and time.perf_counter() - begun < 0.3):
            started = time.perf_counter()
            for result in gradients(images, kernel):
                result.numpy()
            times.append(time.perf_counter() - started)
        best[dtype.name] = 1000 * min(times[1:])
    return best


def amx() -> dict:
    """A bfloat16 product, which oneDNN computes with AMX if that is allowed."""
    import tensorflow as tf

    sys.stdin.read()  # until the answer is wanted: the other process measures, too
    a = tf.cast(tf.random.normal((512, 512)), tf.bfloat16)
    tf.matmul(a, a).numpy()
    return {}


def record(folder: str) -> Path:
    """A profile of one tiny step."""
    import tensorflow as tf

    tf.profiler.experimental.start(folder)
    with tf.profiler.experimental.Trace("train", step_num=0, _r=1):
        (tf.ones((64, 64)) @ tf.ones((64, 64))).numpy()
    tf.profiler.experimental.stop()
    return next(Path(folder).rglob("*.xplane.pb"))


def profiler() -> dict:
    with tempfile.TemporaryDirectory() as folder:
        profile = record(folder).read_bytes()
    return {"bytes": len(profile), "gpu": b"/device:GPU:" in profile}


def plugin() -> dict:
    """The plugin reads a profile that this TensorFlow has just written."""
    from tensorboard_plugin_profile.convert import raw_to_tool_data

    with tempfile.TemporaryDirectory() as folder:
        profiles = [str(record(folder))]
        overview, _ = raw_to_tool_data.xspace_to_tool_data(profiles, "overview_page^", {})
    return {"bytes": len(overview)}


def horovod() -> dict:
    import horovod as package
    import horovod.tensorflow as hvd

    hvd.init()
    built = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    return {
        "version": package.__version__,
        "built": [name for name, there in built.items() if there],
        "size": hvd.size(),
    }


def main(names: list[str]) -> None:
    # What the libraries print goes to stderr: stdout is for the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in names:
        print(json.dumps({"step": name}), file=answers, flush=True)
        try:
            answer = {"step": name, "answer": globals()[name]()}
        except Exception as error:
            text = " ".join(str(error).split())
            answer = {"step": name, "error": f"{type(error).__name__}: {text}"}
        print(json.dumps(answer), file=answers, flush=True)
        if name == "tensorflow" and "error" in answer:
            break  # all the later ones import it too
    os._exit(0)  # a library may hang or crash while it is unloaded: that does not matter here


if __name__ == "__main__":
    main(sys.argv[1:])
