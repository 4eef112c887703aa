"""What an attendee's own runs left in a mystery's folder, as figures."""

from __future__ import annotations

import datetime
import functools
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfworkshop.files import WRONG_SHAPE, read_json
from tfworkshop.problem import Problem
from tfworkshop.report import command as report
from tfworkshop.report import horovod_timeline
from tfworkshop.report.profile import ENDING, Profile

LOG, LOGS, LPROF = "log.txt", "logs", "train_MNIST.py.lprof"
XRAY, TIMELINE = "xray.json", "timeline.json"
WARMUP = 5  # steps that tell nothing: tracing, compiling
STAMPED = re.compile(
    r"^(\S+ \S+) - INFO - \(\d+, \d+\), Loss: \S+, step_time: \S+, throughput: (\S+) img/s",
    re.M,
)
FROM_RANK = re.compile(r"^\[[\d,]+\]<stdout>:", re.M)  # horovodrun puts it before each line


@dataclass
class Log:
    claimed: float  # images a second, as its lines say
    real: float  # and by the time stamps of the same lines
    xla: str


@dataclass
class Line:
    source: str
    hits: int
    ms: float


Lines = dict[str, list[Line]]  # by function


@dataclass
class Timeline:
    """Horovod's, of one tensor of each exchange."""

    exchanges: int
    late_rank: int
    times_last: int
    late_ms: float  # after the first rank, the median
    exchange_ms: float
    step_ms: float


@dataclass
class Facts:
    """None: nothing there to read."""

    log: Log | None = None
    profile: Profile | None = None
    lines: Lines | None = None
    xray: list[dict] | None = None  # the copies to the host
    timeline: Timeline | None = None


def read(folder: Path, made: str) -> Facts:
    """`made` is the script as it was made: for a line profile that is older than an edit."""
    return Facts(
        log=read_log(folder / LOG),
        profile=read_profile(folder / LOGS),
        lines=read_lines(folder, made),
        xray=read_copies(folder / XRAY),
        timeline=read_timeline(folder / TIMELINE),
    )


def nothing_else(read: Callable[..., Any]) -> Callable[..., Any]:
    """A reader that finds nothing where a file is cut short, edited, or somebody else's."""

    @functools.wraps(read)
    def tried(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        except (Problem, OSError, StopIteration, *WRONG_SHAPE):
            return None

    return tried


@nothing_else
def read_log(path: Path) -> Log | None:
    """Of a run that came to its end; the steps around a recording do not disturb a median."""
    text = FROM_RANK.sub("", path.read_text(errors="replace"))
    told = dict(re.findall(r"^(batch_size|ranks|xla)\s+(\S+)$", text, re.M))
    lines = STAMPED.findall(text)[WARMUP - 1 :]
    if len(lines) < 3 or not {"batch_size", "ranks", "xla"} <= set(told):
        return None
    stamps = [datetime.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f") for stamp, _ in lines]
    passed = statistics.median(b - a for a, b in zip(stamps, stamps[1:])).total_seconds()
    images = int(told["batch_size"]) * int(told["ranks"])
    claimed = statistics.median(float(speed) for _, speed in lines[1:])
    return Log(claimed, images / max(passed, 1e-4), told["xla"])


@nothing_else
def read_profile(folder: Path) -> Profile | None:
    return report.load(folder)[0] if any(folder.rglob(f"*{ENDING}")) else None


@nothing_else
def read_lines(folder: Path, made: str) -> Lines | None:
    path, script = folder / LPROF, folder / "train_MNIST.py"
    if not path.is_file():
        return None
    import line_profiler

    try:
        stats = line_profiler.load_stats(str(path))
    except Exception:  # cut short, or no line profile
        return None
    newer = script.is_file() and script.stat().st_mtime <= path.stat().st_mtime
    source = ["", *(script.read_text() if newer else made).splitlines(), ""]
    return {
        name: [
            Line(source[min(number, len(source) - 1)].strip(), hits, time * stats.unit * 1e3)
            for number, hits, time in timings
        ]
        for (_, _, name), timings in stats.timings.items()
        if timings  # it ran
    }


@nothing_else
def read_copies(path: Path) -> list[dict] | None:
    """Of the step without XLA: with it, part of the step is the compiler's."""
    cases = read_json(path)["cases"]
    return next(case["copies"] for case in cases if case["xla"] == "off")


@nothing_else
def read_timeline(path: Path) -> Timeline | None:
    """Of a run without Horovod's cache: with it, only the first exchange tells who was ready."""
    spans, ready = horovod_timeline.spans(horovod_timeline.load(path))
    exchanged = {span.tensor for span in spans if span.name == "ALLREDUCE"}
    tensor, rounds = next(
        (tensor, rounds)
        for tensor, ticks in ready.items()
        if tensor in exchanged and len(rounds := horovod_timeline.rounds_of(ticks)[WARMUP:]) >= 3
    )
    took = [s.end - s.start for s in spans if s.tensor == tensor and s.name == "ALLREDUCE"]
    starts = [min(ready.values()) for ready in rounds]
    lags = {
        rank: statistics.median(ready[rank] - start for ready, start in zip(rounds, starts))
        for rank in rounds[0]
    }
    late = max(lags, key=lambda rank: lags[rank])
    return Timeline(
        exchanges=len(rounds),
        late_rank=int(late),
        times_last=sum(ready[late] == max(ready.values()) for ready in rounds),
        late_ms=lags[late] / 1e3,
        exchange_ms=statistics.median(took[WARMUP:]) / 1e3,
        step_ms=statistics.median(b - a for a, b in zip(starts, starts[1:])) / 1e3,
    )
