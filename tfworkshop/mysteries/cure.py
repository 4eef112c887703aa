"""`./workshop mystery N --check`: does it train as 04 does, is the cause gone, how fast is it?"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tfworkshop import data, processes
from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.judge import judge_training
from tfworkshop.exercises.timing import Entry, far_behind, time_in_turns, time_training
from tfworkshop.exercises.trial import NotYet, explain_end, mistake, script_environment
from tfworkshop.machine import in_container
from tfworkshop.mysteries import evidence
from tfworkshop.mysteries.causes import CAUSE_BY_NAME, Cause
from tfworkshop.mysteries.scripts import BASE, Mystery, build_script
from tfworkshop.stages import ROOT
from tfworkshop.terminal import ratio

STEPS = 30
RANKS = 2


def check(mystery: Mystery, quick: bool, repeats: int, limit: float) -> int:
    cause = CAUSE_BY_NAME[mystery.cause]
    attempt = Attempt(mystery.script, quick, repeats, limit)

    def judge() -> None:
        judge_training(BASE, attempt)
        judge_cause(cause, attempt)
        if not quick:
            judge_speed(mystery, cause, attempt)

    if not attempt.examine(judge):
        return 1
    outcome = "correct; without --quick it is timed" if quick else "fixed"
    attempt.console.print(f"Mystery {mystery.number} is {outcome}.", style="bold green")
    return 0


def judge_cause(cause: Cause, attempt: Attempt) -> None:
    attempt.step = "The cause is gone"
    folder = attempt.folder / "evidence"
    folder.mkdir()
    with attempt.console.status("looking for the cause, as you did"):
        run_tool(cause.tool, attempt.script, folder, attempt.limit)
    finding = cause.judge(evidence.read(cause.tool, folder))
    if finding.confirmed:
        raise NotYet("cause-remains", f"It is still there. {finding.figures}")
    attempt.good(finding.figures)


def run_tool(tool: str, script: Path, folder: Path, limit: float) -> None:
    """Use a tool on a copy of a script in a folder, as an attendee would."""
    shutil.copyfile(script, folder / "train_MNIST.py")
    training = ["train_MNIST.py", "--steps", str(STEPS), "--data", str(data.DEFAULT_PATH)]
    environment = script_environment()
    if tool == "lines":
        command = [sys.executable, "-m", "kernprof", "-l", *training]
    elif tool == "ideal GPU":
        options = ["profile", "--ideal-gpu", "--logdir", evidence.ON_IDEAL_GPU]
        command = [str(ROOT / "workshop"), *options, "--", "python", *training]
    elif tool == "timeline":
        environment["HOROVOD_TIMELINE"] = str(folder / evidence.TIMELINE)
        environment["HOROVOD_CACHE_CAPACITY"] = "0"
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        exchange = [] if in_container() else ["--gloo"]  # a container's may have only MPI
        command = [horovodrun, *exchange, "-np", str(RANKS), sys.executable, *training]
    else:
        command = [sys.executable, *training, "--logdir", evidence.PROFILES]
    finished = processes.run(command, timeout=limit, cwd=folder, env=environment)
    if finished.status != 0:
        raise explain_end(finished, limit)
    (folder / evidence.LOG).write_text(finished.stdout, encoding="utf-8")


def judge_speed(mystery: Mystery, cause: Cause, attempt: Attempt) -> None:
    attempt.step = "It is as fast as 04"
    unfixed = attempt.folder / "unfixed.py"
    unfixed.write_text(build_script(mystery), encoding="utf-8")
    mine = Entry("yours", attempt.script)
    before = Entry(f"mystery {mystery.number}", unfixed)
    ours = Entry(BASE.folder, BASE.script)
    entries = (mine, before, ours)
    if cause.tool == "timeline":
        time_ranks(entries, attempt)
    else:
        time_training(entries, attempt, STEPS)
    attempt.speeds = {"yours": mine.speed, "before": before.speed, "ours": ours.speed}
    if far_behind(mine, ours):
        raise mistake("costs-time", factor=ratio(ours.speed, mine.speed))
    to_ours, to_before = ratio(mine.speed, ours.speed), ratio(mine.speed, before.speed)
    attempt.good(f"{to_ours} the speed of 04, {to_before} what it was")


def time_ranks(entries: tuple[Entry, ...], attempt: Attempt) -> None:
    """Time two ranks by the time stamps of their log."""

    def time_once(entry: Entry, folder: Path) -> None:
        run_tool("timeline", entry.script, folder, attempt.limit)
        log = evidence.read_log(folder)
        assert log
        entry.speeds.append(log.real_speed)

    time_in_turns(entries, attempt, time_once)
