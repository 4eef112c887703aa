"""`./workshop run`: train the stages one after the other and show what each one gained."""

from __future__ import annotations

import datetime
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TimeElapsedColumn, TimeRemainingColumn

from tfworkshop import data, processes, terminal
from tfworkshop.files import display_path, measuring, results_folder
from tfworkshop.ideal_gpu import build as ideal_gpu
from tfworkshop.ladder import ceiling, launch, table
from tfworkshop.ladder.launch import Job, StageFailed
from tfworkshop.machine import cores, cpu_model
from tfworkshop.results import Failure, Ladder, Row
from tfworkshop.stages import ROOT, choose

UNFINISHED = "unfinished"  # below results/: the last run that failed or was stopped
DRIVER_NS = 2000  # assumed: what a real driver takes for a launch or a copy is 1 to 3 us
START_COST = 200  # importing TensorFlow and evaluating, in steps of the fastest stage


def run(stages: list[str], steps: int, batch_size: int, ranks: int, repeats: int) -> int:
    chosen = choose(stages)
    launch.check_size(batch_size, ranks)
    threads = cores() // ranks if ranks > 1 else None
    jobs = [Job(stage, steps, batch_size, ranks, threads) for stage in chosen]
    if ideal_gpu.is_in_use():
        jobs = [*jobs, *(replace(job, driver_ns=DRIVER_NS) for job in jobs)]
    with measuring(results_folder()):
        return climb(jobs, repeats)


def climb(jobs: list[Job], repeats: int = 1) -> int:
    """Train all stages into a folder of their own; only a good run replaces the last one."""
    console = terminal.console()
    job = jobs[0]
    kind = data.ensure(fallback=True, say=console.print)
    sizes = f"{job.steps} steps, batch {job.batch_size}, ranks {job.ranks}"
    times = f", {repeats} times" if repeats > 1 else ""
    count = len({job.stage for job in jobs})
    console.print(f"{count} stages of {sizes}, data {kind}{times}")
    destination = results_folder()
    status = 0
    with tempfile.TemporaryDirectory(dir=destination, prefix="running-") as name:
        folder = Path(name)
        outcomes: list[Row | Failure] = []
        # No part of the ideal GPU's time is computing.
        peaks = {} if ideal_gpu.is_in_use() else ceiling.measure()
        try:
            train_all(jobs * repeats, folder, console, outcomes)
        except KeyboardInterrupt:
            if not outcomes:
                raise
            status = 130  # what was measured is not lost
        ladder = summarize(outcomes, peaks, job.steps)
        if ladder.failed and status == 0:
            status = 1
        if status != 0:
            destination = destination / UNFINISHED
        if ladder.rows:
            table.write(ladder, folder)
        move_files(folder, destination)
    if ladder.rows:
        table.show(ladder, console)
        for ending in ("json", "md", "png"):
            console.print(f"wrote {display_path(destination / f'ladder.{ending}')}")
    for failure in ladder.failed:
        log = display_path(destination / f"{failure.stage}.err")
        print(f"workshop: {failure.reason} (see {log})", file=sys.stderr)
    return status


def train_all(
    jobs: list[Job], folder: Path, console: Console, outcomes: list[Row | Failure]
) -> None:
    """Train the stages in turn; a progress bar on a terminal, plain lines elsewhere."""
    progress = Progress(
        "{task.description}",
        BarColumn(),
        "{task.fields[speed]}",
        TimeElapsedColumn(),
        "left",
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    bar = progress.add_task("", total=sum(cost(job) for job in jobs), speed="")
    completed = 0.0
    with progress:
        for job in jobs:
            progress.update(bar, description=f"{job.stage.name:<20}", speed="   starting  ")
            outcome = train_one(job, folder, progress, bar)
            outcomes.append(outcome)
            completed += cost(job)
            progress.update(bar, completed=completed)
            if isinstance(outcome, Row) and outcome.interrupted:
                raise KeyboardInterrupt


def cost(job: Job) -> float:
    return START_COST + job.steps * job.stage.step_cost


def train_one(job: Job, folder: Path, progress: Progress, bar: TaskID) -> Row | Failure:
    def on_step(speed: float) -> None:
        progress.update(bar, advance=job.stage.step_cost, speed=f"{speed:8,.0f} img/s")

    outcome: Row | Failure
    start = time.monotonic()
    try:
        outcome = launch.train(job, folder, on_step)
        if job.driver_ns:
            outcome.step_ms_with_driver = outcome.step_ms_median
        text = f"{job.stage.name:<20} {terminal.number(outcome.img_per_s)} img/s"
    except StageFailed as failure:
        outcome = Failure(job.stage.name, str(failure))
        text = str(failure)
    progress.console.print(f"{text}  ({time.monotonic() - start:.0f} s)")
    return outcome


def summarize(outcomes: list[Row | Failure], peaks: dict[str, float], steps: int) -> Ladder:
    """One row for each stage: its first failure, or the median of its repeats."""
    rows = []
    failures = []
    for stage in dict.fromkeys(outcome.stage for outcome in outcomes):
        repeats = [outcome for outcome in outcomes if outcome.stage == stage]
        failed = [outcome for outcome in repeats if isinstance(outcome, Failure)]
        if failed:
            failures.append(failed[0])
        else:
            rows.append(summarize_row([row for row in repeats if isinstance(row, Row)]))
    return Ladder(
        date=datetime.date.today().isoformat(),
        commit=current_commit(),
        machine=f"{cores()}-core {cpu_model()}" if ideal_gpu.is_in_use() else cpu_model(),
        steps=steps,
        ceiling=peaks,
        rows=rows,
        failed=failures,
    )


def summarize_row(repeats: list[Row]) -> Row:
    """The median run; on the ideal GPU, also the median of those with a driver's costs."""
    plain = [row for row in repeats if row.step_ms_with_driver is None]
    with_driver = [row for row in repeats if row.step_ms_with_driver is not None]
    row = median_row(plain or with_driver)
    if plain and with_driver:
        row.step_ms_with_driver = median_row(with_driver).step_ms_median
    return row


def median_row(repeats: list[Row]) -> Row:
    """The (lower) median of a stage's repeats, with all their speeds."""
    if repeats[0].interrupted:
        return repeats[0]
    whole = [row for row in repeats if not row.interrupted]
    ordered = sorted(whole, key=lambda row: row.img_per_s or 0)
    median = ordered[(len(ordered) - 1) // 2]
    median.repeats = [row.img_per_s for row in whole if row.img_per_s]
    return median


def current_commit() -> str:
    """The commit that is measured; empty where there is no git."""
    if not shutil.which("git"):
        return ""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return processes.run(command).stdout.strip()


def move_files(folder: Path, destination: Path) -> None:
    """Move the files of a run in the place of those of the last one."""
    for path in folder.glob("*.json"):  # they name their profiles
        path.write_text(path.read_text().replace(str(folder), str(destination)))
    for path in folder.rglob("*"):
        if path.is_file():
            target = destination / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
