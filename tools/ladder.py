"""`./workshop run`: train the stages one after the other and show what each one brought."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tools import data, launch, table
from tools.stages import Stage

START_COST = 40  # importing TensorFlow and testing, in steps of the fastest stage


def run_stages(
    stages: list[Stage], steps: int, batch_size: int, ranks: int, console: Console
) -> Iterator[dict]:
    """Each stage's row as it is done; a progress bar on a terminal, plain lines elsewhere."""
    threads = max(1, (os.cpu_count() or 1) // ranks) if ranks > 1 else None
    total = sum(START_COST + steps * stage.step_cost for stage in stages)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    spent = 0.0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=total, speed="")
        for stage in stages:

            def report(done: int, speed: float, stage: Stage = stage, spent: float = spent) -> None:
                now = spent + START_COST + done * stage.step_cost
                progress.update(bar, completed=now, speed=f"{speed:8,.0f} img/s")

            progress.update(bar, description=f"{stage.folder:<20}", speed="   starting  ")
            began = time.monotonic()
            job = launch.Job(stage, steps, batch_size, ranks, threads)
            row = launch.train(job, report=report)
            spent += START_COST + steps * stage.step_cost
            progress.update(bar, completed=spent)
            told = "FAILED: " + row["failed"] if "failed" in row else speed_of(row)
            took = time.monotonic() - began
            console.print(f"{stage.folder:<20} {told}  ({took:.0f} s)", markup=False)
            yield row


def speed_of(row: dict) -> str:
    return f"{table.number(row['img_per_s'])} img/s"


def run(stages: list[Stage], steps: int, batch_size: int, ranks: int) -> int:
    console = launch.console()
    try:
        kind = data.ensure(fallback=True, say=lambda line: console.print(line, markup=False))
    except data.DataError as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 1
    results = launch.results_folder()
    console.print(
        f"{len(stages)} stages of {steps} steps, batch {batch_size}, ranks {ranks}, data {kind}"
    )
    rows: list[dict] = []
    for row in run_stages(stages, steps, batch_size, ranks, console):
        rows.append(row)
        if row.get("interrupted"):
            break
    table.show(rows, console)
    for path in table.write(rows, results):
        console.print(f"wrote {os.path.relpath(path)}", markup=False)
    if rows[-1].get("interrupted"):
        return 130
    for row in rows:
        if "failed" in row:
            log = os.path.relpath(results / f"{row['stage']}.err")
            print(f"workshop: {row['stage']} failed: {row['failed']} (see {log})", file=sys.stderr)
    return 1 if any("failed" in row for row in rows) else 0
