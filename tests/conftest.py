"""What the tests share: real MNIST, a small part of it, and ways to run or import a stage."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest

from tests import warm
from tfworkshop import data
from tfworkshop.stages import ROOT

# As stages 05 and 06 do, before any operation: a machine may announce AMX and yet trap it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # the same kernels on every CPU

# A process alone needs no daemon of Open MPI and no fast network, which cost 0.3 s; and a rank that
# waits must not keep a core busy which another rank needs.
OPEN_MPI = {
    "OMPI_MCA_ess_singleton_isolated": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
os.environ.update(OPEN_MPI)

# A background job starts with Ctrl+C ignored, and its children inherit that: here it must work.
signal.signal(signal.SIGINT, signal.default_int_handler)

Script = tuple[str, str]
# Every script, as (folder, file), in the order of the ladder.
SCRIPTS: list[Script] = [
    ("00_baseline", "train_MNIST.py"),
    ("01_line_profiler", "train_MNIST.py"),
    ("01_line_profiler", "train_MNIST_iofix.py"),
    ("02_tf_function", "train_MNIST.py"),
    ("03_xla", "train_MNIST.py"),
    ("04_tf_profiler", "train_MNIST.py"),
    ("05_reduced_precision", "train_MNIST.py"),
    ("06_optimized", "train_MNIST_device.py"),
    ("06_optimized", "train_MNIST.py"),
]
LAST = SCRIPTS[-1]

# What is measured under the load of tests must not be kept; all test processes share this folder.
if "WORKSHOP_TEST_CACHE" not in os.environ:
    os.environ["WORKSHOP_TEST_CACHE"] = tempfile.mkdtemp(prefix="workshop_test_")
    atexit.register(shutil.rmtree, os.environ["WORKSHOP_TEST_CACHE"], ignore_errors=True)
CACHE = os.environ["WORKSHOP_TEST_CACHE"]

LOG_LINE = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - INFO - \((?P<epoch>\d+), (?P<batch>\d+)\), "
    r"Loss: (?P<loss>\d+\.\d{3}), step_time: (?P<time>\d+\.\d{3}), "
    r"throughput: (?P<speed>\d+\.\d{3}) img/s\.$",
    re.M,
)
# Lines of TensorFlow's C++ side, about which a reader can do nothing.
NOISE = re.compile(r"^(I0000 |WARNING: All log messages before absl|.*oneDNN supports DT_HALF)")


def stages(*numbers: str) -> list[Script]:
    """The scripts of these folders, given by number."""
    return [script for script in SCRIPTS if script[0][:2] in numbers]


def script_id(script: Script) -> str:
    return f"{script[0][:2]}-{Path(script[1]).stem}"


@pytest.fixture(scope="session")
def mnist() -> Path:
    """Real MNIST, fetched if it is not there yet."""
    data.ensure(say=lambda line: None)
    return data.DEFAULT_PATH


@pytest.fixture(scope="session")
def small(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first images of MNIST: quick to read, even for every batch."""
    with np.load(mnist) as full:
        sizes = {"x_train": 2048, "y_train": 2048, "x_test": 512, "y_test": 512}
        arrays = {name: full[name][:size] for name, size in sizes.items()}
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez_compressed(path, **arrays)
    return path


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A python whose processes start with TensorFlow loaded."""
    program = tmp_path_factory.mktemp("warm") / "bin" / "python"
    program.parent.mkdir()
    with warm.started(program):
        yield program


def stage_environment(**extra: str) -> dict[str, str]:
    """This environment without what a launcher, a batch job or a user may have set."""
    drop = ("HOROVOD", "OMPI_", "PMI_", "SLURM_", "MNIST_NPZ", "CUDA_VISIBLE", "LINE_PROFILE")
    drop += ("ONEDNN_", "TF_")  # a stage sets what it needs itself
    kept = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    return {**kept, "WORKSHOP_CACHE": CACHE, **OPEN_MPI, **extra}


def run_script(
    script: Script,
    *options: object,
    cwd: Path,
    python: Path | str = sys.executable,
    timeout: float = 300,
    **extra: str,
) -> subprocess.CompletedProcess[str]:
    """Run a stage as a reader would: in its own process."""
    return subprocess.run(
        [str(python), str(ROOT / script[0] / script[1]), *map(str, options)],
        cwd=cwd,
        env=stage_environment(**extra),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def load_script(script: Script) -> ModuleType:
    """A stage as a module, for tests of its functions."""
    path = ROOT / script[0] / script[1]
    spec = importlib.util.spec_from_file_location(f"{script[0]}_{path.stem}".lstrip("0"), path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # tf.function looks there for the source
    spec.loader.exec_module(module)
    return module


class Ended(NamedTuple):
    """How main() ended, as its process would have."""

    status: int
    stdout: str
    stderr: str


def run_main(module: ModuleType, *options: object) -> Ended:
    """main() in this process: for many short runs, mostly of options."""
    stdout, stderr = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    code: object = 0
    try:
        with (
            mock.patch.object(sys, "argv", [f"{module.__name__}.py", *map(str, options)]),
            mock.patch.object(logging.root, "handlers", []),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            module.main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        module.keras.mixed_precision.set_dtype_policy("float32")
    if isinstance(code, str):  # sys.exit(text) prints it and exits with 1
        stderr.write(f"{code}\n")
        code = 1
    assert isinstance(code, int)
    return Ended(code, stdout.getvalue(), stderr.getvalue())


def said(stderr: str) -> list[str]:
    """The lines of stderr that are a stage's own."""
    return [line for line in stderr.splitlines() if line.strip() and not NOISE.match(line)]


def losses(stdout: str) -> list[str]:
    return [match["loss"] for match in LOG_LINE.finditer(stdout)]


def read_results(path: Path) -> dict:
    return json.loads(path.read_text())


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def profiled(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logdir of stage 04, with steps 5 to 14 recorded."""
    logs = tmp_path_factory.mktemp("profiled") / "logs"
    options = ["--data", small, "--steps", 16, "--profile-steps", 5, 14, "--logdir", logs]
    ended = run_main(load_script(stages("04")[0]), *options, "--xla", "on")
    assert ended.status == 0, ended.stderr
    return logs
