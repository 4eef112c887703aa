"""A profile as plain data: what the report shows, and what --json writes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TypedDict

ENDING = ".xplane.pb"
LABELS = {  # the parts of a step
    "input": "Input",
    "host_compute": "Host compute",
    "kernel_launch": "Kernel launch",
    "device_compute": "Device compute",
    "device_to_device": "Device to device",
    "collectives": "Collectives",
    "output": "Output",
    "compilation": "Compilation",
    "other": "All others",
}
OUTLIER = 1.5  # times the median: worth a name


@dataclass
class Step:
    name: str
    total_ms: float
    split: dict[str, float]
    input_alone_ms: float = 0.0  # waiting for data while nothing was computed


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
    input_alone_ms: float = 0.0
    per_step: list[Step] = field(default_factory=list)
    outliers: list[str] = field(default_factory=list)  # steps that took far longer than most
    source: str = "none"  # markers, device, inferred, or none: then it is the whole recording
    basis: str = ""  # what marks a step: the marker's name, or the function that repeats

    def share(self, *keys: str) -> float:
        """The share of the average step that these parts take, from 0 to 1."""
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
            input_alone_ms=statistics.fmean(step.input_alone_ms for step in per_step),
            per_step=per_step,
            outliers=[s.name for s in per_step if count > 2 and s.total_ms > OUTLIER * median],
        )


@dataclass
class Operation:
    name: str
    type: str
    where: str  # host or device
    mode: str  # eager, graph, XLA or tf.data
    count: int
    self_ms: float
    share: float  # of all operations on that side


@dataclass
class Kernel:
    name: str
    short: str  # the part of a C++ name that distinguishes kernels
    operation: str
    count: int
    total_ms: float
    average_us: float
    share: float  # of all kernels
    tensor_core_eligible: bool
    tensor_core_used: bool | None  # None: not known


@dataclass
class Copy:
    """Equal copies between host and device."""

    way: str  # to host, to device
    bytes: int  # of one
    source: str  # the operation that made it, or Python; "" where nothing says so
    reader: str  # the operation that needs it, or Python
    per_step: float  # in the whole recording, where there are no steps


@dataclass
class GapClass:
    size: str
    count: int
    total_ms: float
    host_ms: dict[str, float]  # by activity


@dataclass
class Device:
    """What one device did between its first kernel and its last."""

    host: str
    name: str
    kernels: int = 0
    copies: int = 0
    window_ms: float = 0.0
    busy_ms: float = 0.0  # computing
    idle_ms: float = 0.0  # not computing
    exchange_ms: float = 0.0
    exchange_hidden: float | None = None  # the share of it while the device also computes
    copy_ms: float = 0.0
    copy_hidden: float | None = None
    gaps: list[GapClass] = field(default_factory=list)
    waiting_ms: dict[str, float] = field(default_factory=dict)  # idle time by activity
    kernel_us: float | None = None  # medians
    launch_us: float | None = None
    queue: float | None = None  # kernels launched and not begun, when one begins
    shorter_than_launch: float | None = None  # the share of kernels
    from_graphs: float = 0.0  # the share of kernels without a launch of their own
    recorded_ms: float = 0.0  # the whole recording

    @property
    def idle_share(self) -> float:
        return self.idle_ms / self.window_ms if self.window_ms else 0.0

    @property
    def short_name(self) -> str:
        return self.name.replace("/device:", "")


@dataclass
class Layer:
    name: str
    forward_ms: float = 0.0
    backward_ms: float = 0.0
    optimizer_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.forward_ms + self.backward_ms + self.optimizer_ms


@dataclass
class Allocation:
    """What the operations of one name and shape held at the peak."""

    operation: str
    shape: str
    count: int
    total_bytes: int


@dataclass
class Allocator:
    host: str
    allocator: str
    peak_bytes: int  # in the profiled window
    lifetime_peak_bytes: int
    capacity_bytes: int
    curve: list[list[float]]  # [ms since the first event, bytes in use]
    at_peak: list[Allocation] = field(default_factory=list)
    headroom: float | None = None  # how many times the batch would fit


@dataclass
class Bottleneck:
    """The slowest part of a tf.data pipeline, in the pipeline's slowest call."""

    host: str
    pipeline: str
    slowest_call_ms: float
    iterator: str
    iterator_ms: float
    suggestion: str


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
    """A tf.function that was traced while it was recorded, or several times before."""

    name: str
    calls: int
    traced: int  # while recording
    tracings: int  # in all, as TensorFlow counts them


@dataclass
class Setup:
    """What the program uses already: not to be advised again."""

    framework: str = "TensorFlow"
    xla: bool = False
    sixteen_bit: bool | None = None  # None: cannot be seen
    cuda_graphs: bool = False


@dataclass
class Cause:
    """Something that costs time, and what removing it can gain at most."""

    name: str
    kind: str
    gain_ms: float
    total_ms: float  # of a step, or of the window it was measured in
    factor: float
    confidence: str  # measured or inferred


class Verdict(TypedDict):
    kind: str
    sentence: str
    evidence: str
    ceiling: str
    next: str
    confidence: str  # measured or inferred


@dataclass
class Profile:
    run: str
    path: str
    hosts: list[str]
    device_type: str = "CPU"
    device_count: int = 0
    steps: Steps = field(default_factory=Steps)
    window: Step | None = None  # the whole recording, where there are no steps
    setup: Setup = field(default_factory=Setup)
    verdict: Verdict = field(default_factory=lambda: Verdict(
        kind="unknown", sentence="", evidence="", ceiling="", next="", confidence="measured"
    ))  # fmt: skip
    causes: list[Cause] = field(default_factory=list)  # the verdict's first
    devices: list[Device] = field(default_factory=list)
    host_steps: list[HostSteps] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    kinds: dict[str, float] = field(default_factory=dict)  # ms of kernels by kind
    retraced: list[Retraced] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    precision: dict[str, float | None] = field(default_factory=dict)
    memory: list[Allocator] = field(default_factory=list)
    input_pipeline: list[Bottleneck] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    eager_calls: int = 0  # operations that Python started one by one
    is_ideal: bool = False  # recorded on the ideal GPU: no device time means anything
