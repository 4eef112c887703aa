"""`./workshop check N`: is the attendee's script correct, does it do what was asked, is it faster?

The script runs in separate processes (trial.py). What it does is judged (judge.py), then its speed
is measured (timing.py), in the order in which a teacher would look. The first mistake ends the
check. `./workshop check` alone shows the progress.
"""

from __future__ import annotations

from pathlib import Path

from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.judge import judge_training
from tfworkshop.exercises.records import NOT_YET, PASSED, read_check
from tfworkshop.exercises.task import EXERCISES, digest, find_exercise, script_of, show_hint
from tfworkshop.exercises.timing import judge_speed
from tfworkshop.files import display_path
from tfworkshop.problem import Problem, UsageProblem
from tfworkshop.stages import Stage
from tfworkshop.terminal import console, number, print_table, ratio

NOT_STARTED = "not started"
STARTED = "started"
CHANGED = "changed since it passed"


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
        print(f"A hint: {command} --hint")
        return 1
    conclusion = "passed. Your progress: ./workshop check"
    if quick:
        conclusion = f"is correct. How fast is it? {command}"
    attempt.console.print(f"Exercise {stage.number} {conclusion}", style="bold green")
    return 0


# --- the progress table ---


def read_state(script: Path) -> tuple[str, dict[str, float]]:
    """The state of a script, and the speeds that were measured."""
    if not script.is_file():
        return NOT_STARTED, {}
    last = read_check(script)
    if last and last.sha256 == digest(script):
        return last.status, last.speeds
    if last and last.status != NOT_YET:
        return CHANGED, last.speeds
    return STARTED, {}


def show_progress() -> None:
    rows = []
    left = []
    for stage in EXERCISES:
        state, speeds = read_state(script_of(stage))
        if state != PASSED:
            left.append((stage, state))
        mine = speeds.get("yours")
        before, ours = ratio(mine, speeds.get("before")), ratio(mine, speeds.get("ours"))
        rows.append([stage.number, stage.change, state, number(mine), before, ours])
    titles = ["", "exercise", "state", "img/s", "x before", "x ours"]
    print_table(console(), titles, rows, words=["exercise", "state"])
    summary = f"{len(EXERCISES) - len(left)} of {len(EXERCISES)} passed."
    if not left:
        print(f"{summary} Well done.")
        return
    stage, state = left[0]
    verb = "exercise" if state == NOT_STARTED else "check"
    print(f"{summary} Next: ./workshop {verb} {stage.number}")
