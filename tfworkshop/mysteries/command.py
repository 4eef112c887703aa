"""`./workshop mystery`: list the mysteries, make one, answer it, check its fix."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from tfworkshop.exercises.records import PASSED, read_check
from tfworkshop.exercises.task import digest, make_folder, move_aside, narrow_console
from tfworkshop.files import display_path, read_cached, save_record, save_text
from tfworkshop.mysteries import causes, cure, evidence
from tfworkshop.mysteries.causes import CAUSE_BY_NAME, CAUSES, Cause
from tfworkshop.mysteries.scripts import MYSTERIES, Mystery, build_script, find_mystery
from tfworkshop.problem import Problem, UsageProblem
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
    switches = {"--check": check, "--xray": xray, "--timeline": timeline, "--fresh": fresh}
    actions = [name for name, given in switches.items() if given]
    if answer is not None:
        actions.append("--answer")
    if len(actions) > 1:
        raise UsageProblem(f"choose one of {' and '.join(actions)}")
    if number is None:
        if actions:
            raise UsageProblem(f"{actions[0]} needs a number: ./workshop mystery 1 {actions[0]}")
        return show_list()
    mystery = find_mystery(number)
    if answer is not None and answer not in CAUSE_BY_NAME:
        raise UsageProblem(f"{answer} is not one of the causes: {', '.join(CAUSE_BY_NAME)}")
    if mystery.cause == "straggler" and importlib.util.find_spec("horovod") is None:
        raise Problem(f"mystery {number} needs Horovod: ./workshop setup --horovod installs it")
    if fresh or not actions:
        return make(mystery, fresh)
    if not mystery.script.is_file():
        script = display_path(mystery.script)
        raise Problem(f"there is no {script} yet. Type: {command_line(mystery)}")
    if xray:
        return show_xray(mystery)
    if timeline:
        return show_timeline(mystery)
    if answer is not None:
        return judge_answer(mystery, CAUSE_BY_NAME[answer])
    if not read_answers(mystery).solved:
        hint = command_line(mystery, "--answer CAUSE")
        raise Problem(f"find the cause before you fix it. Type: {hint}")
    return cure.check(mystery, quick, repeats, limit)


def workshop_from(folder: Path) -> str:
    """How to type ./workshop in this folder."""
    path = os.path.relpath(ROOT / "workshop", folder.resolve())
    return path if path.startswith("..") else f"./{path}"


def command_line(mystery: Mystery, options: str = "") -> str:
    """The command for a mystery, as it is typed in the current folder."""
    return f"{workshop_from(Path.cwd())} mystery {mystery.number} {options}".rstrip()


# --- the list ---


def show_list() -> int:
    console = narrow_console()
    console.print(
        "Trainings of the same CNN, each with something wrong. "
        "docs/MYSTERIES.md says how to find out what.\n"
    )
    for mystery in MYSTERIES:
        console.print(f"  {mystery.number}  {describe_progress(mystery)}", markup=False)
    console.print("\nThe causes, for --answer; some of them are in no mystery:\n")
    for cause in CAUSES:
        console.print(f"  {cause.name:<10} {cause.description}", markup=False)
    for mystery in MYSTERIES:
        if not fixed_speeds(mystery):
            console.print(f"\nNext: {command_line(mystery)}", markup=False)
            break
    return 0


def describe_progress(mystery: Mystery) -> str:
    if not mystery.script.is_file():
        return "not started"
    answers = read_answers(mystery)
    count = len(answers.tries)
    if not answers.solved:
        return f"{count} answer(s), none right" if count else "started"
    progress = f"{mystery.cause}: found with answer {count}"
    speeds = fixed_speeds(mystery)
    if speeds:
        progress += f", fixed: {ratio(speeds['yours'], speeds['before'])} the speed"
    return progress


def fixed_speeds(mystery: Mystery) -> dict[str, float]:
    """The speeds that the last check measured; empty unless it passed this very file."""
    last_check = read_check(mystery.script)
    if last_check is None or last_check.status != PASSED or not mystery.script.is_file():
        return {}
    return last_check.speeds if last_check.sha256 == digest(mystery.script) else {}


# --- making one ---


def make(mystery: Mystery, fresh: bool) -> int:
    console = narrow_console()
    script = mystery.script
    make_folder(script.parent)
    if fresh and script.exists():
        aside = move_aside(script, "answers.json", "check.json")
        console.print(f"Your old file is now {display_path(aside)}.", markup=False)
    if script.exists():
        outcome = "exists already and was not changed. To start again: --fresh moves it aside."
    else:
        save_text(script, build_script(mystery))
        outcome = "trains as 04 does, but something is wrong."
    console.print(f"{display_path(script)} {outcome}", markup=False)
    console.print("The tools, in the order in which docs/MYSTERIES.md explains them:\n")
    show_tools(mystery, console)
    return 0


def tool_commands(mystery: Mystery) -> dict[str, str]:
    """What to type in the mystery's folder to get the evidence of each tool."""
    train = "python train_MNIST.py --steps 60 --logdir logs | tee log.txt"
    return {
        "log": train,
        "profile": train,
        "lines": "kernprof -l train_MNIST.py --steps 30",
        "xray": f"{workshop_from(mystery.script.parent)} mystery {mystery.number} --xray",
        "timeline": "HOROVOD_CACHE_CAPACITY=0 HOROVOD_TIMELINE=$PWD/timeline.json "
        "horovodrun -np 2 python train_MNIST.py --steps 30",
    }


def show_tools(mystery: Mystery, console: Console) -> None:
    folder = mystery.script.parent
    workshop = workshop_from(folder)
    tools = tool_commands(mystery)
    rows = [
        (f"cd {display_path(folder)}", ""),
        (tools["log"], "is the number true?"),
        (f"{workshop} report logs", "what does a step wait for?"),
        (tools["lines"], ""),
        (f"python -m line_profiler -tmz {evidence.LINE_PROFILE}", "which line, how often?"),
        (tools["xray"], "what would a GPU see?"),
        (tools["timeline"], ""),
        (f"{workshop} mystery {mystery.number} --timeline", "with Horovod: who waits for whom?"),
        (f"{workshop} mystery {mystery.number} --answer CAUSE", "which of the causes is it?"),
    ]
    if (ROOT / ".venv").exists() and "VIRTUAL_ENV" not in os.environ:
        rows.insert(0, ("source .venv/bin/activate", "once per shell"))
    for command, question in rows:
        comment = f"# {question}" if question else ""
        console.print(Text.assemble(f"  {command:<52}  ", (comment, "dim")), soft_wrap=True)


# --- two of the tools ---


def show_xray(mystery: Mystery) -> int:
    from tfworkshop.mysteries import placement
    from tfworkshop.xray import show

    cases = placement.xray(mystery.script)
    for case in cases:
        case["name"] = f"M{mystery.number}"
    show.show(cases, narrow_console())
    return 0


def show_timeline(mystery: Mystery) -> int:
    folder = mystery.script.parent
    timeline = evidence.read_timeline(folder)
    if timeline is None:
        raise Problem(
            f"there is no {display_path(folder / evidence.TIMELINE)}, or it was recorded with "
            f"Horovod's cache. In that folder: {tool_commands(mystery)['timeline']}"
        )
    for judge in (causes.judge_straggler, causes.judge_exchange):
        narrow_console().print(judge(timeline).figures, markup=False)
    return 0


# --- the answer ---


class Answers(msgspec.Struct):
    """What an attendee has answered so far."""

    tries: list[str] = []
    solved: bool = False


def answers_file(mystery: Mystery) -> Path:
    return mystery.script.with_name("answers.json")


def read_answers(mystery: Mystery) -> Answers:
    return read_cached(answers_file(mystery), Answers) or Answers()


def judge_answer(mystery: Mystery, cause: Cause) -> int:
    """Right or wrong, and what the attendee's own runs show."""
    right = cause.name == mystery.cause
    seen = evidence.read(cause.tool, mystery.script.parent)
    finding = None if seen is None else cause.judge(seen)
    answers = read_answers(mystery)
    if not answers.solved:
        save_record(answers_file(mystery), Answers([*answers.tries, cause.name], right))
    console = narrow_console()
    if right:
        console.print(Text(f"Right: {cause.description}.", style="bold green"))
    else:
        console.print(Text(f"Not {cause.name}.", style="bold"))
    if finding is None:
        console.print("None of your runs can confirm this yet. In its folder, this would:")
        console.print(Text(f"  {tool_commands(mystery)[cause.tool]}"), soft_wrap=True)
    else:
        if right and not finding.confirmed:
            console.print("Your last run does not show it, though.")
        console.print(finding.figures, markup=False)
    if right:
        script = display_path(mystery.script)
        next_command = command_line(mystery, "--check")
        console.print(f"Now fix it in {script}, then: {next_command}", markup=False)
    return 0 if right else 1
