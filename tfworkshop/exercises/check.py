"""`./workshop check N`: is the attendee's script correct, does it do what was asked, is it faster?

The script runs in separate processes (trial.py). What it does is judged (judge.py), then its speed
is measured (timing.py), in the order in which a teacher would look. The first mistake ends the
check. `./workshop check` alone shows the progress.
"""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from tfworkshop.exercises.attempt import NOT_YET, PASSED, RIGHT, Attempt, read_kept
from tfworkshop.exercises.judge import judge_training
from tfworkshop.exercises.task import EXERCISES, digest, find_stage, screen, script_of, show_hint, shown
from tfworkshop.exercises.timing import judge_speed
from tfworkshop.problem import Problem
from tfworkshop.stages import Stage
from tfworkshop.terminal import number, ratio

CHANGED = "changed since it passed"
STYLES = {PASSED: "green", RIGHT: "green", CHANGED: "yellow", NOT_YET: "yellow"}


def run(stage: str | None, quick: bool, repeats: int, hint: bool, limit: float) -> int:
    if stage is None and hint:
        raise Problem("--hint needs the number of an exercise: ./workshop check 02 --hint")
    if stage is None:
        return progress()
    found = find_stage(stage)
    return show_hint(found) if hint else check(found, quick, repeats, limit)


def check(stage: Stage, quick: bool, repeats: int, limit: float) -> int:
    file = script_of(stage)
    if not file.is_file():
        there, fresh = ("is not a file", " --fresh") if file.exists() else ("is not there yet", "")
        raise Problem(f"{shown(file)} {there}. Type: ./workshop exercise {stage.number}{fresh}")
    attempt = Attempt(file, quick, repeats, limit)

    def judge() -> None:
        gpu = judge_training(stage, attempt)
        if not quick:
            judge_speed(stage, attempt, gpu)

    again = f"./workshop check {stage.number}"
    if not attempt.examine(judge):
        attempt.say(f"A hint: {again} --hint")
        return 1
    later = EXERCISES[EXERCISES.index(stage) + 1 :]
    told = f"Next: ./workshop exercise {later[0].number}" if later else "That was the last one."
    told = f"is correct. How fast is it? {again}" if quick else f"passed. {told}"
    attempt.say(f"Exercise {stage.number} {told}", "bold green")
    return 0


# --- the progress table ---


def state(stage: Stage) -> tuple[str, dict]:
    file = script_of(stage)
    if not file.is_file():
        return "not started", {}
    kept = read_kept(file)
    status = kept.get("status")
    if status not in (PASSED, RIGHT, NOT_YET):
        status = "started"
    if kept and kept.get("sha256") != digest(file):
        return (CHANGED, kept) if status in (PASSED, RIGHT) else ("started", {})
    return status, kept


def progress() -> int:
    console = screen()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Your exercises", title_justify="left")
    for name in ("", "exercise", "state"):
        table.add_column(name)
    for name in ("img/s", "x before", "x ours"):
        table.add_column(name, justify="right")
    states = [(stage, *state(stage)) for stage in EXERCISES]
    for stage, status, kept in states:
        speeds = kept.get("speeds") or {}
        mine = speeds.get("yours")
        table.add_row(
            stage.number,
            stage.change,
            Text(status, style=STYLES.get(status, "dim" if status == "not started" else "")),
            number(mine),
            ratio(mine, speeds.get("before")),
            ratio(mine, speeds.get("ours")),
        )
    console.print(table)
    left = [(stage, status) for stage, status, _ in states if status != PASSED]
    told = f"{len(states) - len(left)} of {len(states)} passed."
    if left:
        stage, status = left[0]
        verb = "exercise" if status == "not started" else "check"
        console.print(f"{told} Next: ./workshop {verb} {stage.number}")
    else:
        console.print(f"{told} Well done.")
    return 0
