"""`./workshop mystery`: the list; make one, answer it, check its fix."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

from rich.text import Text

from tfworkshop.exercises.attempt import read_kept
from tfworkshop.exercises.task import digest, make_folder, move_aside, screen, shown
from tfworkshop.files import kept_json, save
from tfworkshop.mysteries import causes, evidence
from tfworkshop.mysteries.causes import BY_NAME, CAUSES, TOOLS
from tfworkshop.mysteries.scripts import MYSTERIES, Mystery, find, made
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT
from tfworkshop.terminal import ratio


def run(
    number: str | None,
    answer: str | None,
    check: bool,
    xray: bool,
    timeline: bool,
    fresh: bool,
    quick: bool,
    repeats: int,
    limit: int,
) -> int:
    options = {"--answer": answer is not None, "--check": check, "--xray": xray}
    options |= {"--timeline": timeline, "--fresh": fresh}
    wanted = [name for name, given in options.items() if given]
    if len(wanted) > 1:
        raise Problem(f"{wanted[0]} or {wanted[1]}: one at a time")
    if number is None:
        if wanted:
            raise Problem(f"{wanted[0]} needs a number: ./workshop mystery 1 {wanted[0]}")
        return show_list()
    mystery = find(number)
    if answer is not None and answer not in BY_NAME:
        raise Problem(f"{answer} is none of the causes: {', '.join(BY_NAME)}")
    if mystery.cause == "straggler" and importlib.util.find_spec("horovod") is None:
        raise Problem(f"mystery {number} needs Horovod: ./workshop setup --horovod installs it")
    if fresh or not wanted:
        return make(mystery, fresh)
    if not mystery.script.is_file():
        raise Problem(f"no {shown(mystery.script)} yet. Type: {typed(mystery)}")
    if xray:
        return show_xray(mystery)
    if timeline:
        return show_timeline(mystery)
    if answer is not None:
        return judge_answer(mystery, BY_NAME[answer])
    if not read_answers(mystery)["found"]:
        raise Problem(f"the cause comes before the fix. Type: {typed(mystery, '--answer CAUSE')}")
    from tfworkshop.mysteries import cure

    return cure.check(mystery, quick, repeats, limit)


def entry(folder: Path) -> str:
    """./workshop, as it is typed in a folder."""
    if not folder.is_relative_to(ROOT):
        return str(ROOT / "workshop")
    path = os.path.relpath(ROOT / "workshop", folder)
    return path if path.startswith("..") else f"./{path}"


def typed(mystery: Mystery, more: str = "") -> str:
    """The command for a mystery, as it is typed here."""
    return f"{entry(Path.cwd())} mystery {mystery.number} {more}".rstrip()


# --- the list ---


def state(mystery: Mystery) -> str:
    if not mystery.script.is_file():
        return "not started"
    answers, kept = read_answers(mystery), read_kept(mystery.script)
    tries = len(answers["tries"])
    if not answers["found"]:
        return f"{tries} answer(s), none right" if tries else "started"
    told = f"{mystery.cause}: found with answer {tries}"
    if kept.get("status") == "passed" and kept.get("sha256") == digest(mystery.script):
        speeds = kept.get("speeds") or {}
        told += f", fixed: {ratio(speeds.get('yours'), speeds.get('before'))} the speed"
    return told


def show_list() -> int:
    console, states = screen(), [state(mystery) for mystery in MYSTERIES]
    console.print("Trainings of the same CNN, each with something wrong: docs/MYSTERIES.md says how to")
    console.print("find out what.\n")
    for mystery, told in zip(MYSTERIES, states):
        console.print(f"  {mystery.number}  {told}", markup=False)
    console.print("\nThe causes, for --answer; some of them are nowhere:\n")
    for cause in CAUSES:
        console.print(f"  {cause.name:<10} {cause.says}", markup=False)
    left = [mystery for mystery, told in zip(MYSTERIES, states) if "fixed" not in told]
    if left:
        console.print(f"\nNext: {typed(left[0])}", markup=False)
    return 0


# --- making one ---


def make(mystery: Mystery, fresh: bool) -> int:
    console, file = screen(), mystery.script
    text = made(mystery)
    make_folder(file.parent)
    if file.exists() and fresh:
        move_aside(file, console, "answers.json", "check.json")
    if file.exists():
        told = "is there already and was not touched. To start anew: --fresh moves it aside."
        console.print(f"{shown(file)} {told}", markup=False)
    else:
        save(file, lambda part: part.write_text(text, encoding="utf-8"))
        console.print(f"{shown(file)} trains as 04 does, and something is wrong.", markup=False)
    console.print("What? The tools, in their order; docs/MYSTERIES.md says what each of them answers:\n")
    there = Path.cwd() == file.parent.resolve()
    own = f"{entry(file.parent.resolve())} mystery {mystery.number}"
    active = "VIRTUAL_ENV" in os.environ or not (ROOT / ".venv").exists()
    rows = [
        ("" if active else "source .venv/bin/activate", "once in a shell"),
        ("" if there else f"cd {shown(file.parent)}", ""),
        (TOOLS["log"], "is the number true?"),
        (f"{entry(file.parent.resolve())} report logs", "what does a step wait for?"),
        (TOOLS["lines"], ""),
        (f"python -m line_profiler -tmz {evidence.LPROF}", "which line, how often?"),
        (f"{own} --xray", "what would a GPU see?"),
        (TOOLS["timeline"], ""),
        (f"{own} --timeline", "who waits for whom?"),
        (f"{own} --answer CAUSE", "./workshop mystery lists the causes"),
    ]
    if importlib.util.find_spec("horovod") is None:
        rows = [row for row in rows if "imeline" not in row[0]]
    for command, what in (row for row in rows if row[0]):
        console.print(Text.assemble(f"  {command:<52}  ", (f"# {what}" if what else "", "dim")))
    return 0


# --- two of the tools ---


def show_xray(mystery: Mystery) -> int:
    from tfworkshop.mysteries import placement
    from tfworkshop.xray import show

    cases = placement.find(mystery.script.resolve(), f"M{mystery.number}: mystery")
    placement.keep(cases, mystery.script.with_name(evidence.XRAY))
    show.show(cases, screen())
    return 0


def show_timeline(mystery: Mystery) -> int:
    path = mystery.script.with_name(evidence.TIMELINE)
    line = evidence.read_timeline(path)
    if line is None:
        command = TOOLS["timeline"].replace("\\\n ", "")
        raise Problem(f"no timeline to read at {shown(path)}. In that folder: {command}")
    for look in (causes.is_late, causes.exchanges_long):
        screen().print(look(line)[1], markup=False)
    return 0


# --- the answer ---


def answers_file(mystery: Mystery) -> Path:
    return mystery.script.with_name("answers.json")


def read_answers(mystery: Mystery) -> dict:
    kept = kept_json(answers_file(mystery))
    tries = kept.get("tries")
    return {"tries": tries if isinstance(tries, list) else [], "found": kept.get("found") is True}


def judge_answer(mystery: Mystery, cause: causes.Cause) -> int:
    """Right or wrong, and what the attendee's own runs say to this cause."""
    console, right = screen(), cause.name == mystery.cause
    kept = read_answers(mystery)
    if not kept["found"]:
        text = json.dumps({"tries": [*kept["tries"], cause.name], "found": right}) + "\n"
        save(answers_file(mystery), lambda part: part.write_text(text))
    found = cause.look(evidence.read(mystery.script.parent, made(mystery)))
    verdict = f"Right: {cause.says}." if right else f"Not {cause.name}."
    console.print(Text(verdict, style="bold green" if right else "bold"))
    if found is None:
        console.print("You have no run here that tells. This would, in the mystery's folder:")
        command = TOOLS.get(cause.tool) or typed(mystery, "--xray")
        console.print(f"  {command}", markup=False)
    elif right and not found[0]:
        console.print(f"Your last run does not show it, though. {found[1]}", markup=False)
    else:
        console.print(found[1], markup=False)
    if right:
        following = typed(mystery, "--check")
        console.print(f"Now fix it in {shown(mystery.script)}, then: {following}", markup=False)
    return 0 if right else 1
