"""The recorded events: as a Chrome trace for Perfetto, and packed for the page's timeline."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tools.report.profile import Converter
from tools.report.tables import short_name

MOST_EVENTS = 100_000  # in the page; the longest are kept
HOST_STRIDE = 10_000  # between the process numbers of two hosts
TOLD = ("long_name", "annotation", "kernel_name", "eager_op", "memcpy_details", "shape")


@dataclass
class Trace:
    """One host's events, as TensorFlow's converter gives them."""

    host: str
    proto: Any

    def process_name(self, device: int, several: bool) -> str:
        name = self.proto.devices[device].name
        return f"{self.host} {name}" if several else name


def read(converter: Converter) -> list[Trace]:
    from tensorboard_plugin_profile.protobuf import trace_events_pb2

    tables = [converter.convert("trace_viewer", i) for i in range(len(converter.hosts))]
    return [
        Trace(host, trace_events_pb2.Trace.FromString(data))
        for host, data in zip(converter.hosts, tables)
        if data is not None
    ]


def markers(traces: list[Trace]) -> int:
    """How many step markers were recorded, whatever TensorFlow could make of them."""
    return sum("step_num" in event.args for trace in traces for event in trace.proto.trace_events)


def eager_calls(traces: list[Trace]) -> int:
    """How many operations Python started one by one; a tf.function counts as one."""
    start = "EagerLocalExecute"
    return sum(e.name.startswith(start) for trace in traces for e in trace.proto.trace_events)


# --- the file for Perfetto and chrome://tracing ---


def chrome_events(traces: list[Trace]) -> Iterator[dict]:
    for i, trace in enumerate(traces):
        for number, device in sorted(trace.proto.devices.items()):
            pid = i * HOST_STRIDE + number
            name = trace.process_name(number, len(traces) > 1)
            yield named("process_name", pid, 0, name=name)
            yield named("process_sort_index", pid, 0, sort_index=pid)
            for order, (tid, lane) in enumerate(lanes(device)):
                yield named("thread_name", pid, tid, name=lane)
                yield named("thread_sort_index", pid, tid, sort_index=order)
        for event in trace.proto.trace_events:
            made = {
                "name": event.name,
                "pid": i * HOST_STRIDE + event.device_id,
                "tid": event.resource_id,
                "ts": event.timestamp_ps / 1e6,
            }
            if event.duration_ps:
                made.update(ph="X", dur=event.duration_ps / 1e6)
            else:
                made.update(ph="i", s="t")
            if event.args:
                made["args"] = dict(event.args)
            yield made


def named(what: str, pid: int, tid: int, **args: object) -> dict:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def write_chrome(traces: list[Trace], path: Path, name: Path) -> None:
    """Packed if its final name says so; path may be a temporary one."""
    opener = gzip.open if name.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for i, event in enumerate(chrome_events(traces)):
            file.write((",\n" if i else "") + json.dumps(event))
        file.write("\n]}\n")


# --- the page's timeline ---


def lanes(device: Any) -> list[tuple[int, str]]:
    """Threads and streams in the order to show them: the program's own thread first."""

    def key(item: tuple[int, str]) -> tuple:
        first = ("Steps", "TensorFlow Name Scope", "TensorFlow Ops")
        rank = first.index(item[1]) if item[1] in first else len(first) - item[1].startswith("py")
        return rank, [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", item[1])]

    named = {tid: resource.name or str(tid) for tid, resource in device.resources.items()}
    return sorted(named.items(), key=key)


def detail(event: Any) -> str:
    """What the pointer shows beside the name: the operation in full, shapes, sizes."""
    return "  ".join(event.args[key] for key in TOLD if key in event.args)


def stack(events: list[Any]) -> list[list[Any]]:
    """Rows of events that do not overlap: what runs inside an event goes below it."""
    rows: list[list[Any]] = []
    ends: list[int] = []
    for event in sorted(events, key=lambda e: (e.timestamp_ps, -e.duration_ps)):
        while ends and ends[-1] <= event.timestamp_ps:
            ends.pop()
        depth = len(ends)
        ends.append(event.timestamp_ps + event.duration_ps)
        # An event that only partly overlaps its parent must not end a row early.
        while depth < len(rows) and overlaps(rows[depth][-1], event):
            depth += 1
        if depth == len(rows):
            rows.append([])
        rows[depth].append(event)
    return rows


def overlaps(earlier: Any, event: Any) -> bool:
    return earlier.timestamp_ps + earlier.duration_ps > event.timestamp_ps


@cache
def shown(name: str) -> str:
    """A kernel by the part of its C++ name that tells it from others; the rest as it is."""
    return short_name(name) if name.startswith("void ") else name


class Strings:
    """Names repeat in every step: each is stored once."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {"": 0}

    def __call__(self, text: str) -> int:
        return self.index.setdefault(text, len(self.index))


def timeline(traces: list[Trace], most: int = MOST_EVENTS) -> dict:
    """Rows of [start, duration, name, detail], starts as differences, times in nanoseconds."""
    spans = [e for trace in traces for e in trace.proto.trace_events if e.duration_ps]
    if not spans:
        return {"processes": [], "strings": [], "steps": [], "length": 0, "left_out": 0}
    shortest = 0
    if len(spans) > most:
        shortest = sorted((e.duration_ps for e in spans), reverse=True)[most - 1]
    zero = min(e.timestamp_ps for e in spans)
    strings, kept, processes = Strings(), 0, []
    for trace in traces:
        by_lane: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for event in trace.proto.trace_events:
            if event.duration_ps and event.duration_ps >= shortest:
                by_lane[event.device_id, event.resource_id].append(event)
                kept += 1
        for number, device in sorted(trace.proto.devices.items()):
            packed = [
                {
                    "name": name,
                    "rows": [pack(row, zero, strings) for row in stack(by_lane[number, tid])],
                }
                for tid, name in lanes(device)
                if by_lane[number, tid]
            ]
            name = trace.process_name(number, len(traces) > 1)
            processes.append({"name": name, "lanes": packed})
    return {
        "processes": processes,
        "strings": list(strings.index),
        "steps": [
            [e.args.get("step_name") or e.name, (e.timestamp_ps - zero) // 1000, nanoseconds(e)]
            for e in sorted(step_events(spans), key=lambda e: e.timestamp_ps)
        ],
        "length": max(e.timestamp_ps + e.duration_ps - zero for e in spans) // 1000,
        "events": kept,
        "left_out": len(spans) - kept,
        "starts_ms": zero / 1e9,
    }


def step_events(events: list[Any]) -> list[Any]:
    """The program's own markers; where it has none, the steps that TensorFlow derived."""
    for key in ("step_num", "step_name"):
        found = [event for event in events if key in event.args]
        if found:
            return found
    return []


def nanoseconds(event: Any) -> int:
    return max(1, event.duration_ps // 1000)


def pack(row: list[Any], zero: int, strings: Strings) -> list[list[int]]:
    starts = [(event.timestamp_ps - zero) // 1000 for event in row]
    return [
        [after - before for before, after in zip([0, *starts], starts)],
        [nanoseconds(event) for event in row],
        [strings(shown(event.name)) for event in row],
        [strings(detail(event)) for event in row],
    ]
