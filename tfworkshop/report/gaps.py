"""Where a device waits: the gaps between its kernels, and what the host did in them."""

from __future__ import annotations

import numpy as np

from tfworkshop.report import intervals, names
from tfworkshop.report.activity import HostActivity, spans
from tfworkshop.report.intervals import Intervals, merged, total
from tfworkshop.report.profile import Device, GapClass
from tfworkshop.report.recording import Host, device_lines, kernel_rows
from tfworkshop.report.steps import Span
from tfworkshop.report.xspace import Plane

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
Launched = list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # id, start and end of kernels


def devices(host: Host, activity: HostActivity, steps: list[Span]) -> list[Device]:
    """Each device of a host."""
    result = [device(host.name, plane, activity, steps) for plane in host.devices]
    for item in result:
        item.recorded_ms = max(host.recorded_ms(), item.window_ms)
    return result


def device(host: str, plane: Plane, activity: HostActivity, steps: list[Span]) -> Device:
    result = Device(host, plane.name.split(" ")[0])
    kernels, copies, exchanges = [], [], []
    launched: Launched = []
    for line in device_lines(plane):
        is_kernel, is_copy = kernel_rows(line), line.matches(names.COPY)
        result.kernels += int(is_kernel.sum())
        result.copies += int(is_copy.sum())
        kernels.append(spans(line, is_kernel))
        copies.append(spans(line, is_copy))
        exchanges.append(spans(line, line.matches(names.EXCHANGE) & ~is_copy))
        rows, ids = line.numbers("correlation_id")
        rows, ids = rows[is_kernel[rows]], ids[is_kernel[rows]]
        launched.append((ids, line.start_ps[rows], line.end_ps[rows]))
    computing, copying, exchanging = merged(kernels), merged(copies), merged(exchanges)
    result.copy_ms, result.copy_hidden = hidden(copying, computing)
    result.exchange_ms, result.exchange_hidden = hidden(exchanging, computing)
    if not total(computing):
        return result
    window = int(computing[0][0]), int(max(computing[1][-1], *exchanging[1][-1:], 0))
    if steps and steps[0].start_ps < window[0]:  # the first step's wait for data counts too
        window = steps[0].start_ps, window[1]
    result.window_ms = (window[1] - window[0]) / 1e9
    result.busy_ms = total(intervals.clip(computing, window)) / 1e9
    result.idle_ms = result.window_ms - result.busy_ms
    add_gaps(result, intervals.gaps(computing, window), activity, copying, exchanging)
    add_launches(result, launched, activity)
    return result


def hidden(work: Intervals, computing: Intervals) -> tuple[float, float | None]:
    """How long it took in ms, and the share of it in which the device also computed."""
    length = total(work)
    return length / 1e9, intervals.both(work, computing) / length if length else None


def add_gaps(
    result: Device,
    idle: Intervals,
    activity: HostActivity,
    copying: Intervals,
    exchanging: Intervals,
) -> None:
    sets = {name: activity[name] for name in ACTIVITIES if name != "nothing"}
    sets["copy"] = copying
    sets["exchange"] = merged([activity["exchange"], exchanging])
    table, length = intervals.first_of(list(sets.values()), idle) / 1e9, idle[1] - idle[0]
    result.waiting_ms = dict(zip(ACTIVITIES, table.sum(axis=0).tolist()))
    low = 0.0
    for most, title in SIZES:
        chosen = (length >= low * 1e6) & (length < most * 1e6)
        host_ms = dict(zip(ACTIVITIES, table[chosen].sum(axis=0).tolist()))
        total_ms = float(length[chosen].sum()) / 1e9
        result.gaps.append(GapClass(title, int(chosen.sum()), total_ms, host_ms))
        low = most


def add_launches(result: Device, launched: Launched, activity: HostActivity) -> None:
    """Compare each kernel with the call on the host that launched it.

    Kernels of a CUDA graph have no call of their own: they share the graph's, or have none.
    """
    ids, begins, ends = (np.concatenate(part) for part in zip(*launched))
    if not len(ids) or not activity.launches:
        result.from_graphs = 1.0 if activity.graph_launches else 0.0
        return
    known, called, returned = (np.concatenate(part) for part in zip(*activity.launches))
    order = np.argsort(known, kind="stable")
    known, called, returned = known[order], called[order], returned[order]
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    has_launch = known[place] == ids
    if activity.graph_launches:
        _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        has_launch &= counts[inverse] == 1
        result.from_graphs = float(np.mean(~has_launch))
    if not has_launch.any():
        return
    begins, ends, place = begins[has_launch], ends[has_launch], place[has_launch]
    called, returned = called[place], returned[place]
    result.kernel_us = float(np.median(ends - begins)) / 1e6
    result.launch_us = float(np.median(returned - called)) / 1e6
    result.shorter_than_launch = float(np.mean(ends - begins < returned - called))
    begun_before = np.argsort(np.argsort(begins, kind="stable"))
    waiting = np.searchsorted(np.sort(called), begins) - begun_before
    result.queue = float(np.median(np.maximum(0, waiting - 1)))
