"""`./workshop check N`: is the attendee's script correct, does it do what was asked, is it faster?

The script runs in separate processes (trial.py). What it does is judged (judge.py), then its speed
is measured (timing.py), in the order in which a teacher would look. The first mistake ends the
check. `./workshop check` alone shows the progress.
"""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.judge import judge_training
from tfworkshop.exercises.records import CORRECT, NOT_YET, PASSED, Check, read_check
from tfworkshop.exercises.task import (
    EXERCISES,
    digest,
    find_exercise,
    narrow_console,
    script_of,
    show_hint,
)
from tfworkshop.exercises.timing import judge_speed
from tfworkshop.files import display_path
from tfworkshop.problem import Problem, UsageProblem
from tfworkshop.stages import Stage
from tfworkshop.terminal import number, ratio

NOT_STARTED = "not started"
STARTED = "started"
CHANGED = "changed since it passed"
STYLES = {
    PASSED: "green",
    CORRECT: "green",
    CHANGED: "yellow",
    NOT_YET: "yellow",
    STARTED: "",
    NOT_STARTED: "dim",
}


def run(stage: str | None, quick: bool, repeats: int, hint: bool, limit: float) -> int:
    if stage is None and hint:
        raise UsageProblem("--hint needs the number of an exercise: ./workshop check 02 --hint")
    if stage is None:
        show_progress()
        return 0
    exercise = find_exercise(stage)
    if hint:
        show_hint(exercise)
        return 0
    return check(exercise, quick, repeats, limit)


def check(stage: Stage, quick: bool, repeats: int, limit: float) -> int:
    script = script_of(stage)
    if not script.is_file():
        raise Problem(
            f"there is no {display_path(script)} yet. Type: ./workshop exercise {stage.number}"
        )
    attempt = Attempt(script, quick, repeats, limit)

    def judge() -> None:
        gpu = judge_training(stage, attempt)
        if not quick:
            judge_speed(stage, attempt, gpu)

    command = f"./workshop check {stage.number}"
    if not attempt.examine(judge):
        attempt.say(f"A hint: {command} --hint")
        return 1
    if quick:
        conclusion = f"is correct. How fast is it? {command}"
    elif stage == EXERCISES[-1]:
        conclusion = "passed. That was the last one."
    else:
        following = EXERCISES[EXERCISES.index(stage) + 1]
        conclusion = f"passed. Next: ./workshop exercise {following.number}"
    attempt.say(f"Exercise {stage.number} {conclusion}", "bold green")
    return 0


# --- the progress table ---


def read_state(stage: Stage) -> tuple[str, Check | None]:
    script = script_of(stage)
    if not script.is_file():
        return NOT_STARTED, None
    last = read_check(script)
    if last is None:
        return STARTED, None
    if last.sha256 == digest(script):
        return last.status, last
    if last.status == NOT_YET:
        return STARTED, None
    return CHANGED, last


def show_progress() -> None:
    console = narrow_console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Your exercises", title_justify="left")
    for name in ("", "exercise", "state"):
        table.add_column(name)
    for name in ("img/s", "x before", "x ours"):
        table.add_column(name, justify="right")
    left = []
    for stage in EXERCISES:
        state, last = read_state(stage)
        if state != PASSED:
            left.append((stage, state))
        speeds = last.speeds if last else {}
        mine = speeds.get("yours")
        table.add_row(
            stage.number,
            stage.change,
            Text(state, style=STYLES[state]),
            number(mine),
            ratio(mine, speeds.get("before")),
            ratio(mine, speeds.get("ours")),
        )
    console.print(table)
    summary = f"{len(EXERCISES) - len(left)} of {len(EXERCISES)} passed."
    if not left:
        console.print(f"{summary} Well done.")
        return
    stage, state = left[0]
    verb = "exercise" if state == NOT_STARTED else "check"
    console.print(f"{summary} Next: ./workshop {verb} {stage.number}")
