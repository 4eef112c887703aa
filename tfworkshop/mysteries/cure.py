"""`./workshop mystery N --check`: does it train as 04 does, is the cause gone, how fast is it?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tfworkshop import data
from tfworkshop.exercises import watched
from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.judge import judge_training
from tfworkshop.exercises.timing import (
    Entry,
    far_behind,
    judge_clock,
    judge_learning,
    show_speeds,
    time_in_turns,
    verdict,
)
from tfworkshop.exercises.trial import NotYet, died, environment
from tfworkshop.machine import in_container
from tfworkshop.mysteries import evidence
from tfworkshop.mysteries.causes import BY_NAME
from tfworkshop.mysteries.evidence import Facts
from tfworkshop.mysteries.scripts import BASE, Mystery, made
from tfworkshop.problem import Problem
from tfworkshop.terminal import ratio

STEPS = 30
RANKS = 2


def check(mystery: Mystery, quick: bool, repeats: int, limit: float) -> int:
    attempt = Attempt(mystery.script, quick, repeats, limit)
    if not attempt.examine(lambda: judge(mystery, attempt)):
        return 1
    told = "right; without --quick it is timed" if quick else "fixed"
    attempt.say(f"Mystery {mystery.number} is {told}.", "bold green")
    return 0


def judge(mystery: Mystery, attempt: Attempt) -> None:
    """NotYet at the first thing that is wrong."""
    judge_training(BASE, attempt)
    attempt.step = "The cause is gone"
    cause = BY_NAME[mystery.cause]
    with attempt.doing("looking for the cause, as you did"):
        found = cause.look(
            gather(cause.tool, attempt.script, attempt.folder / "again", attempt.limit)
        )
    if found is None:
        raise Problem("the run that should show the cause left nothing to read")
    if found[0]:
        raise NotYet(f"It is still there. {found[1]}")
    attempt.good(found[1])
    if attempt.quick:
        return
    attempt.step = "It is as fast as 04"
    before = attempt.folder / "made" / "train_MNIST.py"
    before.parent.mkdir()
    before.write_text(made(mystery), encoding="utf-8")
    mine, own = Entry("yours", attempt.script), Entry(BASE.folder, BASE.script)
    was = Entry(f"mystery {mystery.number}", before)
    entries = (mine, was, own)
    if cause.tool == "timeline":
        time_ranks(entries, attempt)
    else:
        time_in_turns(entries, attempt, STEPS)
        judge_clock(mine)
        judge_learning(mine, own)
        show_speeds(entries, attempt, STEPS)
    attempt.speeds = {"yours": mine.speed, "before": was.speed, "ours": own.speed}
    if far_behind(mine, own):
        raise NotYet(f"Something in it still costs time: 04 is {ratio(own.speed, mine.speed)} it.")
    if verdict(mine, was) == "slower":
        raise NotYet(f"It is slower than it was: {ratio(mine.speed, was.speed)}.")
    gain = f"{ratio(mine.speed, own.speed)} 04, {ratio(mine.speed, was.speed)} what it was"
    attempt.good("its number is true now" if cause.name == "clock" else gain)


def time_ranks(entries: tuple[Entry, ...], attempt: Attempt) -> None:
    """By the time stamps of the log, in turns."""
    for repeat in range(attempt.repeats):
        for i, entry in enumerate(entries):
            place = attempt.folder / f"ranks_{repeat}_{i}"
            with attempt.doing(f"timing {RANKS} ranks, repeat {repeat + 1}: {entry.name}"):
                facts = gather("timeline", entry.script, place, attempt.limit)
            if facts.log is None:
                raise Problem(f"{entry.name}: no log of {RANKS} ranks")
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
        command = [*python, "-m", "tfworkshop.mysteries.placement", words[0], evidence.XRAY]
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
