"""A profile as plain data: what the report shows; and which files a reader means."""

from __future__ import annotations

import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfworkshop.problem import Problem
from tfworkshop.report.gaps import Device
from tfworkshop.report.layers import Layer

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
OUTLIER = 1.5  # times the median: worth a name


@dataclass
class Step:
    name: str
    total_ms: float
    split: dict[str, float]


@dataclass
class Steps:
    count: int = 0
    average_ms: float | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    sd_ms: float | None = None
    split: dict[str, float] = field(default_factory=dict)  # ms of the average step
    per_step: list[Step] = field(default_factory=list)
    outliers: list[str] = field(default_factory=list)  # steps that took far longer than most
    coverage: float | None = None  # the share of the recording that lies in steps

    def share(self, *keys: str) -> float:
        """Which part of the average step these are, from 0 to 1."""
        total = self.average_ms or 0
        return sum(self.split.get(key, 0) for key in keys) / total if total else 0.0

    @staticmethod
    def of(per_step: list[Step]) -> Steps:
        """Every figure from the same steps, so that the parts add up to the whole."""
        if not per_step:
            return Steps()
        times = sorted(step.total_ms for step in per_step)
        count, median = len(times), statistics.median(times)
        return Steps(
            count=count,
            average_ms=statistics.fmean(times),
            median_ms=median,
            p95_ms=times[-(-95 * count // 100) - 1],
            min_ms=times[0],
            max_ms=times[-1],
            sd_ms=statistics.stdev(times) if count > 1 else None,
            split={k: sum(s.split.get(k, 0) for s in per_step) / count for k in LABELS},
            per_step=per_step,
            outliers=[s.name for s in per_step if count > 2 and s.total_ms > OUTLIER * median],
        )


@dataclass
class Operation:
    name: str
    type: str
    where: str  # host or device
    mode: str  # eager, graph or tf.data
    count: int
    self_ms: float
    share: float  # of all operations on that side
    tensor_core: float | None  # the share of its time on tensor cores


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
    tensor_core_eligible: bool | None  # None: the converter cannot know
    tensor_core_used: bool | None
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
    at_peak: list[Allocation] = field(default_factory=list)
    headroom: float | None = None  # how many times the peak fits


@dataclass
class Allocation:
    """What the operations of one name and shape held at the peak."""

    operation: str
    shape: str
    count: int
    total_bytes: int


@dataclass
class HostSteps:
    """One host of several: is it the one that the others wait for?"""

    host: str
    steps: int
    median_ms: float | None
    input_share: float
    own_ms: float | None  # of a step, without the exchange in which it waits for others
    lag: float | None = None  # against the median host: 0.5 is half as long again


@dataclass
class Retraced:
    """A tf.function that was traced while it was recorded, or more than once before."""

    name: str
    calls: int
    traced: int  # while recording
    tracings: int  # in all, as TensorFlow counts them


@dataclass
class Profile:
    """What the report shows; as a dictionary, what --json writes."""

    run: str
    path: str
    files: list[str]
    hosts: list[str]
    device_type: str = "CPU"
    device_count: int = 0
    steps: Steps = field(default_factory=Steps)
    framework: str = "TensorFlow"
    verdict: dict[str, str] = field(default_factory=dict)
    devices: list[Device] = field(default_factory=list)
    host_steps: list[HostSteps] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    kinds: dict[str, float] = field(default_factory=dict)  # ms of kernels by kind
    retraced: list[Retraced] = field(default_factory=list)
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


def find(path: Path, ranks: bool = False) -> Run:
    """The run that a reader means: a file, a run's folder, or the newest run below a folder.

    With ranks all files below are one run, as when each rank recorded into a folder of its own.
    """
    if path.is_file():
        if not path.name.endswith(ENDING):
            raise Problem(f"{path} is not a profile: those end in {ENDING}")
        return Run(path.absolute().parent, [path])
    if path.exists() and not path.is_dir():
        raise Problem(f"{path} is no file: name a profile, or the --logdir of a profiled run")
    if not path.is_dir():
        raise Problem(f"no such folder: {path}. Name the --logdir of a profiled run")
    files = sorted(file for file in path.rglob(f"*{ENDING}") if file.is_file())
    if not files:
        raise Problem(f"no profile (*{ENDING}) in {path}. To make one: {MAKE_ONE}")
    if ranks:
        return Run(path.absolute(), files)
    folders = sorted(dict.fromkeys(file.absolute().parent for file in files), key=recorded)
    newest = [file for file in files if file.absolute().parent == folders[-1]]
    return Run(folders[-1], newest, len(folders) - 1)
