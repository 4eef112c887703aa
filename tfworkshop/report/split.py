"""Where a step's time goes: every moment counts once, for the first class that covers it.

The classes and their order are those of TensorFlow's own analysis, with three differences: tracing
and XLA's compiler count as compilation, frames of the Python tracer are not computing, and markers
need not be roots.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict

import numpy as np

from tfworkshop.report import intervals, names
from tfworkshop.report.activity import HostActivity, spans
from tfworkshop.report.intervals import Intervals, merged
from tfworkshop.report.profile import LABELS, HostSteps, Step, Steps
from tfworkshop.report.recording import Host, Span, device_lines, kernel_rows

LAG = 0.1  # from this share above the median host on, a host is a straggler


def classes(host: Host, activity: HostActivity) -> list[tuple[str, Intervals]]:
    """The parts of a step in the order in which they count."""
    lines = [line for plane in host.devices for line in device_lines(plane)]
    launching = activity["prepare"] if lines else intervals.NONE
    if host.is_ideal:
        lines = []  # its kernels and copies take no time

    def on_devices(pattern: re.Pattern[str]) -> Intervals:
        return merged(spans(line, line.matches(pattern)) for line in lines)

    return [
        ("device_compute", merged(spans(line, kernel_rows(line)) for line in lines)),
        ("output", on_devices(names.TO_HOST)),
        ("device_to_device", on_devices(names.DEVICE_TO_DEVICE)),
        ("input", activity["input"]),
        ("collectives", on_devices(names.EXCHANGE)),
        ("compilation", activity["compile"]),
        ("kernel_launch", launching),
        ("input", on_devices(names.TO_DEVICE)),
        ("host_compute", activity["work"]),
    ]


def split_steps(host: Host, activity: HostActivity, windows: list[Span]) -> list[Step]:
    parts = classes(host, activity)
    has_device = any(key == "device_compute" and len(part[0]) for key, part in parts)
    result = []
    for window in windows:
        bounds = window.start_ps, window.end_ps
        length = window.end_ps - window.start_ps
        if length <= 0:
            continue
        clipped = [intervals.clip(part, bounds) for _, part in parts]
        whole = (np.array([bounds[0]]), np.array([bounds[1]]))
        row = intervals.first_of(clipped, whole)[0] / 1e9
        split = dict.fromkeys(LABELS, 0.0)
        for (key, _), spent in zip(parts, row.tolist()):
            split[key] += spent
        split["other"] = float(row[-1])
        alone = split["input"]
        if not has_device:
            waiting = intervals.clip(activity["input"], bounds)
            computing = intervals.clip(activity["compute"], bounds)
            alone = intervals.total(intervals.without(waiting, computing)) / 1e9
        result.append(Step(window.name, length / 1e9, split, alone))
    return result


# --- several hosts ---


def join(hosts: list[list[Step]]) -> list[Step]:
    """Step by step the mean of the hosts that have it: their clocks need not agree."""
    if len(hosts) == 1:
        return hosts[0]
    by_name: dict[str, list[Step]] = defaultdict(list)
    for step in (step for steps in hosts for step in steps):
        by_name[step.name].append(step)
    result = []
    for name, steps in by_name.items():
        mean = Steps.of(steps)
        result.append(Step(name, mean.average_ms or 0.0, mean.split, mean.input_alone_ms))
    return result


def compare_hosts(hosts: list[tuple[str, list[Step]]]) -> tuple[list[HostSteps], list[str]]:
    """A row for each host, and a note on the straggler if there is one.

    A host's own work is the step without the exchange, in which a fast host waits for a slow one.
    """
    rows = []
    for name, per_step in hosts:
        steps = Steps.of(per_step)
        own = [s.total_ms - s.split["collectives"] - s.split["device_to_device"] for s in per_step]
        own_ms = statistics.median(own) if own else None
        rows.append(HostSteps(name, steps.count, steps.median_ms, steps.share("input"), own_ms))
    middle = statistics.median([row.own_ms for row in rows if row.own_ms] or [0.0])
    for row in rows:
        if row.own_ms and middle:
            row.lag = row.own_ms / middle - 1
    slowest = max(rows, key=lambda row: row.lag or 0.0)
    if not slowest.lag or slowest.lag < LAG:
        return rows, []
    note = (
        f"{slowest.host} is the straggler: {slowest.own_ms:.1f} ms of its own work a step, "
        f"{middle:.1f} on the median host. In synchronous training all wait for it."
    )
    return rows, [note]
