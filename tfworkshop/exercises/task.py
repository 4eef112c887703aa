"""`./workshop exercise N`: the previous stage's script for you to change, with the task on top."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tfworkshop import terminal
from tfworkshop.files import kept_json, save
from tfworkshop.problem import Problem, told
from tfworkshop.stages import ROOT, STAGES, Stage, lines_changed

EXERCISES = STAGES[1:7]  # only the first of 06's two rungs; the last is for reading


def my_folder() -> Path:
    """Where attendees work; git ignores it."""
    return Path(os.environ.get("WORKSHOP_MY") or ROOT / "my")


def find_stage(name: str) -> Stage:
    """The stage of an exercise, named 02, 2 or by its folder."""
    wanted = name.zfill(2) if name.isdigit() else name.rstrip("/")
    for stage in EXERCISES:
        if wanted in (stage.number, stage.name, stage.folder):
            return stage
    if wanted in (STAGES[0].number, STAGES[0].folder):
        raise Problem("00 has no exercise: it is the starting point. Type: ./workshop exercise 01")
    raise Problem(f"no exercise {wanted}. The exercises are 01 to {EXERCISES[-1].number}")


def previous(stage: Stage) -> Stage:
    return STAGES[STAGES.index(stage) - 1]


def script_of(stage: Stage) -> Path:
    return my_folder() / stage.number / "train_MNIST.py"


def screen() -> Console:
    console = terminal.console()
    console.width = min(console.width, 100)
    return console


def shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


# --- the text ---


def parts(stage: Stage) -> tuple[str, list[str]]:
    """The task and its hints, from the stage's own folder."""
    text = (ROOT / stage.folder / "exercise.md").read_text(encoding="utf-8")
    count = lines_changed(stage) or 0
    rounded = count if count < 10 else 5 * round(count / 5)  # an exact count would only distract
    text = text.replace("{lines}", f"about {rounded}").replace("{before}", previous(stage).folder)
    task, *hints = re.split(r"^## Hint\n", text, flags=re.M)
    return task.strip(), [hint.strip("\n") for hint in hints]  # code begins indented


def show(text: str, console: Console) -> None:
    """Markdown of the simple kind: a title, `code`, paragraphs."""
    for line in text.splitlines():
        if line.startswith("# "):
            console.print(Text(line[2:], style="bold"))
        else:
            made = Text(line)
            made.highlight_regex(r"`[^`]+`", style="cyan")
            console.print(made)


# --- the file ---


def make_folder(folder: Path) -> None:
    """An exercise's own; a script looks for data in ../data: let it find the repository's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link = folder.parent / "data"
        if not link.is_symlink() and not link.exists():
            link.symlink_to(os.path.relpath(ROOT / "data", folder.parent))
    except OSError as error:
        again = "name another place: WORKSHOP_MY=FOLDER ./workshop ..."
        raise Problem(f"cannot write to {my_folder()} ({told(error)}); {again}") from None


def move_aside(file: Path, console: Console, *kept: str) -> None:
    """Rename the old file to a name that is not in use, and forget what was kept of it."""
    number = 1
    while (aside := file.with_name(f"{file.stem}.{number}{file.suffix}")).exists():
        number += 1
    file.rename(aside)
    console.print(f"Your old file is now {shown(aside)}.", markup=False)
    for name in kept:
        file.with_name(name).unlink(missing_ok=True)


def start(stage: str, fresh: bool) -> int:
    wanted, console = find_stage(stage), screen()
    file, origin, (task, _) = script_of(wanted), previous(wanted).script, parts(wanted)
    make_folder(file.parent)
    show(task, console)
    console.print()
    if fresh and (file.exists() or file.is_symlink()):
        move_aside(file, console, "check.json", "hints.json")
    if file.exists() or file.is_symlink():
        text = "exists already and was not changed. To start again: --fresh moves it aside."
        console.print(f"{shown(file)} {text}", markup=False)
    else:
        title = task.removeprefix("# ").splitlines()
        text = "".join(f"# {line}".rstrip() + "\n" for line in title)
        text += origin.read_text(encoding="utf-8")
        save(file, lambda part: part.write_text(text, encoding="utf-8"))
        console.print(f"Edit {shown(file)}, a copy of {origin.relative_to(ROOT)}.", markup=False)
    console.print()
    activate = [("source .venv/bin/activate", "once per shell")]
    commands = (
        *(activate if (ROOT / ".venv").exists() and "VIRTUAL_ENV" not in os.environ else []),
        (f"(cd {shown(file.parent)} && python {file.name} --steps 50)", "run it"),
        (f"./workshop check {wanted.number} --quick", "is it correct?"),
        (f"./workshop check {wanted.number}", "is it correct, and how fast?"),
        (f"./workshop check {wanted.number} --hint", "one hint at a time"),
    )
    width = max(len(command) for command, _ in commands)
    for command, what in commands:
        console.print(Text.assemble(f"  {command:<{width}}  ", (what, "dim")))
    return 0


# --- hints ---


def show_hint(stage: Stage) -> int:
    """The next hint; how many were shown is saved beside the attendee's file."""
    console, (_, hints) = screen(), parts(stage)
    kept = script_of(stage).parent / "hints.json"
    count = kept_json(kept).get("shown")
    count = count if isinstance(count, int) and count >= 0 else 0
    if count >= len(hints):
        console.print(f"No more hints. All {len(hints)} again:")
        for hint in hints:
            console.print()
            show(hint, console)
        own = f"{stage.folder}/{stage.file}"
        console.print(f"\nThe workshop's own solution is {own}; its README explains it.")
        return 0
    make_folder(kept.parent)
    save(kept, lambda part: part.write_text(json.dumps({"shown": count + 1}) + "\n"))
    console.print(Text(f"Hint {count + 1} of {len(hints)}", style="bold"))
    show(hints[count], console)
    return 0


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
