"""`./workshop scale`: weak scaling, the same batch on every rank, from one rank to many."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

from tfworkshop import data, processes, terminal
from tfworkshop.files import display_path, measuring, results_folder, save_record
from tfworkshop.ladder import compare, launch
from tfworkshop.ladder.launch import Job
from tfworkshop.machine import cores, has_nvidia_gpu
from tfworkshop.results import Scale, ScalePoint, read_results
from tfworkshop.stages import Stage, choose
from tfworkshop.terminal import as_markdown, number, print_table, spread

HEADER = ["ranks", "img/s", "spread", "img/s per rank", "efficiency"]


def run(stage: str, ranks: list[int], repeats: int, steps: int, batch_size: int) -> int:
    (*_, chosen) = choose([stage])
    launch.check_size(batch_size, max(ranks))
    with measuring(results_folder()):
        scale = measure(chosen, ranks, repeats, steps, batch_size)
    path = results_folder() / f"scale_{stage}_{batch_size}.json"
    save_record(path, scale)
    console = terminal.console()
    print_table(console, HEADER, cells(scale))
    console.print(f"{verdict(scale)}\nwrote {display_path(path)}")
    return 0


def measure(stage: Stage, ranks: list[int], repeats: int, steps: int, batch_size: int) -> Scale:
    console = terminal.console()
    kind = data.ensure(fallback=True, say=console.print)
    if stage.chooses:
        launch.choose(stage, batch_size)
    console.print(f"{stage.name}: {repeats} x {steps} steps, batch {batch_size} on every rank")
    folder = results_folder() / "scale"
    folder.mkdir(exist_ok=True)

    def train(point: ScalePoint) -> float:
        if point.exchange:
            job = Job(stage, steps, batch_size, point.ranks, point.threads)
            return compare.train_stage(job, folder)
        job = Job(stage, steps, batch_size, threads=point.threads)
        return train_independently(job, point.ranks, folder)

    points = plan(ranks, cores(), has_nvidia_gpu())
    compare.measure(points, repeats, train, console)
    return Scale(stage.name, batch_size, kind, points)


def plan(ranks: list[int], cores: int, gpu: bool) -> list[ScalePoint]:
    """On a CPU the ranks share the cores, and are compared with one process that has all cores.

    The same number of processes without any exchange shows the best that ranks could reach.
    """
    ranks = sorted(set(ranks))
    if gpu:
        return [ScalePoint(f"{n}", ranks=n) for n in ranks]
    threads = cores // ranks[-1]
    points = [on_cpu(n, threads) for n in ranks]
    if threads == cores:
        return points
    independent = on_cpu(ranks[-1], threads)
    independent.exchange = False
    independent.name += ", no exchange"
    return [on_cpu(1, cores), *points[:-1], independent, points[-1]]


def on_cpu(ranks: int, threads: int) -> ScalePoint:
    return ScalePoint(f"{ranks} x {threads} thread(s)", ranks=ranks, threads=threads)


def train_independently(job: Job, count: int, folder: Path) -> float:
    """As many processes at the same time, each for itself; img/s of all together."""
    switches = launch.switches_for(job)
    files = [folder / f"{job.stage.name}_{i}.json" for i in range(count)]
    with contextlib.ExitStack() as stack:
        running = []
        for file in files:
            log = stack.enter_context(file.with_suffix(".log").open("w"))
            process = processes.started(
                launch.command(job, file, switches),
                env=launch.environment(job),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            running.append(stack.enter_context(process))
        statuses = [process.wait() for process in running]
    for status, file in zip(statuses, files):
        if status:
            log_file = display_path(file.with_suffix(".log"))
            raise launch.StageFailed(f"{job.stage.name} failed: see {log_file}")
    return sum(compare.speed_of(read_results(file)) for file in files)


def cells(scale: Scale) -> list[list[str]]:
    """The columns of HEADER; efficiency is against the fewest ranks with as many threads."""
    threads = scale.points[-1].threads
    same_kind = [point for point in scale.points if point.exchange and point.threads == threads]
    first = same_kind[0]
    table = []
    for point in scale.points:
        per_rank = point.speed / point.ranks
        efficiency = "-"
        if point in same_kind:
            efficiency = f"{per_rank / (first.speed / first.ranks):.0%}"
        speeds = [number(point.speed), spread(point.repeats), number(per_rank)]
        table.append([point.name, *speeds, efficiency])
    return table


def verdict(scale: Scale) -> str:
    """The most ranks, with and without exchange, against one process with all cores."""
    one = scale.points[0]
    most = scale.points[-1]
    for independent in scale.points:
        if not independent.exchange:
            return (
                f"{most.ranks} ranks of {most.threads} thread(s) are "
                f"{most.speed / one.speed:.2f}x one process with {one.threads} threads; "
                f"without exchange they would be {independent.speed / one.speed:.2f}x"
            )
    return ""


def markdown(scale: Scale) -> str:
    return as_markdown(HEADER, cells(scale))
