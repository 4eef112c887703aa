"""`./workshop mystery N --check`: does it train as 04 does, is the cause gone, how fast is it?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tools import data
from tools.exercises import watched
from tools.exercises.check import (
    RIGHT,
    Outcome,
    Screen,
    judge_training,
    say_problem,
    show_speeds,
    supervise,
    time_in_turns,
)
from tools.exercises.timing import Entry, far_behind, judge_clock, judge_learning, verdict
from tools.exercises.trial import CannotCheck, NotYet, died, environment
from tools.machine import in_container
from tools.mysteries import evidence
from tools.mysteries.causes import BY_NAME
from tools.mysteries.evidence import Facts
from tools.mysteries.scripts import BASE, Mystery, made
from tools.terminal import ratio

STEPS = 30
RANKS = 2


def check(mystery: Mystery, quick: bool, repeats: int, limit: float) -> int:
    screen, outcome = Screen(), Outcome()

    def look(script: Path, folder: Path) -> None:
        judge(mystery, script, folder, quick, repeats, limit, screen, outcome)

    problem = supervise(mystery.script, screen, outcome, look)
    screen.say("")
    if problem:
        say_problem(problem, screen)
        return 1
    told = "right; without --quick it is timed" if outcome.status == RIGHT else "fixed"
    screen.say(f"Mystery {mystery.number} is {told}.", "bold green")
    return 0


def judge(
    mystery: Mystery,
    script: Path,
    folder: Path,
    quick: bool,
    repeats: int,
    limit: float,
    screen: Screen,
    outcome: Outcome,
) -> None:
    """NotYet at the first thing that is wrong."""
    judge_training(BASE, script, folder, limit, screen, outcome)
    outcome.step = "The cause is gone"
    cause = BY_NAME[mystery.cause]
    with screen.doing("looking for the cause, as you did"):
        found = cause.look(gather(cause.tool, script, folder / "again", limit))
    if found is None:
        raise CannotCheck("the run that should show the cause left nothing to read")
    if found[0]:
        raise NotYet(f"It is still there. {found[1]}")
    screen.good(outcome.step, found[1])
    if quick:
        screen.say("  Not timed: --quick.", "dim")
        outcome.passed, outcome.status = True, RIGHT
        return
    outcome.step = "It is as fast as 04"
    before = folder / "made" / "train_MNIST.py"
    before.parent.mkdir()
    before.write_text(made(mystery), encoding="utf-8")
    entries = (
        Entry("yours", script),
        Entry(f"mystery {mystery.number}", before),
        Entry(BASE.folder, BASE.script),
    )
    if cause.tool == "timeline":
        time_ranks(entries, folder, repeats, limit, screen)
    else:
        time_in_turns(entries, folder, STEPS, repeats, limit, screen)
        judge_clock(entries[0])
        judge_learning(entries[0], entries[2])
        show_speeds(entries, screen, STEPS)
    mine, was, own = entries
    outcome.speeds = {"yours": mine.speed, "before": was.speed, "ours": own.speed}
    if far_behind(mine, own):
        raise NotYet(f"Something in it still costs time: 04 is {ratio(own.speed, mine.speed)} it.")
    if verdict(mine, was) == "slower":
        raise NotYet(f"It is slower than it was: {ratio(mine.speed, was.speed)}.")
    gain = f"{ratio(mine.speed, own.speed)} 04, {ratio(mine.speed, was.speed)} what it was"
    screen.good(outcome.step, "its number is true now" if cause.name == "clock" else gain)
    outcome.passed, outcome.status = True, "passed"


def time_ranks(
    entries: tuple[Entry, ...], folder: Path, repeats: int, limit: float, screen: Screen
) -> None:
    """By the time stamps of the log, in turns."""
    for repeat in range(repeats):
        for i, entry in enumerate(entries):
            with screen.doing(f"timing {RANKS} ranks, repeat {repeat + 1}: {entry.name}"):
                facts = gather("timeline", entry.script, folder / f"ranks_{repeat}_{i}", limit)
            if facts.log is None:
                raise CannotCheck(f"{entry.name}: no log of {RANKS} ranks")
            entry.speeds.append(facts.log.real)


def gather(tool: str, script: Path, folder: Path, limit: float) -> Facts:
    """Use a tool on a script, as the attendee would; what that left behind."""
    folder.mkdir()
    shutil.copyfile(script, folder / "train_MNIST.py")
    words = ["train_MNIST.py", "--steps", str(STEPS), "--data", str(data.DEFAULT_PATH)]
    python, env = [sys.executable], environment()
    command = [*python, *words, "--logdir", evidence.LOGS]
    if tool == "lines":
        command = [*python, "-m", "kernprof", "-l", *words]
    elif tool == "xray":
        command = [*python, "-m", "tools.mysteries.placement", words[0], evidence.XRAY]
    elif tool == "timeline":
        env |= {"HOROVOD_TIMELINE": str(folder / evidence.TIMELINE), "HOROVOD_CACHE_CAPACITY": "0"}
        run = Path(sys.executable).with_name("horovodrun")
        exchange = [] if in_container() else ["--gloo"]  # as `run --ranks` does
        command = [str(run), *exchange, "-np", str(RANKS), *python, *words]
    *_, ended = watched.follow(command, folder, env, limit)
    if ended.status:
        lines = [line.strip() for line in ended.errors.splitlines() if line.strip()]
        if lines and not ended.timed_out:
            raise NotYet(f"It does not run under the tool that shows the cause: {lines[-1][:200]}")
        raise died(ended, limit)
    text = "\n".join(text for _, text in ended.lines)
    (folder / evidence.LOG).write_text(text, encoding="utf-8")
    return evidence.read(folder, script.read_text(encoding="utf-8"))
