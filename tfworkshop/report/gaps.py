"""Where a device waits: the gaps between its kernels, and what the host did in them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from tfworkshop.report import intervals
from tfworkshop.report.intervals import Intervals, merged, total, union, without
from tfworkshop.report.xspace import Line, Plane, Space

DEVICE = re.compile(r"^/device:(?!CPU)\w+:\d+")
COPY = re.compile(r"^(Mem(cpy|set)|Copy(Host|Device)|hipMemcpy)", re.I)
EXCHANGE = re.compile(r"nccl|rccl|all-?reduce|all-?gather|reduce-?scatter|collective", re.I)
WAIT = re.compile(r"Synchronize|BlockHost|BlockUntil|Await|\bWait|WaitFor|TensorHandleResolve")
INPUT = re.compile(r"^Iterator::|Iterator\w*GetNext|^PrefetchConsume")
# What TensorFlow's and JAX's runtimes do on the program's own thread: not Python.
RUNTIME = re.compile(
    r"^(Eager|TFE_|FunctionRun|Executor|KernelAndDevice|Kernel|cu[A-Z]|cuda|hip|PjRt|Pjit|Execute"
    r"|Thunk|Xla|XLA|Stream|Mem(cpy|set)|void |_?Send|_?Recv|ParseArguments)"
)
OWN_LINE = re.compile(r"^XLA Ops$|Compute")  # of a device without streams
# What the host did in a gap: our name, what to call it. The first that fits counts.
ACTIVITIES = {
    "exchange": "exchange with other devices",
    "copy": "copying",
    "launch": "launching",
    "input": "tf.data",
    "python": "Python",
    "wait": "waiting",
    "nothing": "nothing recorded",
}
SIZES = (  # of a gap: up to how many us, and what to call it
    (20, "under 20 µs"),
    (100, "20 to 100 µs"),
    (1000, "100 µs to 1 ms"),
    (float("inf"), "over 1 ms"),
)


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
    launch_delay_us: float | None = None
    queue: float | None = None  # kernels launched and not begun, when one begins
    shorter_than_launch: float | None = None  # the share of kernels
    recorded_ms: float = 0.0  # the whole recording

    @property
    def idle_share(self) -> float:
        return self.idle_ms / self.window_ms if self.window_ms else 0.0


def devices(host: str, space: Space, marked: Intervals, recorded_ms: float = 0) -> list[Device]:
    """Each device of a host; marked is where the program has step markers."""
    planes = [plane for plane in space.planes if DEVICE.match(plane.name)]
    if not planes:
        return []
    others = [plane for plane in space.planes if not DEVICE.match(plane.name)]
    host_side = HostSide([line for plane in others for line in plane.lines if len(line)])
    found = [device(host, plane, host_side, marked) for plane in planes]
    for made in found:
        made.recorded_ms = max(recorded_ms, made.window_ms)
    return found


def own_lines(plane: Plane) -> list[Line]:
    """The streams; the other lines of a device are made from them."""
    filled = [line for line in plane.lines if len(line)]
    streams = [line for line in filled if line.name.startswith("Stream")]
    return streams or [line for line in filled if OWN_LINE.search(line.name)]


class HostSide:
    """When the host launched, waited, read input or ran Python; and every launch."""

    def __init__(self, lines: list[Line]) -> None:
        found: dict[str, list[Intervals]] = defaultdict(list)
        self.launches: list[tuple[np.ndarray, ...]] = []
        for line in lines:
            waits = spans(line, line.called(WAIT.search))
            rows, ids = line.with_number("correlation_id")
            if len(rows):
                self.launches.append((ids, line.start_ps[rows], line.end_ps[rows]))
            found["wait"].append(waits)
            found["exchange"].append(spans(line, line.called(EXCHANGE.search)))
            background = line.name.startswith("tf_data")
            if not background or "get_next" in line.name:
                found["input"].append(spans(line, line.called(INPUT.search)))
            if background:
                continue
            if line.name.startswith("py") or line.name == "main":
                runs = line.called(RUNTIME.search)
                runs[rows] = True
                found["launch"].append(without(spans(line, runs), waits))
                found["python"].append(spans(line, ~runs))
            elif len(rows) or line.name.startswith(("tf_gpu", "tf_Compute", "tf_inter")):
                found["launch"].append(without(spans(line, slice(None)), waits))
        self.activities = {name: merged(found[name]) for name in ACTIVITIES}


def spans(line: Line, chosen: np.ndarray | slice) -> Intervals:
    return union(line.start_ps[chosen], line.end_ps[chosen])


def device(host: str, plane: Plane, host_side: HostSide, marked: Intervals) -> Device:
    made = Device(host, plane.name.split(" ")[0])
    kernels, copies, exchanges, launched = [], [], [], []
    for line in own_lines(plane):
        is_copy, is_exchange = line.called(COPY.search), line.called(EXCHANGE.search)
        is_kernel = ~(is_copy | is_exchange)
        made.kernels += int(is_kernel.sum())
        made.copies += int(is_copy.sum())
        kernels.append(spans(line, is_kernel))
        copies.append(spans(line, is_copy))
        exchanges.append(spans(line, is_exchange))
        rows, ids = line.with_number("correlation_id")
        rows, ids = rows[is_kernel[rows]], ids[is_kernel[rows]]
        launched.append((ids, line.start_ps[rows], line.end_ps[rows]))
    computing, copying, exchanging = merged(kernels), merged(copies), merged(exchanges)
    made.copy_ms, made.copy_hidden = hidden(copying, computing)
    made.exchange_ms, made.exchange_hidden = hidden(exchanging, computing)
    if not len(computing[0]):
        return made
    window = int(computing[0][0]), int(max(computing[1][-1], *exchanging[1][-1:], 0))
    if len(marked[0]) and marked[0][0] < window[0]:  # the first step's wait for data counts too
        window = int(marked[0][0]), window[1]
    made.window_ms = (window[1] - window[0]) / 1e9
    made.busy_ms = total(intervals.clip(computing, window)) / 1e9
    made.idle_ms = made.window_ms - made.busy_ms
    add_gaps(made, intervals.gaps(computing, window), host_side, copying, exchanging)
    add_launches(made, launched, host_side)
    return made


def hidden(work: Intervals, computing: Intervals) -> tuple[float, float | None]:
    """How long it took, and which share of that the device computed meanwhile."""
    length = total(work)
    return length / 1e9, intervals.both(work, computing) / length if length else None


def add_gaps(
    made: Device, idle: Intervals, host: HostSide, copying: Intervals, exchanging: Intervals
) -> None:
    sets = {**host.activities, "copy": copying}
    sets["exchange"] = merged([sets["exchange"], exchanging])
    classes = [sets[name] for name in ACTIVITIES if name != "nothing"]
    table, length = intervals.first_of(classes, idle) / 1e9, idle[1] - idle[0]
    made.waiting_ms = dict(zip(ACTIVITIES, table.sum(axis=0).tolist()))
    low = 0.0
    for most, title in SIZES:
        chosen = (length >= low * 1e6) & (length < most * 1e6)
        host_ms = dict(zip(ACTIVITIES, table[chosen].sum(axis=0).tolist()))
        total_ms = float(length[chosen].sum()) / 1e9
        made.gaps.append(GapClass(title, int(chosen.sum()), total_ms, host_ms))
        low = most


def add_launches(made: Device, launched: list[tuple], host: HostSide) -> None:
    """Each kernel beside the call on the host that launched it."""
    ids, begins, ends = (np.concatenate(part) for part in zip(*launched))
    if not len(ids) or not host.launches:
        return
    known, called, returned = (np.concatenate(part) for part in zip(*host.launches))
    order = np.argsort(known, kind="stable")
    known, called, returned = known[order], called[order], returned[order]
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    found = known[place] == ids
    if not found.any():
        return
    begins, ends, place = begins[found], ends[found], place[found]
    called, returned = called[place], returned[place]
    made.kernel_us = float(np.median(ends - begins)) / 1e6
    made.launch_us = float(np.median(returned - called)) / 1e6
    made.launch_delay_us = float(np.median(begins - called)) / 1e6
    made.shorter_than_launch = float(np.mean(ends - begins < returned - called))
    begun_before = np.argsort(np.argsort(begins, kind="stable"))
    waiting = np.searchsorted(np.sort(called), begins) - begun_before
    made.queue = float(np.median(np.maximum(0, waiting - 1)))
