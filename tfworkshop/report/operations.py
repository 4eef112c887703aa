"""Operations by self time: on the host from its threads, on a device from its kernels."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.profile import Operation
from tfworkshop.report.recording import Host, device_lines, kernel_rows
from tfworkshop.report.xspace import Line

Key = tuple[str, str, str]  # name, type and mode
KERNEL_OPERATION = ("tf_op", "annotation", "hlo_op", "hlo_module")  # the best first


@dataclass
class Sum:
    count: int = 0
    spent_ps: int = 0


def operations(hosts: list[Host]) -> list[Operation]:
    on_host: dict[Key, Sum] = defaultdict(Sum)
    on_device: dict[Key, Sum] = defaultdict(Sum)
    for host in hosts:
        for line in host.threads:
            add_thread(on_host, line)
        for plane in host.devices:
            for line in device_lines(plane):
                add_stream(on_device, line)
    result = [*listed(on_device, "device"), *listed(on_host, "host")]
    return sorted(result, key=lambda operation: -operation.self_ms)


def listed(sums: dict[Key, Sum], where: str) -> list[Operation]:
    total = sum(one.spent_ps for one in sums.values()) or 1  # events may all have no length
    return [
        Operation(name, kind, where, mode, one.count, one.spent_ps / 1e9, one.spent_ps / total)
        for (name, kind, mode), one in sums.items()
    ]


# --- the host ---


def add_thread(sums: dict[Key, Sum], line: Line) -> None:
    """TensorFlow's operations and tf.data's iterators, XLA's operations, and eager calls."""
    keys = name_keys(line)
    known = np.array([key is not None for key in keys], bool)
    chosen = known[line.event_name]
    xla = line.rows_with("hlo_op")
    xla = xla[~chosen[xla]]
    chosen[xla] = True
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return
    labels = line.event_name[rows].astype(np.int64)
    if len(xla):  # the same name may occur in several modules
        modules = dict(zip(xla.tolist(), line.texts("hlo_module", xla)))
        for place, row in enumerate(rows.tolist()):
            if row in modules:
                name = line.plane.event_names[line.event_name[row]]
                key = (f"{modules[row]}/{name}", names.TRAILING_NUMBER.sub("", name), "XLA")
                labels[place] = len(keys)
                keys.append(key)
    spent = self_times(line.start_ps[rows], line.end_ps[rows])
    counts = np.bincount(labels, minlength=len(keys))
    totals = np.zeros(len(keys), np.int64)
    np.add.at(totals, labels, spent)
    for label in np.flatnonzero(counts).tolist():
        key = keys[label]
        if key:
            sums[key].count += int(counts[label])
            sums[key].spent_ps += int(totals[label])


def name_keys(line: Line) -> list[Key | None]:
    """For each name that the thread uses the operation that it means."""
    result: list[Key | None] = [None] * len(line.plane.event_names)
    for i in np.unique(line.event_name).tolist():
        display = line.plane.event_names[i]
        parsed = names.parse_operation(line.plane.full_names[i])
        if names.EAGER_OPERATION.match(display):
            kind = display.partition(": ")[2]
            result[i] = (kind, kind, "eager")
        elif parsed:
            mode = "tf.data" if parsed[1] == names.DATASET else "graph"
            result[i] = (*parsed, mode)
    return result


def self_times(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The time of each event without the events that run inside it on the same thread."""
    order = np.lexsort((-ends, starts))
    first, last = starts[order].tolist(), ends[order].tolist()
    own = [end - start for start, end in zip(first, last)]
    around: list[int] = []  # the events that are open, the innermost last
    for i, start in enumerate(first):
        while around and last[around[-1]] <= start:
            around.pop()
        if around:
            own[around[-1]] -= last[i] - start
        around.append(i)
    result = np.zeros(len(starts), np.int64)
    result[order] = np.maximum(0, np.array(own, np.int64))
    return result


# --- devices ---


def add_stream(sums: dict[Key, Sum], line: Line) -> None:
    """Each kernel counts for the operation that it belongs to."""
    rows = np.flatnonzero(kernel_rows(line) & (line.end_ps > line.start_ps))
    calls: dict[tuple[Key, str], int] = defaultdict(int)
    lengths = line.duration_ps[rows].tolist()
    for kernel, key, spent in zip(line.names(rows), kernel_operations(line, rows), lengths):
        if not key[0]:
            continue
        calls[key, kernel] += 1
        sums[key].spent_ps += spent
    most: dict[Key, int] = defaultdict(int)  # an operation ran as often as its most frequent kernel
    for (key, _), count in calls.items():
        most[key] = max(most[key], count)
    for key, count in most.items():
        sums[key].count += count


def kernel_operations(line: Line, rows: np.ndarray) -> list[Key]:
    """The operation of each kernel, by what TensorFlow or XLA annotated it with."""
    result: list[Key] = []
    for tf_op, annotation, hlo_op, module in zip(*line.texts_of(KERNEL_OPERATION, rows)):
        mode = "XLA" if hlo_op else "graph"
        if tf_op:
            result.append((*names.parse_annotation(tf_op), mode))
        elif hlo_op:
            kind = names.TRAILING_NUMBER.sub("", hlo_op)
            result.append((f"{module}/{hlo_op}" if module else hlo_op, kind, mode))
        elif annotation:
            result.append((*names.parse_annotation(annotation), mode))
        else:
            result.append(("", "", mode))
    return result


# --- eager calls ---


def count_eager_calls(hosts: list[Host]) -> int:
    """How many operations Python started one by one; a tf.function counts as one."""
    return sum(int(line.matches(names.EAGER_CALL).sum()) for host in hosts for line in host.threads)
