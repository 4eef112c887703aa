"""Is it faster? Scripts run alternately, timed by the wall clock: when their log lines arrive."""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.table import Table

from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.judge import judge_count, judge_model
from tfworkshop.exercises.task import previous
from tfworkshop.exercises.trial import TIMED_BATCH, NotYet, plan_run, probe, timed_data
from tfworkshop.problem import Problem
from tfworkshop.stages import Stage
from tfworkshop.terminal import number, ratio

MUST_BE_FASTER = ("01", "02")  # and 06, on a GPU
ON_A_CPU = {
    "03": "On most CPUs XLA costs time: 04 finds out why.",
    "05": "16 bit pays on a CPU only where it has units for it (AVX-512 BF16, AMX).",
    "06": "On a CPU the data is already in the host's memory, so there is little to gain.",
}
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


def time_in_turns(entries: tuple[Entry, ...], attempt: Attempt, steps: int) -> None:
    """The first is the attendee's; the others are ours, and must run."""
    file, repeats = timed_data(attempt.folder), attempt.repeats
    for repeat in range(repeats):
        for i, entry in enumerate(entries):
            place = attempt.folder / f"time_{repeat}_{i}"
            with attempt.doing(f"timing, repeat {repeat + 1} of {repeats}: {entry.name}"):
                try:
                    time_once(entry, place, file, steps, attempt.limit)
                except NotYet as problem:
                    if i == 0:
                        raise
                    raise Problem(f"{entry.name} does not run here: {problem}") from None
            shutil.rmtree(place, ignore_errors=True)


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


def judge_speed(stage: Stage, attempt: Attempt, gpu: bool) -> None:
    must = stage.number in MUST_BE_FASTER or (gpu and stage.number == "06")
    attempt.step = "It is faster" if must else "Its clock is right"
    mine = Entry("yours", attempt.script)
    before = Entry(previous(stage).folder, previous(stage).script)
    own = Entry(f"{stage.folder} (ours)", stage.script)
    steps = timed_steps(stage, gpu)
    time_in_turns((mine, before, own), attempt, steps)
    attempt.speeds = {"yours": mine.speed, "before": before.speed, "ours": own.speed}
    judge_clock(mine)
    judge_learning(mine, before)
    found, times = verdict(mine, before), ratio(mine.speed, before.speed)
    behind = far_behind(mine, own) and f"ours is {ratio(own.speed, mine.speed)} as fast."
    if not must:
        attempt.good("the wall clock agrees")
    elif found == "faster":
        attempt.good(f"{times} the speed of {before.name}; your slowest run beats its fastest")
    show_speeds((mine, before, own), attempt, steps)
    if must and found == "slower":
        raise NotYet(f"It is slower than {before.name}: {times}.")
    if must and found == "unclear":
        raise NotYet(
            "No clear difference in speed: the repeats overlap.",
            f"On a busy machine more repeats help: ./workshop check {stage.number} --repeats 7",
        )
    if behind and not must:
        raise NotYet(f"The change is correct, but something in it costs time: {behind}")
    if behind:
        attempt.say(f"  You can gain more: {behind}")
    if not must:
        text = "No clear difference" if found == "unclear" else f"{found.capitalize()}, {times}"
        attempt.say(f"  {text}. This exercise is about making the change, not about the speed.")
        if not gpu and stage.number in ON_A_CPU:
            attempt.say(f"  {ON_A_CPU[stage.number]}")


def show_speeds(entries: tuple[Entry, ...], attempt: Attempt, steps: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("script")
    for name in ("img/s", "from", "to", "yours is", "accuracy"):
        table.add_column(name, justify="right")
    for entry in entries:
        speeds = [number(speed) for speed in (entry.speed, min(entry.speeds), max(entry.speeds))]
        against = "" if entry is entries[0] else ratio(entries[0].speed, entry.speed)
        right = f"{100 * statistics.median(entry.accuracies):.1f} %"
        table.add_row(entry.name, *speeds, against, right)
    attempt.console.print(table)
    count = len(entries[0].speeds)
    times = f"{count} times each, alternating" if count > 1 else "once each"
    attempt.say(f"  By the wall clock, batch {TIMED_BATCH}, {steps} steps, {times}.", "dim")
