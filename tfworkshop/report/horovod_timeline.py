"""Horovod's timeline (HOROVOD_TIMELINE): who waits for whom, and what the exchange costs."""

from __future__ import annotations

import gzip
import json
import math
import re
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from tfworkshop import terminal
from tfworkshop.files import check_output_file, save_text
from tfworkshop.problem import Problem
from tfworkshop.report.figures import encode_json, ms, percent, size
from tfworkshop.report.intervals import Intervals, joined, merged, total
from tfworkshop.report.text import end_of, new_table

WAITING = "NEGOTIATE_"
EXCHANGES = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")
LIMIT = 0.20  # of the time: from here on it is worth removing, as in the verdict on a profile
BITS = re.compile(r"(\d+)$")


@dataclass
class Phase:
    name: str
    count: int
    total_ms: float
    median_ms: float


@dataclass
class Timeline:
    """Figures of the steps: all exchanges but the first of each tensor, which sets up."""

    file: str
    steps: int = 0
    tensors: int = 0
    step_ms: float | None = None
    waiting: float = 0.0  # the share of the time in which a tensor waits for the other ranks
    exchanging: float = 0.0
    exchanges_per_step: float = 0.0
    buffer_bytes: float = 0.0  # of one exchange, the median
    phases: list[Phase] = field(default_factory=list)
    last_ranks: dict[str, int] = field(default_factory=dict)  # how often each came last
    last_lag_ms: float | None = None  # how much later than the first, the median
    asked: int = 0  # exchanges of a tensor for which the file says who came when
    verdict: dict[str, str] = field(default_factory=dict)


@dataclass
class Span:
    tensor: int
    name: str
    start: int
    end: int
    depth: int
    args: dict[str, Any]


def load(path: Path) -> list[dict[str, Any]]:
    """The events; Horovod leaves the list open when it is ended early."""
    if not path.is_file():
        raise Problem(f"no such file: {path}")
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    text = raw.decode("utf-8", "replace").rstrip().rstrip(",")
    whole = text[: text.rfind("},") + 1]  # where it is cut in the middle of an event
    for candidate in (text, text + "]", text + "}]", whole + "]"):
        try:
            events = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(events, list):
            return events
    raise Problem(f"{path} is not a timeline of Horovod")


def spans(events: list[dict[str, Any]]) -> tuple[list[Span], dict[int, list[tuple[int, str]]]]:
    """Every phase of every tensor, and when each rank was ready for it."""
    result: list[Span] = []
    ready: dict[int, list[tuple[int, str]]] = defaultdict(list)
    still_open: dict[int, list[Span]] = defaultdict(list)
    for event in events:
        tensor, at, kind = event.get("pid", 0), int(event.get("ts", 0)), event.get("ph")
        if kind == "B":
            depth = len(still_open[tensor])
            still_open[tensor].append(Span(tensor, str(event.get("name")), at, at, depth, {}))
        elif kind == "E" and still_open[tensor]:
            span = still_open[tensor].pop()
            span.end, span.args = at, event.get("args") or {}
            result.append(span)
        elif kind == "X" and str(event.get("name")).isdigit():
            ready[tensor].append((at, str(event["name"])))
    return result, ready


def bytes_of(tensor: dict[str, Any]) -> int:
    bits = BITS.search(str(tensor.get("dtype", "")))
    numbers = [int(n) for n in re.findall(r"\d+", str(tensor.get("shape", "")))]
    return math.prod(numbers) * (int(bits[1]) if bits else 8) // 8


def read(path: Path) -> Timeline:
    all_spans, ready = spans(load(path))
    exchanged = [s for s in all_spans if s.depth == 0 and s.name in EXCHANGES]
    if not exchanged:
        raise Problem(f"{path} has no exchange of Horovod's: is it HOROVOD_TIMELINE's file?")
    timeline = Timeline(path.name)
    counts = Counter(span.tensor for span in exchanged)
    again = [count for count in counts.values() if count > 1]  # what is sent once starts a run
    timeline.steps = statistics.mode(sorted(again, reverse=True)) if again else 1
    repeated = {tensor for tensor, count in counts.items() if 2 * count > timeline.steps}
    timeline.tensors = len(repeated)
    firsts: dict[tuple[int, str], int] = {}
    for span in sorted(all_spans, key=lambda span: span.start):
        firsts.setdefault((span.tensor, span.name), span.start)
    kept = [span for span in all_spans if span.tensor in repeated]
    if timeline.steps > 1:
        kept = [span for span in kept if span.start > firsts[span.tensor, span.name]]
    add_shares(timeline, kept)
    add_phases(timeline, kept)
    add_ranks(timeline, {tensor: ticks for tensor, ticks in ready.items() if tensor in repeated})
    timeline.verdict = judge(timeline)
    return timeline


def covered(chosen: list[Span]) -> Intervals:
    return joined((span.start, span.end) for span in chosen)


def add_shares(timeline: Timeline, kept: list[Span]) -> None:
    """Tensors wait and travel together: what counts is when any of them does."""
    top = [span for span in kept if span.depth == 0]
    waiting = covered([span for span in top if span.name.startswith(WAITING)])
    travelling = [span for span in top if span.name in EXCHANGES]
    exchanging = covered(travelling)
    whole = merged([waiting, exchanging])
    window = int(whole[0][0]), int(whole[1][-1])
    length = max(1, window[1] - window[0])
    alone = total(waiting) + total(exchanging) - total(whole)  # what overlaps is exchange
    timeline.exchanging = total(exchanging) / length
    timeline.waiting = (total(waiting) - alone) / length
    rounds = max(1, timeline.steps - 1)
    timeline.step_ms = length / 1000 / rounds
    # Tensors of one buffer travel together, and one buffer after the other.
    inner = [span for span in kept if span.depth == 1 and span.name.endswith(EXCHANGES)]
    buffers = covered(inner or travelling)
    ends = np.searchsorted(buffers[0], [span.end for span in travelling], side="right") - 1
    held = np.zeros(len(buffers[0]), np.int64)
    np.add.at(held, np.maximum(ends, 0), [bytes_of(span.args) for span in travelling])
    timeline.exchanges_per_step = len(held) / rounds
    timeline.buffer_bytes = float(np.median(held))


def add_phases(timeline: Timeline, kept: list[Span]) -> None:
    times: dict[str, list[float]] = defaultdict(list)
    for span in kept:
        times[span.name].append((span.end - span.start) / 1000)
    timeline.phases = sorted(
        (Phase(n, len(t), sum(t), statistics.median(t)) for n, t in times.items()),
        key=lambda phase: -phase.total_ms,
    )


def rounds_of(ticks: list[tuple[int, str]]) -> list[dict[str, int]]:
    """When each rank was ready, for every exchange of a tensor that all ranks came to."""
    rounds: list[dict[str, int]] = [{}]
    for at, rank in sorted(ticks):
        if rank in rounds[-1]:
            rounds.append({})
        rounds[-1][rank] = at
    everyone = max(map(len, rounds))
    return [ready for ready in rounds if len(ready) == everyone > 1]


def add_ranks(timeline: Timeline, ready: dict[int, list[tuple[int, str]]]) -> None:
    """With its cache, Horovod asks who is ready only once for each tensor."""
    rounds = [rounds_of(ticks) for ticks in ready.values()]
    timeline.asked = max(map(len, rounds), default=0)
    last: Counter[str] = Counter()
    lags = []
    for asked in (asked for tensor in rounds for asked in (tensor[1:] or tensor)):
        last[max(asked, key=lambda rank: asked[rank])] += 1
        lags.append((max(asked.values()) - min(asked.values())) / 1000)
    timeline.last_ranks = dict(last.most_common())
    timeline.last_lag_ms = statistics.median(lags) if lags else None


def judge(timeline: Timeline) -> dict[str, str]:
    shares = f"{percent(timeline.waiting)} waiting, {percent(timeline.exchanging)} exchanging"
    step = f"{ms(timeline.step_ms)} ms a step, {timeline.exchanges_per_step:.1f} exchanges."
    if max(timeline.waiting, timeline.exchanging) < LIMIT:
        kind = "compute-bound"
        sentence = "The exchange is not the problem: the ranks compute most of the time."
        tries = "Profile one rank: 04_tf_profiler."
    elif timeline.waiting >= timeline.exchanging:
        kind = "waiting"
        sentence = f"The ranks wait for each other {percent(timeline.waiting)} of the time."
        look = "Look for the rank that comes late: "
        if timeline.asked < 2 < timeline.steps:
            look = "Record who comes late, with HOROVOD_CACHE_CAPACITY=0. Then look there: "
        tries = (
            f"{look}unequal batches or input, shared cores, a rank that also logs or evaluates. "
            "HOROVOD_CYCLE_TIME is how often Horovod asks."
        )
    else:
        kind = "communication-bound"
        sentence = f"Communication-bound: {percent(timeline.exchanging)} of the time is exchange."
        tries = (
            "Exchange less: a larger batch on every rank, 16-bit gradients (05_reduced_precision), "
            "fewer and larger buffers (HOROVOD_FUSION_THRESHOLD)."
        )
    evidence = f"{shares} of {step}"
    return {"kind": kind, "sentence": sentence, "evidence": evidence, "next": tries}


def run(paths: list[Path], files: dict[str, Path]) -> int:
    if len(paths) > 1 or set(files) - {"json"}:
        raise Problem("Horovod's timeline: name one file; only --json can be written")
    path, file = paths[0], files.get("json")
    to_stdout = file == Path("-")
    if file and not to_stdout:
        if file.resolve() == path.resolve():
            raise Problem(f"{path.name} is the timeline itself: name another file to write")
        check_output_file(file, ".json")
    timeline = read(path)
    figures = encode_json(timeline)
    if to_stdout:
        sys.stdout.write(figures)
        return 0
    show(timeline)
    if file:
        save_text(file, figures)
        print(f"wrote {file}")
    return 0


def show(timeline: Timeline) -> None:
    console = terminal.console()
    console.width = min(console.width, 100)
    verdict = timeline.verdict
    lines = [
        f"Evidence: {verdict['evidence']}",
        f"Next: {verdict['next']}",
        "",
        f"{timeline.file}, {timeline.steps} steps, {timeline.tensors} tensors",
        f"Buffer of one exchange: {size(timeline.buffer_bytes)}",
    ]
    if timeline.last_ranks:
        ranks = ", ".join(
            f"rank {rank} {count} times" for rank, count in timeline.last_ranks.items()
        )
        lines.append(f"Last to be ready, where the file says so: {ranks}")
        lines.append(f"  {ms(timeline.last_lag_ms)} ms after the first, the median")
    console.print(Text(verdict["sentence"], style="bold"), *map(Text, lines), Text(), sep="\n")
    table = new_table("total ms|median ms|count", "phase, the first round of each tensor left out")
    for phase in timeline.phases:
        figures = ms(phase.total_ms), ms(phase.median_ms), f"{phase.count:,}"
        table.add_row(*figures, end_of(phase.name, 40))
    console.print(table)
