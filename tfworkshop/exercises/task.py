"""`./workshop exercise N`: the previous stage's script for you to change, with the task on top."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tfworkshop import terminal
from tfworkshop.exercises.records import Hints
from tfworkshop.files import display_path, read_cached, save_record, save_text
from tfworkshop.problem import Problem, UsageProblem, describe
from tfworkshop.stages import ROOT, STAGES, Stage, lines_changed

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
    if wanted in (STAGES[0].number, STAGES[0].folder):
        raise UsageProblem("00 has no exercise: it is the starting point. Try 01")
    raise UsageProblem(f"no exercise {wanted}. The exercises are 01 to {EXERCISES[-1].number}")


def previous(stage: Stage) -> Stage:
    return STAGES[STAGES.index(stage) - 1]


def script_of(stage: Stage) -> Path:
    return my_folder() / stage.number / "train_MNIST.py"


def narrow_console() -> Console:
    """At most 100 columns, as the tasks are written."""
    console = terminal.console()
    console.width = min(console.width, 100)
    return console


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# --- the text ---


def read_task(stage: Stage) -> tuple[str, list[str]]:
    """The task and its hints, from the stage's own folder."""
    text = (ROOT / stage.folder / "exercise.md").read_text(encoding="utf-8")
    lines = lines_changed(stage) or 0
    if lines >= 10:
        lines = 5 * round(lines / 5)  # an exact number would only distract
    text = text.replace("{lines}", f"about {lines}").replace("{before}", previous(stage).folder)
    task, *hints = re.split(r"^## Hint\n", text, flags=re.M)
    return task.strip(), [hint.strip("\n") for hint in hints]  # a hint may begin with indented code


def show(text: str, console: Console) -> None:
    """Print Markdown of the simple kind: a title, `code`, paragraphs."""
    for line in text.splitlines():
        if line.startswith("# "):
            console.print(Text(line[2:], style="bold"))
        else:
            rendered = Text(line)
            rendered.highlight_regex(r"`[^`]+`", style="cyan")
            console.print(rendered)


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


def move_aside(file: Path, *records: str) -> Path:
    """Rename a file to a name that is free, and remove the records about it."""
    number = 1
    while (aside := file.with_name(f"{file.stem}.{number}{file.suffix}")).exists():
        number += 1
    file.rename(aside)
    for record in records:
        file.with_name(record).unlink(missing_ok=True)
    return aside


def start(stage: str, fresh: bool) -> int:
    exercise = find_exercise(stage)
    script = script_of(exercise)
    original = previous(exercise).script
    task, _ = read_task(exercise)
    console = narrow_console()
    make_folder(script.parent)
    show(task, console)
    console.print()
    if fresh and script.exists():
        aside = move_aside(script, "check.json", "hints.json")
        console.print(f"Your old file is now {display_path(aside)}.", markup=False)
    if script.exists():
        text = "exists already and was not changed. To start again: --fresh moves it aside."
        console.print(f"{display_path(script)} {text}", markup=False)
    else:
        comment = [f"# {line}".rstrip() for line in task.removeprefix("# ").splitlines()]
        save_text(script, "\n".join(comment) + "\n" + original.read_text(encoding="utf-8"))
        copied = f"a copy of {original.relative_to(ROOT)}"
        console.print(f"Edit {display_path(script)}, {copied}.", markup=False)
    console.print()
    show_commands(exercise, console)
    return 0


def show_commands(stage: Stage, console: Console) -> None:
    script = script_of(stage)
    folder = display_path(script.parent)
    commands = [
        (f"(cd {folder} && python {script.name} --steps 50)", "run it"),
        (f"./workshop check {stage.number} --quick", "is it correct?"),
        (f"./workshop check {stage.number}", "is it correct, and how fast?"),
        (f"./workshop check {stage.number} --hint", "one hint at a time"),
    ]
    if (ROOT / ".venv").exists() and "VIRTUAL_ENV" not in os.environ:
        commands.insert(0, ("source .venv/bin/activate", "once per shell"))
    width = max(len(command) for command, _ in commands)
    for command, purpose in commands:
        console.print(Text.assemble(f"  {command:<{width}}  ", (purpose, "dim")))


# --- hints ---


def show_hint(stage: Stage) -> None:
    """Show the next hint; how many were shown is saved beside the attendee's script."""
    console = narrow_console()
    _, hints = read_task(stage)
    file = script_of(stage).with_name("hints.json")
    record = read_cached(file, Hints) or Hints()
    if record.shown >= len(hints):
        console.print(f"No more hints. All {len(hints)} again:")
        for hint in hints:
            console.print()
            show(hint, console)
        solution = f"{stage.folder}/{stage.file}"
        console.print(f"\nThe workshop's own solution is {solution}; its README explains it.")
        return
    make_folder(file.parent)
    record.shown += 1
    save_record(file, record)
    console.print(Text(f"Hint {record.shown} of {len(hints)}", style="bold"))
    show(hints[record.shown - 1], console)
