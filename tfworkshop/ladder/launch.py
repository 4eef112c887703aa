"""Run a stage as a reader would, in its own process or processes, and read its results."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import asdict

from tfworkshop import data, processes
from tfworkshop.files import read_record
from tfworkshop.ideal_gpu import build as ideal_gpu
from tfworkshop.machine import alone, cores, has_nvidia_gpu, in_container
from tfworkshop.problem import Problem
from tfworkshop.results import Choice, Row, read_results
from tfworkshop.stages import Stage, lines_changed

LOG_LINE = re.compile(r"INFO - \(\d+, \d+\), Loss: .*throughput: ([\d.]+) img/s")
TRAINING_IMAGES = data.SHAPES["x_train"][0]
EPOCHS = 10  # a stage's default


class StageFailed(Problem):
    """A training ended without a result; the text says why."""


@dataclass(frozen=True)
class Job:
    stage: Stage
    steps: int
    batch_size: int
    ranks: int = 1
    threads: int | None = None  # per rank; None leaves it to TensorFlow
    driver_ns: int = 0  # on the ideal GPU: what each submission costs the host besides


def check_size(batch_size: int, ranks: int) -> None:
    """Refuse what cannot work before anything is started."""
    if batch_size * ranks > TRAINING_IMAGES:
        raise Problem(
            f"--batch-size {batch_size} on {ranks} rank(s) is more than {TRAINING_IMAGES} images"
        )
    if ranks > cores() and not has_nvidia_gpu():
        raise Problem(f"{ranks} ranks on {cores()} core(s): use {cores()} at most")
    if ranks > 1:
        find_horovodrun()


def find_horovodrun() -> str:
    """This Python's launcher; in a container it may be elsewhere on PATH."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    horovodrun = shutil.which("horovodrun", path=os.pathsep.join(folders))
    if not horovodrun:
        raise Problem("there is no horovodrun here: ./workshop setup --horovod installs it")
    return horovodrun


def command(job: Job, results: Path, switches: str = "") -> list[str]:
    words = [sys.executable]
    if ideal_gpu.is_in_use():
        words += [str(ideal_gpu.COUNTED), str(counts_file(results))]
    words += [str(job.stage.script)]
    words += ["--steps", str(job.steps), "--batch-size", str(job.batch_size)]
    words += ["--data", str(data.DEFAULT_PATH), "--results", str(results)]
    words += switches.split()
    if job.stage.profiles:
        steps_per_epoch = TRAINING_IMAGES // (job.batch_size * job.ranks)
        first, last = profiled_steps(min(job.steps, EPOCHS * steps_per_epoch))
        words += ["--logdir", str(results.parent / "logs" / results.stem)]
        words += ["--profile-steps", str(first), str(last)]
    if job.ranks > 1:
        # A container's Horovod may have only MPI; by default horovodrun uses what is built in.
        exchange = [] if in_container() else ["--gloo"]
        words = [find_horovodrun(), *exchange, "-np", str(job.ranks), *words]
    return words


def counts_file(results: Path) -> Path:
    return results.with_suffix(".counts")


def profiled_steps(steps: int) -> tuple[int, int]:
    """The first and last step of a window after the warm-up.

    It leaves at least as many steps for the clock, if there are enough.
    """
    first = min(10, steps // 2)
    count = min(11, (steps - first) // 2)
    return first, first + max(1, count) - 1


def environment(job: Job) -> dict[str, str]:
    """The environment of a job's processes: on a CPU the ranks share the cores."""
    variables = dict(os.environ) if job.ranks > 1 else alone()
    if job.driver_ns:
        variables["IDEAL_GPU_ADDED_NS"] = str(job.driver_ns)
    if job.threads:
        for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
            variables[name] = str(job.threads)
    if job.ranks > 1 and not has_nvidia_gpu():
        variables["HOROVOD_CYCLE_TIME"] = "5"  # ms, not 1: how often its own thread looks for work
    return variables


@functools.cache
def choose(stage: Stage, batch_size: int) -> Choice:
    """Ask a stage's choose.py for the fastest switches here, and print its trials."""
    words = [sys.executable, str(stage.script.with_name("choose.py"))]
    words += ["--batch-size", str(batch_size), "--data", str(data.DEFAULT_PATH)]
    finished = processes.run(words, on_stderr=print)
    return Choice(finished.stderr.splitlines(), finished.stdout.strip())


def switches_for(job: Job) -> str:
    """The switches that choose.py found; not its threads if the ranks have their share."""
    if not job.stage.chooses:
        return ""
    switches = choose(job.stage, job.batch_size).switches
    if job.threads:
        switches = re.sub(r" --threads \d+", "", switches)
    return switches


def train(job: Job, folder: Path, on_step: Callable[[float], object] = lambda speed: None) -> Row:
    """Run a stage to its end; `on_step` gets the speed of each step as soon as it is logged.

    After Ctrl+C, the stage still sums up: then its row says `interrupted`.
    """
    results = folder / f"{job.stage.name}.json"
    results.unlink(missing_ok=True)
    words = command(job, results, switches_for(job))
    log: list[str] = []

    def follow(line: str) -> None:
        step = LOG_LINE.search(line)
        if step:
            log.append(line)
            on_step(float(step[1]))

    interrupted = False
    try:
        finished = processes.run(words, env=environment(job), on_stdout=follow)
    except KeyboardInterrupt:
        if not results.exists():
            raise
        interrupted = True
    else:
        results.with_suffix(".log").write_text(finished.stdout)
        results.with_suffix(".err").write_text(finished.stderr)
        if finished.status:
            raise StageFailed(f"{job.stage.name} failed: {finished.reason}")
    row = Row(
        **asdict(read_results(results)),
        change=job.stage.change,
        lines=lines_changed(job.stage),
        log=log[-3:],
    )
    row.interrupted = row.interrupted or interrupted
    if job.stage.chooses:
        row.tried = choose(job.stage, job.batch_size)
    if ideal_gpu.is_in_use():
        row.counts = read_record(counts_file(results), dict[str, float])
    return row
