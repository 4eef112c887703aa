"""When a host launched, waited, read input, compiled, computed or ran Python; and every launch."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.intervals import NONE, Intervals, merged, union, without
from tfworkshop.report.recording import Host
from tfworkshop.report.xspace import Line

TRACED = "traced"  # how the stat tf_function_call of a call that traced begins


class HostActivity:
    """What a host did, as intervals in which nothing is counted twice."""

    def __init__(self, host: Host) -> None:
        launches: list[np.ndarray] = [np.zeros((3, 0), np.int64)]
        self.graph_launches = 0
        found: dict[str, list[Intervals]] = defaultdict(list)
        for line in host.threads:
            self.add_line(line, found, launches)
        joined = np.concatenate(launches, axis=1)
        # Id, start and end of every launch, sorted by the id.
        self.launches = joined[:, np.argsort(joined[0], kind="stable")]
        self.sets: dict[str, Intervals] = {name: merged(parts) for name, parts in found.items()}

    def __getitem__(self, name: str) -> Intervals:
        return self.sets.get(name, NONE)

    def launches_of(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which kernels have a launch, given their ids; and when those launches started and ended.

        Kernels and launches carry the same correlation id.
        """
        known, called, returned = self.launches
        if not len(known):
            return np.zeros(len(ids), bool), known, known
        place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        has_launch = known[place] == ids
        place = place[has_launch]
        return has_launch, called[place], returned[place]

    def add_line(
        self, line: Line, found: dict[str, list[Intervals]], launches: list[np.ndarray]
    ) -> None:
        """Sort the events of one thread into activities, which may overlap."""
        waits = spans(line, line.matches(names.WAIT))
        exchange = spans(line, line.matches(names.EXCHANGE))
        found["wait"].append(waits)
        found["exchange"].append(exchange)
        for_input = bool(names.INPUT_THREAD.match(line.name))
        is_input = line.matches(names.INPUT)
        if not for_input or names.FETCHING_THREAD.match(line.name):
            found["input"].append(spans(line, is_input))
        if for_input:
            return
        launching, ids = line.numbers("correlation_id")
        launches.append(np.stack((ids, line.start_ps[launching], line.end_ps[launching])))
        self.graph_launches += int(line.matches(names.GRAPH_LAUNCH).sum())
        around = line.matches(names.NO_WORK)  # a function's own part of a call is Python
        around[line.rows_with("step_num")] = True
        around[line.rows_with("tf_function_call")] = True
        self.add_compiling(line, found)
        found["compute"].append(spans(line, is_operation(line) & ~is_input))
        found["work"].append(spans(line, ~around))
        is_launch = line.matches(names.EXECUTOR)
        is_launch[launching] = True
        found["prepare"].append(spans(line, is_launch))
        if names.PROGRAM_THREAD.match(line.name):
            runtime = line.matches(names.RUNTIME)
            runtime[launching] = True
            found["launch"].append(without(spans(line, runtime), waits))
            found["python"].append(spans(line, ~runtime))
        elif len(launching) or names.LAUNCHING_THREAD.match(line.name):
            found["launch"].append(without(spans(line, slice(None)), waits))

    def add_compiling(self, line: Line, found: dict[str, list[Intervals]]) -> None:
        """XLA's compiler, and tf.functions that are traced: the call without its execution."""
        found["compile"].append(spans(line, line.matches(names.COMPILING)))
        calls = line.rows_with("tf_function_call")
        if len(calls):
            traced = [kind.startswith(TRACED) for kind in line.texts("tf_function_call", calls)]
            tracing = spans(line, calls[np.array(traced, bool)])
            executing = spans(line, line.matches(names.NO_WORK))
            found["compile"].append(without(tracing, executing))


def spans(line: Line, chosen: np.ndarray | slice) -> Intervals:
    return union(line.start_ps[chosen], line.end_ps[chosen])


def is_operation(line: Line) -> np.ndarray:
    """Which events are operations: TensorFlow's by their names, XLA's by their stat."""
    known = [names.parse_operation(name) is not None for name in line.plane.full_names]
    result = np.array(known, bool)[line.event_name]
    result[line.rows_with("hlo_op")] = True
    return result
