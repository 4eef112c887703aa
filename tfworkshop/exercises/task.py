"""`./workshop exercise N`: the previous stage's script for you to change, with the task on top."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from rich.text import Text

from tfworkshop.exercises.records import Hints
from tfworkshop.files import display_path, read_cached, save_record, save_text
from tfworkshop.problem import Problem, UsageProblem, describe
from tfworkshop.stages import ROOT, STAGES, Stage, lines_changed
from tfworkshop.terminal import console

EXERCISES = STAGES[1:7]  # only the first of 06's two rungs; the last is for reading


def my_folder() -> Path:
    """Where attendees work; git ignores it."""
    return Path(os.environ.get("WORKSHOP_MY") or ROOT / "my").absolute()


def find_exercise(name: str) -> Stage:
    """The stage of an exercise, named 02, 2 or by its folder."""
    wanted = name.zfill(2) if name.isdigit() else name.rstrip("/")
    for stage in EXERCISES:
        if wanted in (stage.number, stage.name, stage.folder):
            return stage
    raise UsageProblem(f"no exercise {wanted}. The exercises are 01 to {EXERCISES[-1].number}")


def previous(stage: Stage) -> Stage:
    return STAGES[STAGES.index(stage) - 1]


def script_of(stage: Stage) -> Path:
    return my_folder() / stage.number / "train_MNIST.py"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# --- the text ---


def read_task(stage: Stage) -> tuple[str, list[str]]:
    """The task and its hints, from the stage's own folder."""
    text = (ROOT / stage.folder / "exercise.md").read_text(encoding="utf-8")
    text = text.replace("{lines}", f"about {lines_changed(stage)}")
    text = text.replace("{before}", previous(stage).folder)
    task, *hints = re.split(r"^## Hint\n", text, flags=re.M)
    return task.strip(), [hint.strip("\n") for hint in hints]  # a hint may begin with indented code


def show(text: str) -> None:
    """Print Markdown of the simple kind: a title, `code`, paragraphs."""
    for line in text.splitlines():
        rendered = Text(line.removeprefix("# "))
        rendered.highlight_regex(r"`[^`]+`", style="cyan")
        if line.startswith("# "):
            rendered.stylize("bold")
        console().print(rendered)


# --- the file ---


def make_folder(folder: Path) -> None:
    """Create an exercise's folder, and the link ../data: scripts look for their data there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link = folder.parent / "data"
        if not link.is_symlink() and not link.exists():
            link.symlink_to(os.path.relpath(ROOT / "data", folder.parent))
    except OSError as error:
        raise Problem(
            f"cannot write to {my_folder()} ({describe(error)}); "
            "name another place: WORKSHOP_MY=FOLDER ./workshop ..."
        ) from None


def write_script(script: Path, text: str, fresh: bool) -> bool:
    """Write a script for the attendee to edit, unless there is one; `fresh` moves it aside."""
    make_folder(script.parent)
    if fresh and script.exists():
        number = 1
        while (aside := script.with_name(f"{script.stem}.{number}.py")).exists():
            number += 1
        script.rename(aside)
        for record in ("check.json", "hints.json", "answers.json"):
            script.with_name(record).unlink(missing_ok=True)
        print(f"Your old file is now {display_path(aside)}.")
    if script.exists():
        text = "exists already and was not changed. To start again: --fresh moves it aside."
        print(f"{display_path(script)} {text}")
        return False
    save_text(script, text)
    return True


def start(stage: str, fresh: bool) -> int:
    exercise = find_exercise(stage)
    script = script_of(exercise)
    original = previous(exercise).script
    task, _ = read_task(exercise)
    show(task)
    print()
    comment = [f"# {line}".rstrip() for line in task.removeprefix("# ").splitlines()]
    text = "\n".join(comment) + "\n" + original.read_text(encoding="utf-8")
    if write_script(script, text, fresh):
        print(f"Edit {display_path(script)}, a copy of {original.relative_to(ROOT)}.")
    print()
    check = f"./workshop check {exercise.number}"
    show_commands(
        (f"(cd {display_path(script.parent)} && python {script.name} --steps 50)", "run it"),
        (f"{check} --quick", "is it correct?"),
        (check, "is it correct, and how fast?"),
        (f"{check} --hint", "one hint at a time"),
    )
    return 0


def show_commands(*commands: tuple[str, str]) -> None:
    """Commands to type, each with its purpose."""
    if (ROOT / ".venv").exists() and "VIRTUAL_ENV" not in os.environ:
        commands = (("source .venv/bin/activate", "once per shell"), *commands)
    for command, purpose in commands:
        line = Text.assemble(f"  {command:<52}  ", (purpose, "dim"))
        console().print(line, soft_wrap=True)


# --- hints ---


def show_hint(stage: Stage) -> None:
    """Show the next hint; how many were shown is saved beside the attendee's script."""
    _, hints = read_task(stage)
    file = script_of(stage).with_name("hints.json")
    record = read_cached(file, Hints) or Hints()
    if record.shown >= len(hints):
        print(f"No more hints. All {len(hints)} again:")
        for hint in hints:
            print()
            show(hint)
        solution = f"{stage.folder}/{stage.file}"
        print(f"\nThe workshop's own solution is {solution}; its README explains it.")
        return
    make_folder(file.parent)
    record.shown += 1
    save_record(file, record)
    print(f"Hint {record.shown} of {len(hints)}")
    show(hints[record.shown - 1])
