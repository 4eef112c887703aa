"""Where a device waits: the gaps between its kernels, and what the host did in them."""

from __future__ import annotations

import numpy as np

from tfworkshop.report import intervals, names
from tfworkshop.report.activity import HostActivity, spans
from tfworkshop.report.intervals import Intervals, merged, total
from tfworkshop.report.profile import Device, GapClass
from tfworkshop.report.recording import Host, Span, device_lines, kernel_rows
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


def device(host: Host, plane: Plane, activity: HostActivity, steps: list[Span]) -> Device:
    result = Device(host.name, plane.name.split(" ")[0], recorded_ms=host.recorded_ms())
    kernels, copies, exchanges = [], [], []
    launched: list[np.ndarray] = []
    for line in device_lines(plane):
        is_kernel, is_copy = kernel_rows(line), line.matches(names.COPY)
        result.kernels += int(is_kernel.sum())
        result.copies += int(is_copy.sum())
        kernels.append(spans(line, is_kernel))
        copies.append(spans(line, is_copy))
        exchanges.append(spans(line, line.matches(names.EXCHANGE) & ~is_copy))
        rows, ids = line.numbers("correlation_id")
        rows, ids = rows[is_kernel[rows]], ids[is_kernel[rows]]
        launched.append(np.stack((ids, line.start_ps[rows], line.end_ps[rows])))
    computing, copying, exchanging = merged(kernels), merged(copies), merged(exchanges)
    result.copy_ms, result.copy_hidden = hidden(copying, computing)
    result.exchange_ms, result.exchange_hidden = hidden(exchanging, computing)
    if not total(computing):
        return result
    window = int(computing[0][0]), int(max(computing[1][-1], *exchanging[1][-1:], 0))
    if steps and steps[0].start_ps < window[0]:  # the first step's wait for data counts too
        window = steps[0].start_ps, window[1]
    result.window_ms = (window[1] - window[0]) / 1e9
    result.recorded_ms = max(result.recorded_ms, result.window_ms)
    result.busy_ms = total(intervals.clip(computing, window)) / 1e9
    result.idle_ms = result.window_ms - result.busy_ms
    add_gaps(result, intervals.gaps(computing, window), activity, copying, exchanging)
    add_launches(result, np.concatenate(launched, axis=1), activity)
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


def add_launches(result: Device, kernels: np.ndarray, activity: HostActivity) -> None:
    """Compare each kernel, given by id, start and end, with the call that launched it.

    Kernels of a CUDA graph have no call of their own: they share the graph's, or have none.
    """
    if activity.graph_launches:
        _, inverse, counts = np.unique(kernels[0], return_inverse=True, return_counts=True)
        alone = counts[inverse] == 1
        has_launch, _, _ = activity.launches_of(kernels[0])
        result.from_graphs = 1 - float((alone & has_launch).sum()) / max(1, kernels.shape[1])
        kernels = kernels[:, alone]
    has_launch, called, returned = activity.launches_of(kernels[0])
    if not has_launch.any():
        return
    _, begins, ends = kernels[:, has_launch]
    result.kernel_us = float(np.median(ends - begins)) / 1e6
    result.launch_us = float(np.median(returned - called)) / 1e6
    result.shorter_than_launch = float(np.mean(ends - begins < returned - called))
    begun_before = np.argsort(np.argsort(begins, kind="stable"))
    waiting = np.searchsorted(np.sort(called), begins) - begun_before
    result.queue = float(np.median(np.maximum(0, waiting - 1)))
