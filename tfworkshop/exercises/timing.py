"""Is it faster? Scripts run alternately, timed by the wall clock: when their log lines arrive."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tfworkshop import data
from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.task import previous
from tfworkshop.exercises.trial import TEST_IMAGES, TIMED_BATCH, mistake, observe_runs, plan_run
from tfworkshop.stages import Stage
from tfworkshop.terminal import number, print_table, ratio, spread

MUST_BE_FASTER = ("01", "02")  # and 06, on a GPU
WARMUP = 10  # steps
CLOCK = 1.3  # a claimed speed may be this much above the wall clock's
FAR = 1.5  # a good solution is not this much slower than ours, however it is written


@dataclass
class Entry:
    """One of the scripts that are timed."""

    name: str
    script: Path
    speeds: list[float] = field(default_factory=list)  # img/s by the wall clock
    claims: list[float] = field(default_factory=list)  # img/s by its own clock

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds)


# --- measuring ---


def timed_steps(stage: Stage, gpu: bool) -> int:
    """Enough for a clear answer, few enough for a short wait."""
    if stage.number == "01":
        return 30  # the baseline's steps are slow on any device
    return 600 if gpu else 40


def make_timed_data(folder: Path) -> Path:
    """All images to train with, compressed as in the original file, but few test images."""
    with np.load(data.DEFAULT_PATH) as file:
        arrays = dict(file)
    for name in ("x_test", "y_test"):
        arrays[name] = arrays[name][:TEST_IMAGES]
    path = folder / "timed.npz"
    np.savez_compressed(path, **arrays)
    return path


def choose_start(times: list[float]) -> int:
    """The line after which the clock starts, from the times at which lines were logged.

    After the warm-up. A call of several steps logs in bursts, so there is a pause after this line:
    what was logged is done, and what follows has not started.
    """
    last = len(times) - 1
    earliest = min(WARMUP, last) - 1
    latest = max(earliest, last // 2)
    return max(range(earliest, latest + 1), key=lambda i: times[i + 1] - times[i])


def wall_speed(times: list[float]) -> float:
    start = choose_start(times)
    seconds = times[-1] - times[start]
    return TIMED_BATCH * (len(times) - 1 - start) / max(seconds, 1e-9)


def claimed_speed(times: list[float], throughputs: list[float]) -> float:
    """By the script's own clock, over the same steps."""
    return statistics.harmonic_mean(throughputs[choose_start(times) + 1 :])


def time_in_turns(
    entries: tuple[Entry, ...], attempt: Attempt, time_once: Callable[[Entry, Path], None]
) -> None:
    for repeat in range(attempt.repeats):
        for entry in entries:
            turn = f"timing, repeat {repeat + 1} of {attempt.repeats}: {entry.name}"
            with (
                attempt.console.status(turn),
                tempfile.TemporaryDirectory(dir=attempt.folder) as folder,
            ):
                time_once(entry, Path(folder))


def time_training(entries: tuple[Entry, ...], attempt: Attempt, steps: int) -> None:
    """Time trainings in one process each; the first is the attendee's."""
    run = plan_run("time", str(make_timed_data(attempt.folder)), steps)

    def time_once(entry: Entry, folder: Path) -> None:
        ran = observe_runs(entry.script, folder, [run], attempt.limit)["time"]
        times = ran.observed.times
        entry.speeds.append(wall_speed(times))
        entry.claims.append(claimed_speed(times, ran.observed.throughputs))

    time_in_turns(entries, attempt, time_once)
    show_speeds(entries, attempt, steps)
    judge_clock(entries[0])


# --- judging ---


def compare(mine: Entry, before: Entry) -> str:
    """Say "faster" or "slower" only if no repeat contradicts it, else "unclear"."""
    if min(mine.speeds) > max(before.speeds):
        return "faster"
    if max(mine.speeds) < min(before.speeds):
        return "slower"
    return "unclear"


def far_behind(mine: Entry, ours: Entry) -> bool:
    return FAR * max(mine.speeds) < min(ours.speeds)


def judge_clock(mine: Entry) -> None:
    claim, speed = number(max(mine.claims)), number(mine.speed)
    excess = min(claim / speed for claim, speed in zip(mine.claims, mine.speeds))
    if excess > CLOCK:
        raise mistake("clock-stops-early", claim=claim, speed=speed)
    if excess < 1 / 3:
        raise mistake("clock-counts-twice", claim=claim, speed=speed)


def judge_speed(stage: Stage, attempt: Attempt, gpu: bool) -> None:
    mine = Entry("yours", attempt.script)
    before = Entry(previous(stage).folder, previous(stage).script)
    ours = Entry(f"{stage.folder} (ours)", stage.script)
    steps = timed_steps(stage, gpu)
    attempt.step = "Its speed"
    time_training((mine, before, ours), attempt, steps)
    attempt.speeds = {"yours": mine.speed, "before": before.speed, "ours": ours.speed}
    attempt.good(judge_comparison(stage, gpu, mine, before, ours))


def judge_comparison(stage: Stage, gpu: bool, mine: Entry, before: Entry, ours: Entry) -> str:
    comparison = compare(mine, before)
    factor = ratio(mine.speed, before.speed)
    if stage.number in MUST_BE_FASTER or (gpu and stage.number == "06"):
        if comparison == "slower":
            raise mistake("slower", before=before.name, factor=factor)
        if comparison == "unclear":
            raise mistake("unclear", command=f"./workshop check {stage.number}")
        return f"{factor} the speed of {before.name}: your slowest run beats its fastest."
    if far_behind(mine, ours):
        raise mistake("costs-time", factor=ratio(ours.speed, mine.speed))
    return f"{comparison}, {factor}, which is fine: this exercise is about making the change."


def show_speeds(entries: tuple[Entry, ...], attempt: Attempt, steps: int) -> None:
    mine = entries[0]
    rows = []
    for entry in entries:
        to_mine = ratio(mine.speed, entry.speed)
        rows.append([entry.name, number(entry.speed), spread(entry.speeds), to_mine])
    print_table(attempt.console, ["script", "img/s", "from to", "yours is"], rows)
    times = f"{attempt.repeats} time(s) each, alternating"
    conditions = f"  By the wall clock, batch {TIMED_BATCH}, {steps} steps, {times}."
    attempt.console.print(conditions, style="dim")
