"""tf.data: which part of an input pipeline its slowest call waited for."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tfworkshop.report import intervals, names
from tfworkshop.report.intervals import Intervals, merged
from tfworkshop.report.profile import Bottleneck
from tfworkshop.report.recording import Host
from tfworkshop.report.xspace import Line

SLOW_US = 50  # a call that takes longer is worth looking at, as in TensorFlow's own analysis
SUGGESTIONS = (  # by the last part of an iterator's name
    ("ParallelMap", "Its function is the work: make it cheaper, cache() its result, more cores."),
    ("MapAndBatch", "Its function is the work: make it cheaper, cache() before it, more cores."),
    ("Map", "num_parallel_calls=tf.data.AUTOTUNE; cache() after it if its result does not change."),
    ("ParallelInterleave", "Reading is the work: larger files, a faster file system, cache()."),
    ("Interleave", "num_parallel_calls=tf.data.AUTOTUNE."),
    ("Prefetch", "What it prefetches is too slow: look at the iterators before it."),
    ("Batch", "num_parallel_calls=tf.data.AUTOTUNE, or batch before map and map whole batches."),
    ("Generator", "Python makes each element: yield whole batches, or read with tf.data itself."),
    ("Shuffle", "Shuffle indices or file names, not the data; a smaller buffer."),
    ("TFRecord", "Read several files at once: interleave with num_parallel_calls."),
)
Calls = dict[str, list[tuple[Line, np.ndarray]]]


def bottlenecks(host: Host) -> list[Bottleneck]:
    """One for each pipeline of which a call was slow."""
    calls = iterator_calls(host)
    result = []
    for root in [name for name in calls if parent(name, calls) is None]:
        slowest = slowest_call(calls[root])
        if slowest[1] - slowest[0] < SLOW_US * 1e6:
            continue
        own = {name: own_time(name, calls, slowest) for name in calls if name.startswith(root)}
        worst = max(own, key=lambda name: own[name])
        found = Bottleneck(
            host=host.name,
            pipeline=root,
            slowest_call_ms=(slowest[1] - slowest[0]) / 1e9,
            iterator=worst,
            iterator_ms=own[worst] / 1e9,
            suggestion=suggestion(worst),
        )
        result.append(found)
    return sorted(result, key=lambda item: -item.slowest_call_ms)


def iterator_calls(host: Host) -> Calls:
    """The calls of each iterator, by its long name: Iterator::Root::Prefetch::Map."""
    calls: Calls = defaultdict(list)
    for line in host.threads:
        rows = np.flatnonzero(line.matches(names.INPUT) & (line.end_ps > line.start_ps))
        for index in np.unique(line.event_name[rows]).tolist():
            parsed = names.parse_operation(line.plane.full_names[index])
            if parsed and parsed[1] == names.DATASET:
                calls[parsed[0]].append((line, rows[line.event_name[rows] == index]))
    return dict(calls)


def parent(name: str, calls: Calls) -> str | None:
    above = name.rpartition("::")[0]
    while above:
        if above in calls:
            return above
        above = above.rpartition("::")[0]
    return None


def slowest_call(calls: list[tuple[Line, np.ndarray]]) -> tuple[int, int]:
    longest = (0, 0)
    for line, rows in calls:
        row = rows[np.argmax(line.duration_ps[rows])]
        span = int(line.start_ps[row]), int(line.end_ps[row])
        if span[1] - span[0] > longest[1] - longest[0]:
            longest = span
    return longest


def own_time(name: str, calls: Calls, window: tuple[int, int]) -> int:
    """How long, within the window, this iterator ran and none of those that feed it."""

    def running(iterator: str) -> Intervals:
        parts = [
            intervals.union(line.start_ps[rows], line.end_ps[rows])
            for line, rows in calls[iterator]
        ]
        return intervals.clip(merged(parts), window)

    below = merged(running(other) for other in calls if parent(other, calls) == name)
    return intervals.total(intervals.without(running(name), below))


def suggestion(iterator: str) -> str:
    last = iterator.rpartition("::")[2]
    for kind, text in SUGGESTIONS:
        if kind in last:
            return text
    return "See tensorflow.org/guide/data_performance."
