"""Read what an attendee's own runs left in a mystery's folder."""

from __future__ import annotations

import datetime
import itertools
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfworkshop.report import command as report
from tfworkshop.report import horovod_timeline
from tfworkshop.report.horovod_timeline import Timeline
from tfworkshop.report.profile import ENDING, Profile

LOG = "log.txt"
PROFILES = "logs"
LINE_PROFILE = "train_MNIST.py.lprof"
ON_IDEAL_GPU = "ideal_gpu"
TIMELINE = "timeline.json"

WARMUP_LINES = 5  # log lines to skip: TensorFlow is still tracing and compiling
LOG_LINE = re.compile(
    r"^(\S+ \S+) - INFO - \(\d+, \d+\), Loss: \S+, step_time: \S+, throughput: (\S+) img/s", re.M
)
SUMMARY_LINE = re.compile(r"^(batch_size|ranks|xla) +(\S+)$", re.M)
RANK_PREFIX = re.compile(r"^\[[\d,]+\]<stdout>:", re.M)  # added by horovodrun


@dataclass
class Log:
    claimed_speed: float  # images per second, as the lines say
    real_speed: float  # images per second, by the lines' time stamps
    xla: str


@dataclass
class Line:
    """One line of a function, from the line profiler."""

    source: str
    hits: int
    milliseconds: float


LinesByFunction = dict[str, list[Line]]


def read(tool: str, folder: Path) -> Any:
    """The evidence of one tool; None if the attendee has not used it yet."""
    readers = {
        "log": read_log,
        "profile": lambda folder: read_profile(folder / PROFILES),
        "lines": read_line_profile,
        "ideal GPU": lambda folder: read_profile(folder / ON_IDEAL_GPU),
        "timeline": read_timeline,
    }
    return readers[tool](folder)


def read_log(folder: Path) -> Log | None:
    """Medians, so that the few steps that were profiled do not matter."""
    path = folder / LOG
    if not path.exists():
        return None
    text = RANK_PREFIX.sub("", path.read_text(errors="replace"))
    summary = dict(SUMMARY_LINE.findall(text))
    lines = LOG_LINE.findall(text)[WARMUP_LINES - 1 :]
    if len(lines) < 3 or len(summary) < 3:  # the run was too short, or has not finished
        return None
    stamps = [datetime.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f") for stamp, _ in lines]
    pauses = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(stamps)]
    pause = max(statistics.median(pauses), 1e-4)
    images = int(summary["batch_size"]) * int(summary["ranks"])
    claimed_speed = statistics.median(float(speed) for _, speed in lines[1:])
    return Log(claimed_speed, images / pause, summary["xla"])


def read_profile(logdir: Path) -> Profile | None:
    if not any(logdir.rglob(f"*{ENDING}")):
        return None
    profile, _ = report.load(logdir)
    return profile


def read_line_profile(folder: Path) -> LinesByFunction | None:
    """None also if the script was edited since: the line numbers would be wrong."""
    path = folder / LINE_PROFILE
    script = folder / "train_MNIST.py"
    if not path.exists() or script.stat().st_mtime > path.stat().st_mtime:
        return None
    import line_profiler

    stats = line_profiler.load_stats(str(path))
    source = script.read_text(encoding="utf-8").splitlines()
    functions: LinesByFunction = {}
    for (_, _, function), timings in stats.timings.items():
        functions[function] = [
            Line(source[number - 1].strip(), hits, 1000 * stats.unit * ticks)
            for number, hits, ticks in timings
        ]
    return functions


def read_timeline(folder: Path) -> Timeline | None:
    """None also if Horovod used its cache: then only the first exchange says who was late."""
    path = folder / TIMELINE
    if not path.exists():
        return None
    timeline = horovod_timeline.read(path)
    return timeline if timeline.asked > 1 else None
