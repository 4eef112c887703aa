"""`./workshop bench`: 06 against what a user would choose instead, in one run, alternating."""

from __future__ import annotations

import sys
from pathlib import Path

from tfworkshop import data, processes, terminal
from tfworkshop.files import display_path, measuring, results_folder, save_record
from tfworkshop.ladder import compare, launch
from tfworkshop.ladder.keras_fit import VARIANTS
from tfworkshop.machine import has_nvidia_gpu
from tfworkshop.results import Bench, Measured
from tfworkshop.stages import ROOT, STAGES, choose
from tfworkshop.terminal import as_markdown, number, print_table, ratio, spread

FIT = "model.fit, "  # how the names of Keras's variants begin
HEADER = ["way to train", "img/s", "spread", "06 is"]


def run(batch_size: list[int], repeats: int, steps: int | None) -> int:
    launch.check_size(max(batch_size), ranks=1)
    with measuring(results_folder()):
        for size in batch_size:
            run_one(size, repeats, steps or max(60, min(600, 6400 // size)))
    return 0


def run_one(batch_size: int, repeats: int, steps: int) -> None:
    console = terminal.console()
    kind = data.ensure(fallback=True, say=console.print)
    console.print(f"batch {batch_size}: {repeats} x {steps} steps, alternating")
    switches = launch.choose(STAGES[-1], batch_size).switches
    rows = ways_to_train(sixteen_bit="mixed_" in switches)
    folder = results_folder() / "bench"
    folder.mkdir(exist_ok=True)
    compare.measure(
        rows, repeats, lambda row: train(row, steps, batch_size, folder), console, skip_slow=True
    )
    bench = Bench(batch_size, steps, kind, rows)
    path = results_folder() / f"bench_{batch_size}.json"
    save_record(path, bench)
    print_table(console, HEADER, cells(bench))
    console.print(f"{verdict(bench)}\n\nwrote {display_path(path)}")


def ways_to_train(sixteen_bit: bool) -> list[Measured]:
    """06, 02 and the variants of model.fit; those in 16 bit only where 06 trains in 16 bit."""
    rows = [Measured(STAGES[-1].name), Measured(STAGES[2].name)]
    for name, variant in VARIANTS.items():
        if variant.precision != "float32" and not sixteen_bit:
            continue
        if variant.precision == "mixed_float16" and not has_nvidia_gpu():
            continue
        rows.append(Measured(FIT + name))
    return rows


def train(way: Measured, steps: int, batch_size: int, folder: Path) -> float:
    """Train once; img/s."""
    if not way.name.startswith(FIT):
        (stage,) = choose([way.name])
        return compare.train_stage(launch.Job(stage, steps, batch_size), folder)
    variant = way.name.removeprefix(FIT)
    command = [sys.executable, "-m", "tfworkshop.ladder.keras_fit"]
    command += [variant, str(steps), str(batch_size), str(data.DEFAULT_PATH)]
    finished = processes.run(command, cwd=ROOT)
    if finished.status:
        raise launch.StageFailed(f"{way.name} failed: {finished.reason}")
    return float(finished.stdout.splitlines()[-1])


def cells(bench: Bench) -> list[list[str]]:
    ours = bench.rows[0]
    table = []
    for row in bench.rows:
        factor = "-" if row is ours else ratio(ours.speed, row.speed)
        table.append([row.name, number(row.speed), spread(row.repeats), factor])
    return table


def verdict(bench: Bench) -> str:
    """06 against the fastest model.fit."""
    fits = [row for row in bench.rows if row.name.startswith(FIT)]
    best = max(fits, key=lambda row: row.speed)
    factor = ratio(bench.rows[0].speed, best.speed)
    return f"batch {bench.batch_size}: 06 is {factor} the best {best.name}"


def markdown(bench: Bench) -> str:
    return as_markdown(HEADER, cells(bench))
