"""Is it faster? Scripts run alternately, timed by the wall clock: when their log lines arrive."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from tools.exercises.judge import judge_count, judge_model
from tools.exercises.trial import TIMED_BATCH, NotYet, plan_run, probe
from tools.stages import Stage
from tools.terminal import number

CLOCK = 1.3  # a claimed speed may be this much above the wall clock's
ACCURACY_LOSS = 0.1  # after so few steps accuracy is noisy
FAR = 1.5  # a good solution is not this much slower than ours, however it is written


@dataclass
class Entry:
    """One of the scripts that are timed."""

    name: str
    script: Path
    speeds: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds)


def timed_steps(stage: Stage, gpu: bool) -> int:
    """Enough for a clear answer, few enough for a short wait."""
    if stage.number == "01":
        return 30  # the baseline's steps are slow on any device
    return 600 if gpu else 40


def wall_speed(times: list[float], warmup: int = 10) -> float:
    """Images per second from the arrival of the lines, whatever they say.

    A call of several steps logs in bursts. So the clock starts at a line with a pause after it:
    there, what was logged is done and what follows has not started.
    """
    last = len(times) - 1
    first = min(warmup, last) - 1
    starts = range(max(first, 0), max(first + 1, len(times) // 2))
    start = max(starts, key=lambda i: times[i + 1] - times[i])
    return TIMED_BATCH * (last - start) / max(times[last] - times[start], 1e-9)


def time_once(entry: Entry, folder: Path, file: Path, steps: int, limit: float) -> None:
    run = plan_run("time", folder, file, steps, 0.001, True, [])
    (ran,) = probe(entry.script, folder, [run], limit)
    judge_model(ran)
    judge_count(ran, steps)
    entry.speeds.append(wall_speed(ran.times))
    entry.claims.append(ran.results["img_per_s"] or 0.0)
    entry.accuracies.append(ran.observed["accuracy"])


def verdict(mine: Entry, before: Entry) -> str:
    """faster or slower only if no repeat contradicts it, else unclear."""
    if min(mine.speeds) > max(before.speeds):
        return "faster"
    return "slower" if max(mine.speeds) < min(before.speeds) else "unclear"


def far_behind(mine: Entry, own: Entry) -> bool:
    return FAR * max(mine.speeds) < min(own.speeds)


def judge_clock(mine: Entry) -> None:
    over = min(claim / speed for claim, speed in zip(mine.claims, mine.speeds))
    if over > CLOCK:
        raise NotYet(
            f"Your clock misses time: it says {number(max(mine.claims))} img/s, "
            f"the wall clock {number(mine.speed)}.",
            "It stops before the device is done (see 02's README: a clock that does not wait), "
            "or something slow happens outside of it.",
        )
    if over < 1 / 3:
        raise NotYet(
            f"It says {number(max(mine.claims))} img/s, but its log lines arrive at "
            f"{number(mine.speed)}.",
            "Divide the time of a call evenly among its steps, and log them after the call.",
        )


def judge_learning(mine: Entry, before: Entry) -> None:
    if max(mine.accuracies) < min(before.accuracies) - ACCURACY_LOSS:
        raise NotYet(
            f"It learns less: {100 * max(mine.accuracies):.1f} % of the test images, against "
            f"{100 * min(before.accuracies):.1f} % after as many steps of {before.name}."
        )
