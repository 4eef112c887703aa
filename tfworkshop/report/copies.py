"""Copies between host and device: how many in a step, how large, and what asked for each."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from tfworkshop.report import intervals, names
from tfworkshop.report.profile import Copy
from tfworkshop.report.recording import Host, Span, device_lines
from tfworkshop.report.xspace import Line

WAYS = {"to host": names.TO_HOST, "to device": names.TO_DEVICE}
PYTHON = "Python"
SIZE = re.compile(r"\bsize:(\d+)")
TRACED_FUNCTION = re.compile(r"^__inference_(.*)_\d+$")


def copies(hosts: list[Host], steps: list[list[Span]]) -> list[Copy]:
    """Those to the host first: for them the host waits. Of the steps only, where there are any."""
    count: Counter[tuple[str, int, str, str]] = Counter()
    for host, spans in zip(hosts, steps):
        marked = intervals.joined((span.start_ps, span.end_ps) for span in spans)
        for plane in host.devices:
            for line in device_lines(plane):
                for way, pattern in WAYS.items():
                    rows = np.flatnonzero(line.matches(pattern))
                    if spans:
                        rows = rows[intervals.inside(marked, line.start_ps[rows])]
                    sources, readers = find_ends(host, line, rows, way)
                    for size, source, reader in zip(sizes(line, rows), sources, readers):
                        count[way, size, source, reader] += 1
    found = max(1, sum(map(len, steps)))
    result = [Copy(*key, times / found) for key, times in count.items()]
    return sorted(result, key=lambda copy: (copy.way != "to host", -copy.per_step, -copy.bytes))


def sizes(line: Line, rows: np.ndarray) -> list[int]:
    details = (SIZE.search(text) for text in line.texts("memcpy_details", rows))
    return [int(found[1]) if found else 0 for found in details]


def find_ends(host: Host, line: Line, rows: np.ndarray, way: str) -> tuple[list[str], list[str]]:
    """Which operation made what is copied, and which one needs it; "" where nothing says so.

    A graph's copies carry both names. Of the others we know the call in which they happened: of an
    operation that Python started, or none: then Python itself reads a tensor, or makes one.
    """
    sources, readers = line.texts_of(("from", "to"), rows)
    unnamed = [i for i, reader in enumerate(readers) if not reader]
    ids = line.integers(("correlation_id",), rows[unnamed])[:, 0]
    for i, call in zip(unnamed, eager_calls(host, ids)):
        if call == PYTHON and way == "to device":
            sources[i] = PYTHON
        else:
            readers[i] = call
    return sources, readers


def eager_calls(host: Host, ids: np.ndarray) -> list[str]:
    """The operation that Python was starting when it asked for each of these copies."""
    caller = dict.fromkeys(ids.tolist(), "")
    for thread in host.threads:
        rows = np.flatnonzero(thread.matches(names.COPY))
        own = thread.integers(("correlation_id",), rows)[:, 0]
        rows, own = rows[np.isin(own, ids)], own[np.isin(own, ids)]
        calls = np.flatnonzero(thread.matches(names.EAGER_CALL))
        calls = calls[np.argsort(thread.start_ps[calls], kind="stable")]
        if names.PROGRAM_THREAD.match(thread.name):
            caller.update(dict.fromkeys(own.tolist(), PYTHON))
        place = np.searchsorted(thread.start_ps[calls], thread.start_ps[rows], side="right") - 1
        for row, copy, i in zip(rows.tolist(), own.tolist(), place.tolist()):
            if i >= 0 and thread.end_ps[calls[i]] >= thread.end_ps[row]:
                (name,) = thread.names(calls[i : i + 1])
                caller[copy] = TRACED_FUNCTION.sub(r"\1", name.partition(": ")[2])
    return [caller[number] for number in ids.tolist()]
