"""The recorded events: as a Chrome trace for Perfetto, and packed for the page's timeline."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfworkshop.report.gaps import DEVICE, own_lines
from tfworkshop.report.layers import short_name
from tfworkshop.report.recording import Host
from tfworkshop.report.xspace import Line, Plane

MOST_EVENTS = 200_000  # in the page; the longest are kept
CHUNK = 50_000  # events whose details are read at a time
FIRST = ("Steps", "TensorFlow Name Scope", "TensorFlow Ops")
OPERATION = ("tf_op", "annotation", "hlo_op")  # what tells a kernel's operation, the best first
MOST_KERNELS = 100_000  # with more, a lane of operations would be as long as the kernels'
Event = tuple[int, int, str, str]  # start, length, name, detail
TOLD = ("annotation", "tf_op", "kernel_details", "hlo_op", "memcpy_details", "shape")


def planes(host: Host) -> list[Plane]:
    """Devices first, then the host's threads; what holds no events only if it is a device."""
    chosen = [p for p in host.space.planes if DEVICE.match(p.name) or any(map(len, p.lines))]
    return sorted(chosen, key=lambda plane: not DEVICE.match(plane.name))


def lanes(plane: Plane) -> list[Line]:
    """Threads and streams in the order to show them: the program's own thread first."""

    def key(line: Line) -> tuple:
        rank = FIRST.index(line.name) if line.name in FIRST else 3 - line.name.startswith("py")
        parts = re.split(r"(\d+)", line.name)  # every other one is a number
        return rank, [int(part) if i % 2 else part for i, part in enumerate(parts)]

    return sorted((line for line in plane.lines if len(line)), key=key)


def title(host: Host, plane: Plane, several: bool) -> str:
    return f"{host.name} {plane.name}" if several else plane.name


# --- the file for Perfetto and chrome://tracing ---


def chrome_events(hosts: list[Host]) -> Iterator[str]:
    """Every event that was recorded, with all that is told of it, as JSON."""
    pid = 0
    for host in hosts:
        numbers = {marker.start_ps: marker.name for marker in host.markers()}
        for plane in planes(host):
            pid += 1
            yield named("process_name", pid, 0, name=title(host, plane, len(hosts) > 1))
            yield named("process_sort_index", pid, 0, sort_index=pid)
            names = {i: json.dumps(shown) for i, shown in plane.event_names.items()}
            for tid, line in enumerate(lanes(plane), 1):
                yield named("thread_name", pid, tid, name=line.name)
                yield named("thread_sort_index", pid, tid, sort_index=tid)
                yield from line_events(line, names, f'"pid":{pid},"tid":{tid}', numbers)


def line_events(
    line: Line, names: dict[int, str], place: str, markers: dict[int, str]
) -> Iterator[str]:
    for first in range(0, len(line), CHUNK):
        rows = np.arange(first, min(first + CHUNK, len(line)))
        told: list[dict[str, object]] = [{} for _ in rows]
        for i, name in enumerate(line.name_id[rows].tolist()):
            if name in line.plane.full_names:
                told[i]["long_name"] = line.plane.full_names[name]
        for i, name, value in line.plane.by_event(line.stats(rows)):
            told[i][name] = value
        columns = (line.name_id, line.start_ps, line.duration_ps)
        for args, name, start, length in zip(told, *(c[rows].tolist() for c in columns)):
            shown = names.get(name, '""')
            if "step_num" in args and start in markers:
                shown = json.dumps(markers[start])
            kind = f'"ph":"X","dur":{length / 1e6}' if length else '"ph":"i","s":"t"'
            more = f',"args":{json.dumps(args)}' if args else ""
            yield f'{{"name":{shown},{place},"ts":{start / 1e6},{kind}{more}}}'


def named(what: str, pid: int, tid: int, **args: object) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def write_chrome(hosts: list[Host], path: Path, name: Path) -> None:
    """Packed if its final name says so; path may be a temporary one."""
    opener = gzip.open(path, "wt", 4, "utf-8") if name.suffix == ".gz" else path.open("w")
    with opener as file:
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


@cache
def shown(name: str) -> str:
    """A kernel by the part of its C++ name that tells it from others; the rest as it is."""
    return short_name(name) if name.startswith("void ") else name


def told_events(line: Line, shortest: int, markers: dict[int, str]) -> Iterator[Event]:
    """Those that are long enough."""
    rows = np.flatnonzero((line.duration_ps > 0) & (line.duration_ps >= shortest))
    ids, full_names = line.name_id[rows].tolist(), line.plane.full_names
    details = [[full_names[i]] if i in full_names else [] for i in ids]
    starts, lengths = line.start_ps[rows].tolist(), line.duration_ps[rows].tolist()
    names = [shown(line.plane.event_names.get(i, "")) for i in ids]
    for i, stat, value in line.plane.by_event(line.stats(rows)):
        if stat in TOLD and value:
            details[i].append(str(value))
        elif stat == "step_num" and starts[i] in markers:
            names[i] = markers[starts[i]]
    return zip(starts, lengths, names, map("  ".join, details))


def operations(plane: Plane) -> Iterator[Event]:
    """A device's kernels joined to the operations that they belong to: neighbours of one are one.

    Nothing where the profile has such a lane already.
    """
    if not DEVICE.match(plane.name) or any(ln.name == "TensorFlow Ops" for ln in plane.lines):
        return
    kernels: list[tuple[int, int, str]] = []
    for line in own_lines(plane):
        rows = np.flatnonzero(line.duration_ps > 0)
        if len(rows) > MOST_KERNELS:
            return
        told = zip(*(line.texts(stat, rows) for stat in OPERATION))
        for start, end, names in zip(line.start_ps[rows], line.end_ps[rows], told):
            name = next(filter(None, names), "").partition(":")[0]
            if name:
                kernels.append((int(start), int(end), name))
    kernels.sort(key=lambda kernel: kernel[0])
    for name, neighbours in itertools.groupby(kernels, key=lambda kernel: kernel[2]):
        starts, ends, _ = zip(*neighbours)
        yield starts[0], max(ends) - starts[0], name, ""


def timeline(hosts: list[Host], most: int = MOST_EVENTS) -> dict[str, Any]:
    """Rows of [start, duration, name, detail], starts as differences, times in nanoseconds."""
    lines = [line for host in hosts for plane in planes(host) for line in lanes(plane)]
    filled = [line for line in lines if (line.duration_ps > 0).any()]
    if not filled:
        return {"processes": [], "strings": [], "steps": [], "length": 0, "view": [0, 0]}
    lengths = np.concatenate([line.duration_ps[line.duration_ps > 0] for line in filled])
    whole, shortest = len(lengths), 0
    if whole > most:
        shortest = int(np.partition(lengths, whole - most)[whole - most])
    kept = int((lengths >= shortest).sum())
    zero = min(int(line.start_ps[line.duration_ps > 0].min()) for line in filled)
    length = (max(int(line.end_ps.max()) for line in filled) - zero) // 1000
    strings: dict[str, int] = {"": 0}  # names repeat in every step: each is stored once

    def packed(lane: str, events: Iterable[Event]) -> dict[str, Any]:
        spans = []
        for start, long, *texts in events:
            numbers = [strings.setdefault(text, len(strings)) for text in texts]
            spans.append(Span((start - zero) // 1000, max(1, long // 1000), *numbers))
        return {"name": lane, "rows": [pack(row) for row in stack(spans)]}

    processes, steps = [], []
    for host in hosts:
        markers = {marker.start_ps: marker.name for marker in host.markers()}
        marked = step_spans(host)
        steps = steps or [[name, (at - zero) // 1000, (to - at) // 1000] for name, at, to in marked]
        for plane in planes(host):
            found = [packed("Operations", operations(plane))]
            for line in lanes(plane):
                found.append(packed(line.name, told_events(line, shortest, markers)))
            name = title(host, plane, len(hosts) > 1)
            processes.append({"name": name, "lanes": [lane for lane in found if lane["rows"]]})
    return {
        "processes": processes,
        "strings": list(strings),
        "steps": steps,
        "length": length,
        "view": first_view(steps, length),
        "events": kept,
        "left_out": whole - kept,
        "starts_ms": zero / 1e9,
    }


def first_view(steps: list[list], length: int) -> list[float]:
    """What the timeline shows first: the steps; where they are far apart, the longest of them."""
    if not steps:
        return [0, length]
    first, last = steps[0][1], max(at + long for _, at, long in steps)
    if sum(long for *_, long in steps) < 0.3 * (last - first):
        _, first, long = max(steps, key=lambda step: step[2])
        last = first + long
    margin = 0.01 * (last - first)
    return [max(0.0, first - margin), min(float(length), last + margin)]


def step_spans(host: Host) -> list[tuple[str, int, int]]:
    """The program's own markers; where it has none, the steps that a device's plane tells."""
    markers = [(marker.name, marker.start_ps, marker.end_ps) for marker in host.markers()]
    if markers:
        return markers
    spans = []
    for line in (line for plane in planes(host) for line in lanes(plane) if line.name == "Steps"):
        spans += zip(line.names(), line.start_ps.tolist(), line.end_ps.tolist())
    return sorted(spans, key=lambda span: span[1])


def pack(row: list[Span]) -> list[list[int]]:
    starts, *columns = zip(*row)
    return [[at - before for before, at in zip((0, *starts), starts)], *map(list, columns)]
