"""A profile as plain data, made by the converters behind TensorBoard's Profile page.

Everything stays in memory: the converters, given a path, would write files beside the profile.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.problem import Problem

ENDING = ".xplane.pb"
TIME = re.compile(r"\d{4}(_\d\d){5}$")
MAKE_ONE = "cd 04_tf_profiler && python train_MNIST.py --steps 50 --logdir logs"
# How a step's time is split: our name, what to call it, and TensorFlow's fields that add up to it.
SPLIT = (
    ("input", "Input", ("host_wait_input_ms", "host_to_device_ms")),
    ("host_compute", "Host compute", ("host_compute_ms",)),
    ("kernel_launch", "Kernel launch", ("host_prepare_ms",)),
    ("device_compute", "Device compute", ("device_compute_ms",)),
    ("device_to_device", "Device to device", ("device_to_device_ms",)),
    ("collectives", "Collectives", ("device_collectives_ms",)),
    ("output", "Output", ("output_ms",)),
    ("compilation", "Compilation", ("host_compile_ms",)),
    ("other", "All others", ("unknown_time_ms",)),
)
LABELS = {key: label for key, label, _ in SPLIT}


@dataclass
class Step:
    name: str
    total_ms: float
    split: dict[str, float]


@dataclass
class Steps:
    count: int = 0
    average_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    sd_ms: float | None = None
    split: dict[str, float] = field(default_factory=dict)  # ms of the average step
    per_step: list[Step] = field(default_factory=list)

    def share(self, *keys: str) -> float:
        """Which part of the average step these are, from 0 to 1."""
        total = self.average_ms or 0
        return sum(self.split.get(key, 0) for key in keys) / total if total else 0.0


@dataclass
class Operation:
    name: str
    type: str
    where: str  # host or device
    mode: str  # eager, graph or tf.data
    count: int
    self_ms: float
    share: float  # of all operations on that side
    tensor_core: float  # the share of its time on tensor cores


@dataclass
class Kernel:
    name: str
    short: str  # the part of a C++ name that tells kernels apart
    operation: str
    count: int
    total_ms: float
    average_us: float
    min_us: float
    max_us: float
    share: float  # of all kernels
    tensor_core_eligible: bool
    tensor_core_used: bool
    occupancy_percent: float
    registers: int
    block: list[int]
    grid: list[int]


@dataclass
class Memory:
    host: str
    allocator: str
    peak_bytes: int  # in the profiled window
    lifetime_peak_bytes: int
    capacity_bytes: int
    curve: list[list[float]]  # [ms since the profile began, bytes in use]


@dataclass
class Profile:
    """What the report shows; as a dictionary, what --json writes."""

    run: str
    path: str
    files: list[str]
    hosts: list[str]
    device_type: str
    device_count: int
    steps: Steps
    verdict: dict[str, str] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    precision: dict[str, float | None] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    input_pipeline: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    eager_calls: int = 0  # operations that Python started one by one


# --- finding it ---


@dataclass
class Run:
    """One recording: a file for every host that took part."""

    folder: Path
    files: list[Path]
    others: int = 0  # older runs beside it

    @property
    def name(self) -> str:
        """The time it was recorded at, as TensorFlow names the folder; else the file's name."""
        if TIME.match(self.folder.name) or len(self.files) > 1:
            return self.folder.name
        return self.files[0].name[: -len(ENDING)]


def recorded(folder: Path) -> str:
    """When, as a text that sorts: the folder's name, or its time where it was renamed."""
    if TIME.match(folder.name):
        return folder.name
    return time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(folder.stat().st_mtime))


def find(path: Path) -> Run:
    """The run that a reader means: a file, a run's folder, or the newest run below a folder."""
    if path.is_file():
        if not path.name.endswith(ENDING):
            raise Problem(f"{path} is not a profile: those end in {ENDING}")
        return Run(path.absolute().parent, [path])
    if not path.is_dir():
        raise Problem(f"no such folder: {path}. Name the --logdir of a profiled run")
    files = sorted(path.rglob(f"*{ENDING}"))
    if not files:
        raise Problem(f"no profile (*{ENDING}) in {path}. To make one: {MAKE_ONE}")
    folders = sorted({file.absolute().parent for file in files}, key=recorded)
    newest = [file for file in files if file.absolute().parent == folders[-1]]
    return Run(folders[-1], newest, len(folders) - 1)


# --- TensorFlow's converters ---


def load_tensorflow() -> None:
    """Ctrl+C ends at once: caught inside TensorFlow's import it would come out as anything."""
    if "tensorflow" in sys.modules:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

    def end(*_: object) -> None:
        os.write(2, b"\nworkshop: interrupted\n")
        os._exit(130)

    before = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM)}
    import tensorflow  # noqa: F401

    for number, handler in before.items():
        signal.signal(number, handler)


class Converter:
    """The profile's bytes, and TensorFlow's tools over them."""

    def __init__(self, run: Run) -> None:
        load_tensorflow()
        from google.protobuf.message import DecodeError
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        self.hosts: list[str] = []
        self.names: list[str] = []
        self.spaces: list[bytes] = []
        for file in run.files:
            data = file.read_bytes()
            try:
                space = xplane_pb2.XSpace.FromString(data)
            except DecodeError:
                raise Problem(f"{file} is not a profile, or not a whole one") from None
            if not space.planes:
                raise Problem(f"{file} is empty: the profiler wrote nothing, was stop() called?")
            host = space.hostnames[0] if space.hostnames else file.name[: -len(ENDING)]
            safe = re.sub(r"[^\w.:-]", "_", host)
            if safe != host:  # the converter takes it for a path
                space.hostnames[:] = [safe]
                data = space.SerializeToString()
            self.hosts.append(host)
            # The converter wants file names that tell the host; a renamed file would not.
            self.names.append(safe.replace(":", "_") + ENDING)
            self.spaces.append(data)

    def convert(self, tool: str, host: int | None = None) -> bytes | None:
        """A tool's data for all hosts or one; None where TensorFlow cannot compute it."""
        from tensorflow.python.profiler.internal import _pywrap_profiler

        chosen = slice(None) if host is None else slice(host, host + 1)
        try:
            data, fine = _pywrap_profiler.xspace_to_tools_data_from_byte_string(
                self.spaces[chosen], self.names[chosen], tool, {}
            )
        except Exception:  # whatever C++ threw: this tool is not there
            return None
        return data if fine else None
