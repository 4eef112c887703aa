"""The recorded events: as a Chrome trace for Perfetto, and packed for the page's timeline."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.activity import HostActivity
from tfworkshop.report.operations import kernel_operations
from tfworkshop.report.recording import Host, device_lines
from tfworkshop.report.steps import find_steps
from tfworkshop.report.xspace import Line, Plane

MOST_EVENTS = 200_000  # in the page; the longest are kept
FIRST = ("Steps", "TensorFlow Name Scope", "TensorFlow Ops")
Event = tuple[int, int, str, str]  # start, length, name, detail
DETAILS = ("annotation", "tf_op", "kernel_details", "hlo_op", "memcpy_details", "shape")


def planes(host: Host) -> list[Plane]:
    """Devices first, then the host's threads; what holds no events only if it is a device."""
    chosen = [p for p in host.space.planes if names.DEVICE.match(p.name) or any(map(len, p.lines))]
    return sorted(chosen, key=lambda plane: not names.DEVICE.match(plane.name))


def lanes(plane: Plane) -> list[Line]:
    """Threads and streams in the order to show them: the program's own thread first."""

    def key(line: Line) -> tuple[int, list[str | int]]:
        rank = FIRST.index(line.name) if line.name in FIRST else 3 - line.name.startswith("py")
        parts = re.split(r"(\d+)", line.name)  # every other one is a number
        return rank, [int(part) if i % 2 else part for i, part in enumerate(parts)]

    return sorted((line for line in plane.lines if len(line)), key=key)


# --- the file for Perfetto and chrome://tracing ---


def chrome_events(hosts: list[Host]) -> Iterator[str]:
    """Every event that was recorded, with all its stats, as JSON."""
    pid = 0
    for host in hosts:
        markers = {marker.start_ps: marker.name for marker in host.markers()}
        for plane in planes(host):
            pid += 1
            yield named("process_name", pid, 0, name=f"{host.name} {plane.name}")
            yield named("process_sort_index", pid, 0, sort_index=pid)
            for tid, line in enumerate(lanes(plane), 1):
                yield named("thread_name", pid, tid, name=line.name)
                yield named("thread_sort_index", pid, tid, sort_index=tid)
                yield from line_events(line, pid, tid, markers)


def line_events(line: Line, pid: int, tid: int, markers: dict[int, str]) -> Iterator[str]:
    plane = line.plane
    chosen = line.event_name.tolist()
    stats: list[dict[str, object]] = [{} for _ in chosen]
    for i, stat, value in plane.named_values(line.stats(np.arange(len(line)))):
        stats[i][stat] = value
    starts, lengths = line.start_ps.tolist(), line.duration_ps.tolist()
    for args, number, start, length in zip(stats, chosen, starts, lengths):
        name = plane.event_names[number]
        if plane.full_names[number] != name:
            args["long_name"] = plane.full_names[number]
        if "step_num" in args:
            name = markers.get(start, name)
        event = {"name": name, "pid": pid, "tid": tid, "ts": start / 1e6, "args": args}
        event |= {"ph": "X", "dur": length / 1e6} if length else {"ph": "i", "s": "t"}
        yield json.dumps(event)


def named(what: str, pid: int, tid: int, **args: object) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def write_chrome(hosts: list[Host], path: Path) -> None:
    """Compressed if the file's name says so."""
    packed = path.suffix == ".gz"
    with gzip.open(path, "wt", 4, "utf-8") if packed else path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for i, event in enumerate(chrome_events(hosts)):
            file.write((",\n" if i else "") + event)
        file.write("\n]}\n")


# --- the page's timeline ---


class Span(NamedTuple):
    """An event as the page has it, in nanoseconds since the first."""

    start: int
    length: int
    name: int  # its place among the strings
    detail: int


def stack(spans: list[Span]) -> list[list[Span]]:
    """Rows of events that do not overlap: what runs inside an event goes below it."""
    rows: list[list[Span]] = []
    ends: list[int] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.length)):
        while ends and ends[-1] <= span.start:
            ends.pop()
        depth = len(ends)
        ends.append(span.start + span.length)
        # An event that only partly overlaps its parent must not end a row early.
        while depth < len(rows) and rows[depth][-1].start + rows[depth][-1].length > span.start:
            depth += 1
        if depth == len(rows):
            rows.append([])
        rows[depth].append(span)
    return rows


def line_spans(line: Line, shortest: int, markers: dict[int, str]) -> Iterator[Event]:
    """The events that are long enough, with what is known of each."""
    rows = np.flatnonzero((line.end_ps > line.start_ps) & (line.duration_ps >= shortest))
    plane = line.plane
    chosen = line.event_name[rows].tolist()
    displayed = [short_name(name) for name in plane.event_names]
    titles = [displayed[i] for i in chosen]
    details = [
        [plane.full_names[i]] if plane.full_names[i] != plane.event_names[i] else [] for i in chosen
    ]
    starts, lengths = line.start_ps[rows].tolist(), line.duration_ps[rows].tolist()
    for i, stat, value in plane.named_values(line.stats(rows)):
        if stat in DETAILS and value:
            details[i].append(str(value))
        elif stat == "step_num" and starts[i] in markers:
            titles[i] = markers[starts[i]]
    return zip(starts, lengths, titles, map("  ".join, details))


def short_name(name: str) -> str:
    """A kernel by the part of its C++ name that distinguishes it; other names as they are."""
    return names.short_kernel_name(name) if name.startswith("void ") else name


def operation_spans(plane: Plane) -> Iterator[Event]:
    """A device's kernels joined to operations: neighbours of one operation become one span.

    Nothing if the profile has such a lane already.
    """
    derived = any(line.name == "TensorFlow Ops" for line in plane.lines)
    if derived or not names.DEVICE.match(plane.name):
        return
    kernels: list[tuple[int, int, str]] = []
    for line in device_lines(plane):
        rows = np.flatnonzero(line.end_ps > line.start_ps)
        starts, ends = line.start_ps[rows].tolist(), line.end_ps[rows].tolist()
        for start, end, (name, _, _) in zip(starts, ends, kernel_operations(line, rows)):
            if name:
                kernels.append((start, end, name))
    kernels.sort()
    for name, neighbours in itertools.groupby(kernels, key=lambda kernel: kernel[2]):
        group = list(neighbours)
        yield group[0][0], max(end for _, end, _ in group) - group[0][0], name, ""


def timeline(hosts: list[Host], most: int = MOST_EVENTS) -> dict[str, Any]:
    """Rows of [start, duration, name, detail], starts as differences, times in nanoseconds.

    Clocks of different hosts are not aligned: each host starts at 0.
    """
    lines = [line for host in hosts for plane in planes(host) for line in lanes(plane)]
    lengths = np.concatenate([line.duration_ps for line in lines] or [np.zeros(0, np.int64)])
    lengths = lengths[lengths > 0]
    whole, shortest = len(lengths), 0
    if not whole:
        return {"processes": [], "strings": [], "steps": [], "length": 0, "view": [0, 0]}
    if whole > most:
        shortest = int(np.partition(lengths, whole - most)[whole - most])
    strings: dict[str, int] = {"": 0}  # names repeat in every step: each is stored once
    processes: list[dict[str, Any]] = []
    steps: list[list[Any]] = []
    for host in hosts:
        zero = host.bounds[0]

        def lane(name: str, events: Iterable[Event], zero: int = zero) -> dict[str, Any]:
            spans = []
            for start, long, title, detail in events:
                numbers = [strings.setdefault(text, len(strings)) for text in (title, detail)]
                spans.append(Span((start - zero) // 1000, max(1, long // 1000), *numbers))
            return {"name": name, "rows": [pack(row) for row in stack(spans)]}

        markers = {marker.start_ps: marker.name for marker in host.markers()}
        if not steps:  # of the first host that has any: the same as the report's
            for span in find_steps(host, HostActivity(host)).spans:
                length_ps = span.end_ps - span.start_ps
                steps.append([span.name, (span.start_ps - zero) // 1000, length_ps // 1000])
        for plane in planes(host):
            rows = [lane("Operations", operation_spans(plane))]
            rows += [lane(ln.name, line_spans(ln, shortest, markers)) for ln in lanes(plane)]
            name = f"{host.name} {plane.name}" if len(hosts) > 1 else plane.name
            processes.append({"name": name, "lanes": [one for one in rows if one["rows"]]})
    length = max(host.bounds[1] - host.bounds[0] for host in hosts) // 1000
    kept = int((lengths >= shortest).sum())
    return {
        "processes": processes,
        "strings": list(strings),
        "steps": steps,
        "length": length,
        "view": first_view(steps, length),
        "events": kept,
        "left_out": whole - kept,
    }


def first_view(steps: list[list[Any]], length: int) -> list[float]:
    """What the timeline shows first: the steps; where they are far apart, the longest of them."""
    if not steps:
        return [0, length]
    first, last = steps[0][1], max(at + long for _, at, long in steps)
    if sum(long for *_, long in steps) < 0.3 * (last - first):
        _, first, long = max(steps, key=lambda step: step[2])
        last = first + long
    margin = 0.01 * (last - first)
    return [max(0.0, first - margin), min(float(length), last + margin)]


def pack(row: list[Span]) -> list[list[int]]:
    starts, *columns = zip(*row)
    return [[at - before for before, at in zip((0, *starts), starts)], *map(list, columns)]
