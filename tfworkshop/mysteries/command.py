"""`./workshop mystery`: list the mysteries, make one, answer it, check its fix."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import msgspec

from tfworkshop.exercises.check import NOT_STARTED, read_state
from tfworkshop.exercises.records import PASSED
from tfworkshop.exercises.task import show_commands, write_script
from tfworkshop.files import display_path, read_cached, save_record
from tfworkshop.mysteries import causes, cure, evidence
from tfworkshop.mysteries.causes import CAUSE_BY_NAME, CAUSES, Cause
from tfworkshop.mysteries.scripts import MYSTERIES, Mystery, build_script, find_mystery
from tfworkshop.problem import Problem, UsageProblem
from tfworkshop.stages import ROOT
from tfworkshop.terminal import console, ratio


def run(
    number: str | None,
    answer: str | None,
    check: bool,
    timeline: bool,
    fresh: bool,
    quick: bool,
    repeats: int,
    limit: int,
) -> int:
    switches = {"--check": check, "--timeline": timeline, "--fresh": fresh}
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
        raise Problem(f"there is no {script} yet. Type: ./workshop mystery {number}")
    if timeline:
        return show_timeline(mystery)
    if answer is not None:
        return judge_answer(mystery, CAUSE_BY_NAME[answer])
    if not read_answers(mystery).solved:
        raise Problem(f"find the cause first: ./workshop mystery {number} --answer CAUSE")
    return cure.check(mystery, quick, repeats, limit)


def workshop_from(folder: Path) -> str:
    """How to type ./workshop in this folder."""
    return os.path.relpath(ROOT / "workshop", folder.resolve())


# --- the list ---


def show_list() -> int:
    print("Trainings of the same CNN, each with something wrong.")
    print("docs/MYSTERIES.md says how to find out what.\n")
    for mystery in MYSTERIES:
        print(f"  {mystery.number}  {describe_progress(mystery)}")
    print("\nThe causes, for --answer; some of them are in no mystery:\n")
    for cause in CAUSES:
        print(f"  {cause.name:<10} {cause.description}")
    print("\nNext: ./workshop mystery N")
    return 0


def describe_progress(mystery: Mystery) -> str:
    state, speeds = read_state(mystery.script)
    answers = read_answers(mystery)
    count = len(answers.tries)
    if state == NOT_STARTED:
        return state
    if not answers.solved:
        return f"started, {count} wrong answer(s)"
    progress = f"{mystery.cause}: found with answer {count}"
    if state == PASSED:
        progress += f", fixed: {ratio(speeds['yours'], speeds['before'])} the speed"
    return progress


# --- making one ---


def make(mystery: Mystery, fresh: bool) -> int:
    if write_script(mystery.script, build_script(mystery), fresh):
        print(f"{display_path(mystery.script)} trains as 04 does, but something is wrong.")
    print("The tools, in the order in which docs/MYSTERIES.md explains them:\n")
    show_tools(mystery)
    return 0


def tool_commands(mystery: Mystery) -> dict[str, str]:
    """What to type in the mystery's folder to get the evidence of each tool."""
    train = "python train_MNIST.py --steps 60 --logdir logs | tee log.txt"
    return {
        "log": train,
        "profile": train,
        "lines": "kernprof -l train_MNIST.py --steps 30",
        "ideal GPU": f"{workshop_from(mystery.script.parent)} profile --ideal-gpu "
        f"--logdir {evidence.ON_IDEAL_GPU} -- python train_MNIST.py --steps 60",
        "timeline": "HOROVOD_CACHE_CAPACITY=0 HOROVOD_TIMELINE=$PWD/timeline.json "
        "horovodrun -np 2 python train_MNIST.py --steps 30",
    }


def show_tools(mystery: Mystery) -> None:
    folder = mystery.script.parent
    command = f"{workshop_from(folder)} mystery {mystery.number}"
    tools = tool_commands(mystery)
    show_commands(
        (f"cd {display_path(folder)}", ""),
        (tools["log"], "# is the number true?"),
        (f"{workshop_from(folder)} report logs", "# what does a step wait for?"),
        (tools["lines"], ""),
        (f"python -m line_profiler -tmz {evidence.LINE_PROFILE}", "# which line, how often?"),
        (tools["ideal GPU"], "# what would a GPU get to do?"),
        (tools["timeline"], ""),
        (f"{command} --timeline", "# with Horovod: who waits for whom?"),
        (f"{command} --answer CAUSE", "# which of the causes is it?"),
    )


def show_timeline(mystery: Mystery) -> int:
    folder = mystery.script.parent
    timeline = evidence.read_timeline(folder)
    if timeline is None:
        raise Problem(
            f"there is no {display_path(folder / evidence.TIMELINE)}, or it was recorded with "
            f"Horovod's cache. In that folder: {tool_commands(mystery)['timeline']}"
        )
    for judge in (causes.judge_straggler, causes.judge_exchange):
        print(judge(timeline).figures)
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
    if right:
        console().print(f"Right: {cause.description}.", style="bold green")
    else:
        console().print(f"Not {cause.name}.", style="bold")
    if finding is None:
        print("None of your runs can confirm this yet. In its folder, this would:")
        print(f"  {tool_commands(mystery)[cause.tool]}")
    else:
        if right and not finding.confirmed:
            print("Your last run does not show it, though.")
        print(finding.figures)
    if right:
        script = display_path(mystery.script)
        print(f"Now fix it in {script}, then: ./workshop mystery {mystery.number} --check")
    return 0 if right else 1
