"""Is it faster? Scripts run alternately, timed by the wall clock: when their log lines arrive."""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from tfworkshop import data
from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.judge import judge_model, judge_update_count
from tfworkshop.exercises.task import previous
from tfworkshop.exercises.trial import (
    TEST_IMAGES,
    TIMED_BATCH,
    NotYet,
    mistake,
    observe_runs,
    plan_run,
)
from tfworkshop.problem import Problem
from tfworkshop.stages import Stage
from tfworkshop.terminal import number, ratio

MUST_BE_FASTER = ("01", "02")  # and 06, on a GPU
ON_A_CPU = {
    "03": "On most CPUs XLA costs time: 04 finds out why.",
    "05": "16 bit pays on a CPU only where it has units for it (AVX-512 BF16, AMX).",
    "06": "On a CPU the data is already in the host's memory, so there is little to gain.",
}
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
    accuracies: list[float] = field(default_factory=list)

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
    """All images to train with, compressed as in the original file; a part of the test images."""
    with np.load(data.DEFAULT_PATH) as file:
        arrays = {name: file[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    for name in ("x_test", "y_test"):
        arrays[name] = arrays[name][:TEST_IMAGES]
    path = folder / "timed.npz"
    np.savez_compressed(path, **arrays)
    return path


def wall_speed(times: list[float]) -> float:
    """Images per second after the warm-up, from the times at which log lines arrived.

    A call of several steps logs in bursts. So the clock starts at a line with a pause after it:
    there, what was logged is done and what follows has not started.
    """
    last = len(times) - 1
    earliest = min(WARMUP, last) - 1
    latest = max(earliest, last // 2)
    start = max(range(earliest, latest + 1), key=lambda i: times[i + 1] - times[i])
    seconds = times[last] - times[start]
    return TIMED_BATCH * (last - start) / max(seconds, 1e-9)


def time_once(entry: Entry, folder: Path, file: Path, steps: int, limit: float) -> None:
    run = plan_run("time", str(file), steps)
    (ran,) = observe_runs(entry.script, folder, [run], limit)
    judge_model(ran)
    judge_update_count(ran, steps)
    entry.speeds.append(wall_speed(ran.times))
    entry.claims.append(ran.results.img_per_s or 0.0)
    entry.accuracies.append(ran.observed.accuracy)


def time_in_turns(entries: tuple[Entry, ...], attempt: Attempt, steps: int) -> None:
    """The first is the attendee's; the others are ours, and must run."""
    file = make_timed_data(attempt.folder)
    for repeat in range(attempt.repeats):
        for entry in entries:
            turn = f"timing, repeat {repeat + 1} of {attempt.repeats}: {entry.name}"
            with attempt.doing(turn), tempfile.TemporaryDirectory(dir=attempt.folder) as folder:
                try:
                    time_once(entry, Path(folder), file, steps, attempt.limit)
                except NotYet as error:
                    if entry is entries[0]:
                        raise
                    raise Problem(f"{entry.name} does not run here: {error}") from None


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
    time_in_turns((mine, before, ours), attempt, steps)
    attempt.speeds = {"yours": mine.speed, "before": before.speed, "ours": ours.speed}
    show_speeds((mine, before, ours), attempt, steps)
    judge_clock(mine)
    attempt.good(judge_comparison(stage, gpu, mine, before, ours))


def judge_comparison(stage: Stage, gpu: bool, mine: Entry, before: Entry, ours: Entry) -> str:
    comparison = compare(mine, before)
    factor = ratio(mine.speed, before.speed)
    potential = ratio(ours.speed, mine.speed)
    if stage.number in MUST_BE_FASTER or (gpu and stage.number == "06"):
        if comparison == "slower":
            raise mistake("slower", before=before.name, factor=factor)
        if comparison == "unclear":
            raise mistake("unclear", command=f"./workshop check {stage.number}")
        outcome = f"{factor} the speed of {before.name}: your slowest run beats its fastest."
        if far_behind(mine, ours):
            outcome += f" You can gain more: ours is {potential} as fast."
        return outcome
    if far_behind(mine, ours):
        raise mistake("costs-time", factor=potential)
    outcome = f"{comparison}, {factor}, which is fine: this exercise is about making the change."
    if not gpu and stage.number in ON_A_CPU:
        outcome += f" {ON_A_CPU[stage.number]}"
    return outcome


def show_speeds(entries: tuple[Entry, ...], attempt: Attempt, steps: int) -> None:
    mine = entries[0]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("script")
    for name in ("img/s", "from", "to", "yours is", "accuracy"):
        table.add_column(name, justify="right")
    for entry in entries:
        table.add_row(
            entry.name,
            number(entry.speed),
            number(min(entry.speeds)),
            number(max(entry.speeds)),
            "" if entry is mine else ratio(mine.speed, entry.speed),
            f"{100 * statistics.median(entry.accuracies):.1f} %",
        )
    attempt.console.print(table)
    times = f"{attempt.repeats} times each, alternating" if attempt.repeats > 1 else "once each"
    attempt.say(f"  By the wall clock, batch {TIMED_BATCH}, {steps} steps, {times}.", "dim")
