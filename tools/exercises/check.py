"""`./workshop check N`: is the attendee's script correct, does it do what was asked, is it faster?

The script runs in separate processes (trial.py). What it does is judged (judge.py), then its speed
is measured (timing.py), in the order in which a teacher would look. The first mistake ends the
check.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools import data, terminal
from tools.exercises.judge import (
    FLOAT32,
    MIXED,
    TENSOR_FLOAT,
    check_source,
    idea_checks,
    judge_accuracy,
    judge_count,
    judge_draws,
    judge_dropout,
    judge_epochs,
    judge_half,
    judge_model,
    judge_step,
    judge_steps,
)
from tools.exercises.task import (
    EXERCISES,
    digest,
    find_stage,
    previous,
    script_of,
    show_hint,
    shown,
)
from tools.exercises.timing import (
    Entry,
    far_behind,
    judge_clock,
    judge_learning,
    time_once,
    timed_steps,
    verdict,
)
from tools.exercises.trial import (
    TIMED_BATCH,
    CannotCheck,
    NotYet,
    make_data,
    plan_runs,
    probe,
    right_runs,
    scratch,
    timed_data,
)
from tools.files import kept_json, save
from tools.problem import Problem
from tools.stages import Stage
from tools.terminal import number, ratio

MUST_BE_FASTER = ("01", "02")  # and 06, on a GPU
RIGHT, NOT_YET = "correct, not timed", "not yet"


@dataclass
class Outcome:
    step: str = "It runs"  # what is being looked at
    passed: bool = False
    status: str = "started"
    problem: str = ""
    speeds: dict[str, float] = field(default_factory=dict)


class Screen:
    """A line for each thing that was looked at."""

    def __init__(self) -> None:
        self.console: Console = terminal.console()
        self.console.width = min(self.console.width, 100)
        fine = (self.console.encoding or "").lower().startswith("utf")
        self.tick, self.cross = ("✓", "✗") if fine else ("+", "x")

    def doing(self, what: str) -> contextlib.AbstractContextManager:
        if self.console.is_terminal:
            return self.console.status(what)
        return contextlib.nullcontext()

    def good(self, what: str, how: str = "") -> None:
        self.line(self.tick, "green", what, how)

    def bad(self, what: str) -> None:
        self.line(self.cross, "red", what, "no")

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style))

    def line(self, mark: str, style: str, what: str, how: str) -> None:
        grid = Table.grid(padding=(0, 1))
        for width in (1, 24, None):
            grid.add_column(width=width)
        grid.add_row(Text(mark, style=style), Text(what, style="bold"), Text(how))
        self.console.print(grid)


def run(stage: str | None, quick: bool, repeats: int, hint: bool, limit: float) -> int:
    if stage is None and hint:
        raise Problem("--hint needs the number of an exercise: ./workshop check 02 --hint")
    if stage is None:
        return progress()
    found = find_stage(stage)
    return show_hint(found) if hint else check(found, quick, repeats, limit)


def check(stage: Stage, quick: bool, repeats: int, limit: float) -> int:
    screen, outcome, file = Screen(), Outcome(), script_of(stage)
    if not file.is_file():
        there, fresh = ("is not a file", " --fresh") if file.exists() else ("is not there yet", "")
        raise Problem(f"{shown(file)} {there}. Type: ./workshop exercise {stage.number}{fresh}")

    def look(script: Path, folder: Path) -> None:
        judge(stage, script, folder, quick, repeats, limit, screen, outcome)

    problem = supervise(file, screen, outcome, look)
    screen.say("")
    if problem:
        say_problem(problem, screen)
        screen.say(f"A hint: ./workshop check {stage.number} --hint")
        return 1
    if outcome.status == RIGHT:
        text = (
            f"Exercise {stage.number} is correct. How fast is it? ./workshop check {stage.number}"
        )
        screen.say(text, "bold green")
    else:
        screen.say(f"Exercise {stage.number} passed.{following(stage)}", "bold green")
    return 0


def supervise(
    file: Path, screen: Screen, outcome: Outcome, look: Callable[[Path, Path], None]
) -> NotYet | None:
    """Have a copy of an attendee's script looked at, and keep the outcome; what is wrong with it.

    look(script, folder) may put what it needs into the folder.
    """
    problem = None
    try:
        data.ensure(say=lambda line: None)
        sha = digest(file)
        with scratch() as folder:
            copies = folder / file.parent.name  # what is judged is what was there at first
            copies.mkdir()
            for source in [*file.parent.glob("*.py"), file]:
                if source.is_file():  # an editor's lock is a link to nowhere
                    shutil.copyfile(source, copies / source.name)
            look(copies / file.name, folder)
    except NotYet as found:
        problem = found
        outcome.problem = str(problem)
        screen.bad(outcome.step)
    except (CannotCheck, Problem) as error:
        raise Problem(str(error)) from None
    except Exception as error:  # an attendee's script must not show us up
        told = f"the check itself failed, {type(error).__name__}: {error}"
        raise Problem(told) from None
    keep(file, sha, outcome)
    return problem


def say_problem(problem: NotYet, screen: Screen) -> None:
    screen.say(f"Not yet: {problem}", "bold")
    for detail in filter(None, problem.details):
        screen.say(f"    {detail}")


def following(stage: Stage) -> str:
    later = EXERCISES[EXERCISES.index(stage) + 1 :]
    return f" Next: ./workshop exercise {later[0].number}" if later else " That was the last one."


def judge(
    stage: Stage,
    script: Path,
    folder: Path,
    quick: bool,
    repeats: int,
    limit: float,
    screen: Screen,
    outcome: Outcome,
) -> None:
    """The checks in their order; NotYet at the first that fails."""
    gpu = judge_training(stage, script, folder, limit, screen, outcome)
    if quick:
        screen.say("  Not timed: --quick.", "dim")
        outcome.passed, outcome.status = True, RIGHT
        return
    judge_speed(stage, script, folder, repeats, limit, screen, outcome, gpu)
    outcome.passed, outcome.status = True, "passed"


def judge_training(
    stage: Stage, script: Path, folder: Path, limit: float, screen: Screen, outcome: Outcome
) -> bool:
    """Everything but the speed; whether it ran on a GPU."""
    check_source(script)
    files = make_data(folder)
    with screen.doing("running the workshop's own solution"):
        right = right_runs(stage, files, folder / "right", limit)
    place, ran = folder / "mine", {}
    runs = plan_runs(stage, place, files, ours=False)
    with (
        screen.doing("running yours, watched"),
        contextlib.closing(probe(script, place, runs, limit)) as found,
    ):
        one = ran["step"] = next(found)
        screen.good(outcome.step, "one log line per step, and results")
        outcome.step = "It trains the same model"
        gpu = one.observed["gpu"]
        within = MIXED if stage.number == "05" else TENSOR_FLOAT if gpu else FLOAT32
        judge_model(one)
        how = judge_step(one, right["step"], within)
        judge_accuracy(one, within, "")
        for run in runs[1:]:
            ran[run["name"]] = now = next(found)
            judge_model(now)
            if run["name"] == "few":
                judge_half(now, right["few"])
            elif run["name"] == "steps":
                judge_steps(now, right["steps"])
                judge_dropout(now, right["undropped"])
                judge_accuracy(now, within, " without dropout")
            elif run["name"] == "watch":
                judge_count(now, run["steps"])
                judge_draws(now)
        screen.good(outcome.step, how)
    for of_stage, outcome.step, judge_idea in idea_checks(stage, ran, right):
        how = judge_idea()
        if of_stage == stage.number:
            screen.good(outcome.step, how)
    outcome.step = "It sees every image"
    judge_epochs(ran["epochs"], right["epochs"])  # now: a loss in 16 bit has been ruled out
    screen.good(outcome.step, "once per epoch, each epoch in a new order")
    return gpu


ON_A_CPU = {
    "03": "On most CPUs XLA costs time: 04 finds out why.",
    "05": "16 bit pays on a CPU only where it has units for it (AVX-512 BF16, AMX).",
    "06": "On a CPU the data is already in the host's memory, so there is little to gain.",
}


def judge_speed(
    stage: Stage,
    script: Path,
    folder: Path,
    repeats: int,
    limit: float,
    screen: Screen,
    outcome: Outcome,
    gpu: bool,
) -> None:
    must = stage.number in MUST_BE_FASTER or (gpu and stage.number == "06")
    outcome.step = "It is faster" if must else "Its clock is right"
    mine = Entry("yours", script)
    before = Entry(previous(stage).folder, previous(stage).script)
    own = Entry(f"{stage.folder} (ours)", stage.script)
    steps = timed_steps(stage, gpu)
    time_in_turns((mine, before, own), folder, steps, repeats, limit, screen)
    outcome.speeds = {"yours": mine.speed, "before": before.speed, "ours": own.speed}
    judge_clock(mine)
    judge_learning(mine, before)
    found = verdict(mine, before)
    times = ratio(mine.speed, before.speed)
    texts = {"faster": f"Faster, {times}", "slower": f"Slower, {times}"}
    text = texts.get(found, "No clear difference")
    if not must:
        screen.good(outcome.step, "the wall clock agrees")
    elif found == "faster":
        best = f"{times} the speed of {before.name}"
        screen.good(outcome.step, f"{best}; your slowest run beats its fastest")
    show_speeds((mine, before, own), screen, steps)
    if must:
        if found == "slower":
            raise NotYet(f"It is slower than {before.name}: {times}.")
        if found == "unclear":
            raise NotYet(
                "No clear difference in speed: the repeats overlap.",
                f"On a busy machine more repeats help: ./workshop check {stage.number} --repeats 7",
            )
        if far_behind(mine, own):
            screen.say(f"  You can gain more: ours is {ratio(own.speed, mine.speed)} as fast.")
    elif far_behind(mine, own):
        raise NotYet(
            f"The change is correct, but something in it costs time: ours is "
            f"{ratio(own.speed, mine.speed)} as fast."
        )
    else:
        screen.say(f"  {text}. This exercise is about making the change, not about the speed.")
        if not gpu and stage.number in ON_A_CPU:
            screen.say(f"  {ON_A_CPU[stage.number]}")


def time_in_turns(
    entries: tuple[Entry, ...],
    folder: Path,
    steps: int,
    repeats: int,
    limit: float,
    screen: Screen,
) -> None:
    """The first is the attendee's; the others are ours, and must run."""
    file = timed_data(folder)
    for repeat in range(repeats):
        for i, entry in enumerate(entries):
            place = folder / f"time_{repeat}_{i}"
            with screen.doing(f"timing, repeat {repeat + 1} of {repeats}: {entry.name}"):
                try:
                    time_once(entry, place, file, steps, limit)
                except NotYet as problem:
                    if i == 0:
                        raise
                    raise CannotCheck(f"{entry.name} does not run here: {problem}") from None
            shutil.rmtree(place, ignore_errors=True)


def show_speeds(entries: tuple[Entry, ...], screen: Screen, steps: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("script", "img/s", "from", "to", "yours is", "accuracy"):
        table.add_column(name, justify="left" if name == "script" else "right")
    for entry in entries:
        table.add_row(
            entry.name,
            number(entry.speed),
            number(min(entry.speeds)),
            number(max(entry.speeds)),
            "" if entry is entries[0] else ratio(entries[0].speed, entry.speed),
            f"{100 * statistics.median(entry.accuracies):.1f} %",
        )
    screen.console.print(table)
    count = len(entries[0].speeds)
    times = f"{count} times each, alternating" if count > 1 else "once each"
    screen.say(f"  By the wall clock, batch {TIMED_BATCH}, {steps} steps, {times}.", "dim")


# --- what is kept, and the progress table ---


def keep(file: Path, sha: str, outcome: Outcome) -> None:
    kept = {
        "sha256": sha,
        "status": outcome.status if outcome.passed else NOT_YET,
        "problem": outcome.problem,
        "speeds": {name: round(speed, 1) for name, speed in outcome.speeds.items()},
        "date": datetime.date.today().isoformat(),
    }
    path = file.with_name("check.json")
    before = read_kept(file)
    if not kept["speeds"] and before.get("sha256") == sha:  # --quick forgets nothing
        kept["speeds"] = before.get("speeds", {})
        if outcome.passed and before.get("status") == "passed":
            kept["status"] = "passed"
    save(path, lambda part: part.write_text(json.dumps(kept, indent=1) + "\n"))


def read_kept(file: Path) -> dict[str, Any]:
    """The score card; of one that is not ours, what can be used."""
    kept = kept_json(file.with_name("check.json"))
    speeds = kept.get("speeds")
    speeds = speeds if isinstance(speeds, dict) else {}
    numbers = {k: v for k, v in speeds.items() if isinstance(v, (int, float)) and 0 < v < math.inf}
    return {**kept, "speeds": numbers} if kept else {}


def state(stage: Stage) -> tuple[str, dict]:
    file = script_of(stage)
    kept = read_kept(file)
    if not file.is_file():
        return "not started", {}
    status = kept.get("status", "started")
    if kept and kept.get("sha256") != digest(file):
        good = status in ("passed", RIGHT)
        return ("changed since it passed" if good else "started"), kept if good else {}
    return (status if status in ("passed", RIGHT, NOT_YET) else "started"), kept


def progress() -> int:
    screen = Screen()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Your exercises", title_justify="left")
    names = ("", "exercise", "state", "img/s", "x before", "x ours")
    for name in names:
        table.add_column(name, justify="right" if name in names[3:] else "left")
    passed, following_command = 0, ""
    styles = {
        "passed": "green",
        RIGHT: "green",
        "changed since it passed": "yellow",
        NOT_YET: "yellow",
    }
    for stage in EXERCISES:
        status, kept = state(stage)
        speeds = kept.get("speeds") or {}
        mine = speeds.get("yours")
        table.add_row(
            stage.number,
            stage.change,
            Text(status, style=styles.get(status, "dim" if status == "not started" else "")),
            number(mine),
            ratio(mine, speeds.get("before")),
            ratio(mine, speeds.get("ours")),
        )
        passed += status == "passed"
        if status != "passed" and not following_command:
            verb = "exercise" if status == "not started" else "check"
            following_command = f"./workshop {verb} {stage.number}"
    screen.console.print(table)
    text = f"{passed} of {len(EXERCISES)} passed."
    screen.say(f"{text} Next: {following_command}" if following_command else f"{text} Well done.")
    return 0
