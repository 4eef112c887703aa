"""Run one stage as a reader would, in its own process or processes, and read its results."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import PIPE
from typing import TextIO

from tfworkshop import data
from tfworkshop.files import read_json, results_folder, writing_results
from tfworkshop.machine import alone, cores, has_nvidia_gpu, in_container
from tfworkshop.problem import Problem
from tfworkshop.processes import PATIENCE_S, child
from tfworkshop.stages import Stage
from tfworkshop.terminal import plain, printable

# A line of the fault handler: where a stage was when it took too long to read its data.
TRACE = re.compile(r'^(?:\[(?:\d+,)?(\d+)\]<stderr>:)?  File "(.*)", line \d+ in (.*)$', re.M)
LOG_LINE = re.compile(r"INFO - \((\d+), (\d+)\), Loss: .*throughput: ([\d.]+) img/s")
UNFINISHED = "unfinished"  # below results/: the last that failed or was stopped
Report = Callable[[int, float], None]  # steps done, img/s now
Say = Callable[[str], None]  # a line of choose.py


@dataclass(frozen=True)
class Job:
    stage: Stage
    steps: int
    batch_size: int
    ranks: int = 1
    threads: int | None = None  # per rank; None leaves it to TensorFlow
    switches: str = ""  # more options, as typed


def command(job: Job, results: Path) -> list[str]:
    words = [sys.executable, str(job.stage.script), "--steps", str(job.steps)]
    words += ["--batch-size", str(job.batch_size), "--data", str(data.DEFAULT_PATH)]
    words += ["--results", str(results), *job.switches.split()]
    if job.stage.profiles:
        images = data.SHAPES["x_train"][0]  # this limits the steps: a stage runs ten epochs
        first, last = profiled_steps(min(job.steps, 10 * (images // (job.batch_size * job.ranks))))
        words += ["--logdir", str(results.parent / "logs" / results.stem)]
        words += ["--profile-steps", str(first), str(last)]
    if job.ranks > 1:
        # A container's Horovod may have only MPI; by default horovodrun uses what is built in.
        exchange = [] if in_container() else ["--gloo"]
        words = [horovodrun(), *exchange, "-np", str(job.ranks), *words]
    return words


def profiled_steps(steps: int) -> tuple[int, int]:
    """A window after the warm-up that leaves at least as many steps for the clock, if it can."""
    first = min(10, steps // 2)
    return first, first + max(1, min(11, (steps - first) // 2)) - 1


def horovodrun() -> str:
    """The launcher of this Python; in a container it may be elsewhere on PATH."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("horovodrun", path=places)
    if not found:
        raise Problem("there is no horovodrun here: ./workshop setup --horovod installs it")
    return found


def environment(job: Job) -> dict[str, str]:
    """On a CPU the ranks must share the cores, or they compete for them."""
    extra = {}
    if job.threads:
        extra = {name: str(job.threads) for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")}
        extra["TF_NUM_INTEROP_THREADS"] = str(job.threads)
    if job.ranks > 1 and not has_nvidia_gpu():
        extra["HOROVOD_CYCLE_TIME"] = "5"  # ms, not 1: how often its own thread looks for work
    return {**(os.environ if job.ranks > 1 else alone()), **extra}


@dataclass(frozen=True)
class Choice:
    """What a stage's choose.py printed."""

    lines: list[str]  # each with a set of switches and its speed, or why there is none
    switches: str


CHOSEN: dict[int, Choice] = {}  # by batch size


def choose(stage: Stage, batch_size: int, say: Say) -> Choice:
    """The fastest switches here, if choose.py finds any; asked once for each batch size."""
    if batch_size in CHOSEN:
        return CHOSEN[batch_size]
    words = [sys.executable, str(stage.script.with_name("choose.py"))]
    words += ["--batch-size", str(batch_size), "--data", str(data.DEFAULT_PATH)]
    lines = []
    with child(words, stdout=PIPE, stderr=PIPE) as process:
        for line in process.stderr or ():
            lines.append(printable(line.rstrip()))
            say(lines[-1])
        CHOSEN[batch_size] = Choice(lines, process.communicate()[0].strip())
    return CHOSEN[batch_size]


def place_for(good: bool) -> Path:
    """Where a measurement goes: one that failed or was stopped leaves the last good one alone."""
    folder = results_folder() if good else results_folder() / UNFINISHED
    with writing_results():
        folder.mkdir(exist_ok=True)
    return folder


def check_size(batch_size: int, ranks: int) -> None:
    """What cannot work is refused before anything is started or replaced."""
    images = data.SHAPES["x_train"][0]
    if batch_size * ranks > images:
        of = f" of {ranks} ranks" if ranks > 1 else ""
        raise Problem(f"--batch-size {batch_size}{of} is more than the {images} images")
    if ranks > cores() and not has_nvidia_gpu():
        raise Problem(f"{ranks} ranks on {cores()} core(s): use {cores()} at most")


def train(
    job: Job,
    name: str = "",
    report: Report = lambda done, speed: None,
    say: Say = lambda line: None,
    folder: Path | None = None,
) -> dict:
    """Run a stage; its results, or `failed` with the reason."""
    name = name or job.stage.name
    results = (folder or results_folder()) / f"{name}.json"
    results.unlink(missing_ok=True)
    log, errors = results.with_suffix(".log"), results.with_suffix(".err")
    row: dict = {"stage": job.stage.name, "change": job.stage.change}
    if job.stage.chooses:
        try:
            choice = choose(job.stage, job.batch_size, say)
        except KeyboardInterrupt:
            return {**row, "failed": "interrupted", "interrupted": True}
        found = re.sub(r" --threads \d+", "", choice.switches) if job.threads else choice.switches
        job = replace(job, switches=found)  # without its threads: the ranks have their share
        row["tried"] = asdict(choice)
    interrupted = False
    options = {"env": environment(job), "stdout": PIPE}
    with (
        writing_results(),
        log.open("w", encoding="utf-8", errors="replace") as copy,
        errors.open("w") as err,
        child(command(job, results), stderr=err, **options) as process,
    ):
        try:
            follow(process, copy, report)
        except KeyboardInterrupt:  # the stage gets it too, and still writes its summary
            interrupted = True
            copy.write(let_it_end(process))
    logged = log.read_text(encoding="utf-8").splitlines()
    row["log"] = [line for line in logged if LOG_LINE.search(line)][-3:]
    try:
        row |= {**read_json(results), "stage": job.stage.name}
    except Problem:
        row["failed"] = "interrupted" if interrupted else "it wrote no results"
    if "device" in row:
        row["device"] = plain(str(row["device"]))
    row["interrupted"] = interrupted or row.get("interrupted", False)
    if process.returncode and not row["interrupted"]:
        row["failed"] = last_words(process.returncode, errors)
    return row


def follow(process: subprocess.Popen[str], copy: TextIO, report: Report) -> None:
    """Copy what the stage prints, and report its steps, until it ends."""
    done = 0
    for line in process.stdout or ():
        copy.write(line)
        found = LOG_LINE.search(line)
        if found:
            done += 1
            report(done, float(found[3]))
    process.wait()


def let_it_end(process: subprocess.Popen[str]) -> str:
    """What the stage still prints after Ctrl+C; if it runs on, it gets SIGINT, then SIGKILL."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            return process.communicate(timeout=PATIENCE_S)[0]
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    return process.communicate()[0]


def last_words(status: int, errors: Path) -> str:
    """Why a stage failed: where it was stuck, its last line on stderr, or a signal."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    text = errors.read_text(errors="replace")
    lines = [printable(line).strip() for line in text.splitlines()]
    last = next((line for line in reversed(lines) if line), f"exit status {status}")
    return where_stuck(text) if "Timeout (" in text else last


def where_stuck(errors: str) -> str:
    """A rank that waits for others is in Horovod; one that is not there kept them waiting."""
    places: dict[str, list[tuple[str, str]]] = {}
    for rank, file, function in TRACE.findall(errors):
        places.setdefault(rank, []).append((file, function))
    for rank, place in sorted(places.items()):
        if not any("/horovod/" in file for file, _ in place):
            at = next((name for file, name in place if "train" in file), place[0][1])
            return f"{f'rank {rank} ' * bool(rank)}did not read the data in time: stuck in {at}"
    return f"a rank other than {', '.join(sorted(places))} did not read the data in time"
