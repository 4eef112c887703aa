"""Finding the steps: by markers with a number, by a device's own line, or by what repeats."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.activity import HostActivity
from tfworkshop.report.figures import percent
from tfworkshop.report.intervals import both, joined
from tfworkshop.report.recording import Host, Span, device_lines
from tfworkshop.report.xspace import Line

FEWEST_CALLS = 4  # of one function: fewer do not make a loop
GAP = 0.1  # of a step between two markers: from here on it is worth a note


@dataclass
class FoundSteps:
    spans: list[Span] = field(default_factory=list)
    source: str = "none"
    basis: str = ""
    notes: list[str] = field(default_factory=list)


def find_steps(host: Host, activity: HostActivity) -> FoundSteps:
    """Markers first, then the device's own steps, then what repeats."""
    found = by_markers(host, activity) or by_device(host) or by_repetition(host, activity)
    return found or FoundSteps()


# --- markers ---


def by_markers(host: Host, activity: HostActivity) -> FoundSteps | None:
    """The markers of one name: of several names the roots, and then those that cover most time."""
    by_name: dict[str, list[Span]] = defaultdict(list)
    for marker in host.markers():
        by_name[marker.name.rpartition(" ")[0]].append(marker)
    if not by_name:
        return None

    def importance(name: str) -> tuple[bool, int]:
        spans = by_name[name]
        return spans[0].is_root, sum(span.end_ps - span.start_ps for span in spans)

    basis = max(by_name, key=importance)
    spans = without_duplicates(by_name[basis])
    found = FoundSteps(spans, "markers", basis)
    others = []
    for name, rest in by_name.items():
        if not overlap(rest, spans):  # else they mark the same steps
            others.append(f"{len(rest)} of {name}")
    if others:
        found.notes.append(
            f"Several kinds of steps are marked: these are the {len(spans)} of {basis}. "
            f"Not counted: {', '.join(others)}."
        )
    found.notes += unmarked_time(spans, activity)
    on_device = device_spans(host, activity, spans)
    for span, (start, end) in zip(spans, on_device):
        if end > start and not (span.start_ps <= start and end <= span.end_ps):
            span.start_ps, span.end_ps = start, end  # the device goes on after the host's marker
    return found


def overlap(a: list[Span], b: list[Span]) -> bool:
    """Whether any two of them run at the same time."""
    first, second = (joined((span.start_ps, span.end_ps) for span in side) for side in (a, b))
    return both(first, second) > 0


def without_duplicates(spans: list[Span]) -> list[Span]:
    """Join markers of one step that several threads set at the same time."""
    result: list[Span] = []
    for span in spans:
        if result and result[-1].name == span.name and span.start_ps < result[-1].end_ps:
            result[-1].end_ps = max(result[-1].end_ps, span.end_ps)
        else:
            result.append(span)
    return result


def unmarked_time(spans: list[Span], activity: HostActivity) -> list[str]:
    """Time between two steps that no marker covers may hold the fetching of a batch."""
    between = [(a.end_ps, b.start_ps) for a, b in pairwise(spans) if b.start_ps > a.end_ps]
    if not between:
        return []
    middle = float(np.median([end - start for start, end in between])) / 1e9
    step = float(np.median([span.end_ps - span.start_ps for span in spans])) / 1e9
    if middle < GAP * step:
        return []
    starts, ends = activity["input"]
    waited = sum(
        float(np.clip(np.minimum(ends, last) - np.maximum(starts, first), 0, None).sum())
        for first, last in between
    )
    note = f"Between two steps {middle:.2f} ms pass that no marker covers"
    if waited / 1e9 > GAP * step * len(between):
        note += f", {waited / 1e9 / len(between):.2f} ms of them waiting for data"
    return [f"{note}: the step time does not contain them."]


# --- the device ---


def by_device(host: Host) -> FoundSteps | None:
    """A profile may carry a line of steps for each device; the longest of each name counts."""
    longest: dict[str, Span] = {}
    lines = [line for plane in host.devices for line in plane.lines if line.name == "Steps"]
    for line in lines:
        times = line.start_ps.tolist(), line.end_ps.tolist()
        for name, start, end in zip(line.names(np.arange(len(line))), *times):
            known = longest.get(name)
            if known is None or end - start > known.end_ps - known.start_ps:
                longest[name] = Span(name, start, end)
    spans = sorted(longest.values(), key=lambda span: span.start_ps)
    return FoundSteps(spans, "device", "the device's line of steps") if spans else None


def device_spans(host: Host, activity: HostActivity, spans: list[Span]) -> list[tuple[int, int]]:
    """From the first to the last event on a device that each span launched; (0, 0) for none.

    Of several devices the one that took longest counts.
    """
    longest = [(0, 0)] * len(spans)
    begins = np.array([span.start_ps for span in spans])
    for plane in host.devices:
        owners, starts, ends = [], [], []
        for line in device_lines(plane):
            rows, ids = line.numbers("correlation_id")
            has_launch, called, _ = activity.launches_of(ids)
            rows = rows[has_launch]
            owners.append(np.searchsorted(begins, called, side="right") - 1)
            starts.append(line.start_ps[rows])
            ends.append(line.end_ps[rows])
        if not owners:
            continue
        owner, start, end = np.concatenate(owners), np.concatenate(starts), np.concatenate(ends)
        for i in np.unique(owner[owner >= 0]).tolist():
            first, last = int(start[owner == i].min()), int(end[owner == i].max())
            if last - first > longest[i][1] - longest[i][0]:
                longest[i] = first, last
    return longest


# --- what repeats ---


def by_repetition(host: Host, activity: HostActivity) -> FoundSteps | None:
    """Steps from one call of a function to its next: of several functions, the dominant one."""
    calls = module_calls(host) or function_calls(host)
    repeated = {name: spans for name, spans in calls.items() if len(spans) >= FEWEST_CALLS}
    if not repeated:
        return None
    basis = max(repeated, key=lambda name: sum(s.end_ps - s.start_ps for s in repeated[name]))
    spans = repeated[basis]
    starts = [span.start_ps for span in spans]
    on_device = device_spans(host, activity, spans)
    behind = [end > after for (_, end), after in zip(on_device, starts[1:])]
    if any(behind) and all(end for _, end in on_device):
        starts = [start for start, _ in on_device]  # the host only queues: the device sets the pace
    periods = np.diff(starts)
    low, middle, high = np.percentile(periods, (25, 50, 75))
    spread = float((high - low) / middle) if middle else 0.0
    steps = [Span(f"{basis} {i}", a, b) for i, (a, b) in enumerate(pairwise(starts))]
    note = (
        f"Steps are inferred: no marker has a step number, but the function {basis} runs "
        f"{len(spans)} times, every {middle / 1e9:.2f} ms "
        f"(the middle half within {percent(spread)})."
    )
    return FoundSteps(steps, "inferred", basis, [note])


def module_calls(host: Host) -> dict[str, list[Span]]:
    """Runs of XLA's modules, as a device's own line has them."""
    found: dict[str, list[Span]] = defaultdict(list)
    for plane in host.devices:
        for line in plane.lines:
            if line.name == "XLA Modules" and not found:
                add_calls(found, line, np.arange(len(line)))
    return found


def function_calls(host: Host) -> dict[str, list[Span]]:
    """Outermost calls of tf.functions and jitted functions on the program's own threads."""
    found: dict[str, list[Span]] = defaultdict(list)
    for line in host.threads:
        if names.INPUT_THREAD.match(line.name):
            continue
        chosen = line.matches(names.JIT_CALL)
        chosen[line.rows_with("tf_function_call")] = True
        add_calls(found, line, np.flatnonzero(chosen))
    return found


def add_calls(found: dict[str, list[Span]], line: Line, rows: np.ndarray) -> None:
    rows = rows[np.lexsort((-line.end_ps[rows], line.start_ps[rows]))]
    ended = 0
    times = line.start_ps[rows].tolist(), line.end_ps[rows].tolist()
    for name, start, end in zip(line.names(rows), *times):
        if start >= ended:
            name = name.partition("(")[0] if not names.JIT_CALL.match(name) else name[13:-1]
            found[name].append(Span(name, start, end))
            ended = end
