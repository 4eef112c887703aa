"""The checks that import TensorFlow. Each may crash or hang: they run in a process of their own.

python -m tfworkshop.doctor.tensorflow_checks NAME ...: each finding as a line of JSON.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfworkshop import processes
from tfworkshop.doctor import system
from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.doctor.system import installed, repair
from tfworkshop.machine import has_nvidia_gpu, in_container
from tfworkshop.problem import describe
from tfworkshop.stages import ROOT

# How many processes the launcher has started; the stages look at the same variables.
LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
ASK_FOR_COUNTERS = (
    "ask the administrator for `options nvidia NVreg_RestrictProfilingToAdminUsers=0`"
    " in a file in /etc/modprobe.d, and a reboot"
)


def check_tensorflow() -> Finding:
    started = time.perf_counter()
    import tensorflow as tf

    seconds = time.perf_counter() - started
    import keras

    build = "built for the CPU"
    if tf.test.is_built_with_cuda():
        build = f"built for CUDA {tf.sysconfig.get_build_info()['cuda_version']}"
    what = f"{tf.__version__} with Keras {keras.__version__}, {build}, imported in {seconds:.1f} s"
    return ok("tensorflow", what)


# --- GPUs ---


@functools.cache
def gpus() -> list[dict[str, Any]]:
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    return [tf.config.experimental.get_device_details(device) for device in devices]


def check_gpu() -> Finding:
    import tensorflow as tf

    names = sorted({device["device_name"] for device in gpus()})
    if names == ["ideal GPU"]:
        what = f"{len(gpus())} x ideal GPU, which is not a GPU: its kernels take no time"
        return ok("gpu", f"{what} (docs/IDEAL_GPU.md)")
    if names:
        driver = system.driver_version()
        return ok("gpu", f"{len(gpus())} x {' and '.join(names)}, driver {driver}")
    return explain_no_gpu(tf.test.is_built_with_cuda(), has_libcuda(), read_log())


def explain_no_gpu(built_with_cuda: bool, has_libcuda: bool, log: str) -> Finding:
    """The first reason that applies."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not has_nvidia_gpu():
        return ok("gpu", "no NVIDIA GPU, or no driver for it: the stages run on the CPU")
    if visible in ("", "-1", "NoDevFiles"):
        what = f"CUDA_VISIBLE_DEVICES='{visible}' hides the GPU: the stages would run on the CPU"
        return fail("gpu", what, "unset CUDA_VISIBLE_DEVICES")
    if not built_with_cuda:
        what = "TensorFlow is built for the CPU, but this machine has a GPU"
        return fail("gpu", what, f"unset WORKSHOP_TENSORFLOW; {repair()}")
    if in_container() and not has_libcuda:
        what = "the driver is not in the container (no libcuda.so.1): started without --nv"
        return fail("gpu", what, "apptainer exec --nv IMAGE ... (or singularity exec --nv)")
    reasons = [line for line in log.splitlines() if re.search("cuda|dlopen|driver", line, re.I)]
    what = f"TensorFlow sees no GPU (driver {system.driver_version()}). Its log: "
    what += "; ".join(reasons[-2:])
    fix = f"nvidia-smi must list the GPU (in a job: request one); if it does: {repair()}"
    return fail("gpu", what, fix)


def has_libcuda() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def read_log() -> str:
    """What TensorFlow has logged so far: `main` sends stderr to a file."""
    return os.pread(2, 1_000_000, 0).decode(errors="replace")


# --- compiling, and number formats ---


def check_xla() -> Finding:
    """Compile and run a small function."""
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def total(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.nn.relu(x @ x))

    started = time.perf_counter()
    total(tf.ones((16, 16))).numpy()
    seconds = time.perf_counter() - started
    what = f"compiles a small function in {seconds:.1f} s"
    path = shutil.which("ptxas")
    if gpus() and path:  # XLA of TensorFlow 2.17 takes it, and not the one beside it
        version = processes.run([path, "--version"]).stdout
        return judge_ptxas(path, version, lowest_capability(), what)
    return ok("xla", what)


def judge_ptxas(path: str, version: str, capability: tuple[int, int], what: str) -> Finding:
    """CUDA 13 compiles for no device older than compute capability 7.5."""
    release = re.search(r"release (\d+)\.\d+", version)
    if release and int(release[1]) >= 13 and capability < (7, 5):
        what += f", but {path} is of CUDA {release[1]}, which has no compute capability"
        what += f" {capability[0]}.{capability[1]}, and XLA may take it"
        return warn("xla", what, "take that CUDA from PATH (module unload cuda)")
    return ok("xla", what)


def lowest_capability() -> tuple[int, int]:
    return min(device["compute_capability"] for device in gpus())


def check_precision() -> Finding:
    """By compute capability on a GPU; measured on a CPU, whose flags are not reliable."""
    if gpus():
        return judge_capability(lowest_capability())
    float32 = time_convolution("float32")
    bfloat16 = time_convolution("bfloat16")
    advice = "bfloat16 pays here" if bfloat16 < 0.9 * float32 else "use float32 here"
    what = f"a convolution's step takes {float32:.1f} ms in float32, {bfloat16:.1f} ms in bfloat16"
    return ok("precision", f"{what}: {advice}; float16 is for GPUs")


def judge_capability(capability: tuple[int, int]) -> Finding:
    units = "no tensor cores, use float32"
    if capability >= (7, 0):
        units = "tensor cores for float16, none for bfloat16"
    if capability >= (8, 0):
        units = "tensor cores for float16, bfloat16 and TF32"
    return ok("precision", f"compute capability {capability[0]}.{capability[1]}: {units}")


def time_convolution(dtype: str) -> float:
    """Milliseconds of the network's heaviest convolution with its gradients."""
    import tensorflow as tf

    @tf.function
    def gradients(images: tf.Tensor, kernel: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            loss = tf.reduce_sum(tf.nn.conv2d(images, kernel, 1, "VALID"))
        return tape.gradient(loss, [images, kernel])

    images = tf.cast(tf.random.normal((64, 26, 26, 32)), dtype)
    kernel = tf.cast(tf.random.normal((3, 3, 32, 64)), dtype)
    times = []
    for _ in range(4):
        started = time.perf_counter()
        for gradient in gradients(images, kernel):
            gradient.numpy()
        times.append(time.perf_counter() - started)
    return 1000 * min(times[1:])  # the first includes tracing


def check_amx() -> Finding:
    """A bfloat16 product, which oneDNN computes with AMX if that is allowed."""
    import tensorflow as tf

    a = tf.cast(tf.random.normal((512, 512)), tf.bfloat16)
    tf.matmul(a, a).numpy()
    what = f"works, a convolution's step in {time_convolution('bfloat16'):.1f} ms"
    return ok("amx", f"{what}; ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX lets stages 05 and 06 use it")


# --- the profiler ---


def check_profiler() -> Finding:
    """Profile one tiny step."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        with tf.profiler.experimental.Trace("train", step_num=0, _r=1):
            (tf.ones((64, 64)) @ tf.ones((64, 64))).numpy()
        tf.profiler.experimental.stop()
        (profile,) = Path(folder).rglob("*.xplane.pb")
        has_gpu_events = b"/device:GPU:" in profile.read_bytes()
    if not gpus():
        return ok("profiler", "records a step, on the CPU")
    if has_gpu_events:
        return ok("profiler", "records a step, with its GPU events")
    return explain_no_gpu_events(read_log())


def explain_no_gpu_events(log: str) -> Finding:
    what = "the recorded step has no GPU events"
    if system.counters_restricted() or "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES" in log:
        what += ": the driver keeps the GPU's counters for administrators"
        what += ". A program that records a profile may even crash with SIGSEGV"
        return warn("profiler", what, ASK_FOR_COUNTERS)
    reasons = re.findall(r"CUPTI_ERROR_\w+|libcupti\S*", log) or ["no reason in the log"]
    fix = "try another node; or, where libcupti is not found:"
    fix += " export LD_LIBRARY_PATH=/usr/local/cuda/extras/CUPTI/lib64:$LD_LIBRARY_PATH"
    return warn("profiler", f"{what} ({reasons[-1]})", fix)


def check_plugin() -> Finding:
    """Let TensorBoard's profile plugin read the profile of stage 04's page."""
    try:
        from xprof.convert import raw_to_tool_data

        tool = "overview_page"
    except ImportError:  # the plugin of TensorFlow 2.17
        from tensorboard_plugin_profile.convert import raw_to_tool_data

        tool = "overview_page^"
    (profile,) = (ROOT / "04_tf_profiler" / "sample").rglob("*.xplane.pb")
    with tempfile.TemporaryDirectory() as folder:  # it writes a cache beside the profile
        copy = shutil.copy(profile, folder)
        raw_to_tool_data.xspace_to_tool_data([str(copy)], tool, {})
    version = installed("tensorboard-plugin-profile")
    return ok("plugin", f"tensorboard-plugin-profile {version} reads a profile")


# --- many processes ---


def check_horovod() -> Finding:
    if not installed("horovod"):
        return judge_horovod(None, [], 0, len(gpus()))
    import horovod.tensorflow as hvd

    hvd.init()
    parts = {"MPI": hvd.mpi_built(), "Gloo": hvd.gloo_built(), "NCCL": hvd.nccl_built()}
    built = [name for name, has_it in parts.items() if has_it]
    return judge_horovod(installed("horovod"), built, hvd.size(), len(gpus()))


def judge_horovod(version: str | None, built: list[str], size: int, gpus: int) -> Finding:
    """Whether it sees as many ranks as a launcher has started, and serves all GPUs."""
    sizes = {name: int(os.environ.get(name, 1)) for name in LAUNCHERS}
    launcher, started = max(sizes.items(), key=lambda item: item[1])
    setup = "./workshop setup --horovod"
    if not version and started > 1:
        what = f"not installed, and {launcher}={started}: every process would train alone"
        return fail("horovod", what, setup)
    if not version and gpus > 1:
        return warn("horovod", "not installed: the stages use only one of the GPUs", setup)
    if not version:
        return ok("horovod", f"not installed; for many ranks: {setup}")
    what = f"{version} for TensorFlow, with {', '.join(built)}; {size} of {started} rank(s) seen"
    if size < started:
        fix = f"horovodrun -np {started} python train_MNIST.py"
        if "MPI" not in built:
            fix += " (this Horovod is built without MPI, so mpiexec and srun cannot join its ranks)"
        return fail("horovod", f"{what}, {launcher}={started}", fix)
    if gpus > 1 and "NCCL" not in built:
        fix = f"{setup} where nvcc and nccl.h are, or the container"
        return warn("horovod", f"{what}; without NCCL the GPUs exchange through the host", fix)
    return ok("horovod", what)


def run_check(name: str) -> Finding:
    check: Callable[[], Finding] = globals()[f"check_{name}"]
    try:
        return check()
    except Exception as error:  # whatever it is, it is what the doctor looks for
        reason = describe(error)
        fix = repair()
        if "ptxas" in reason:
            fix = "take the ptxas of another CUDA from PATH (module unload cuda)"
        return fail(name, f"{type(error).__name__}: {reason[:200]}", fix)


def main(names: list[str]) -> None:
    # Stdout is for the findings; what libraries print goes to a file.
    findings = os.fdopen(os.dup(1), "w")
    log = tempfile.TemporaryFile()
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    for name in names:
        finding = run_check(name)
        print(json.dumps(dataclasses.asdict(finding)), file=findings, flush=True)
        if name == "tensorflow" and finding.status == "fail":
            break  # all later checks import it
    os._exit(0)  # a library that hangs or crashes while it is unloaded does not matter here


if __name__ == "__main__":
    main(sys.argv[1:])
