"""`./workshop run`: train the stages one after the other and show what each one gained."""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tools import data, terminal
from tools.files import results_folder
from tools.ladder import ceiling, launch, table
from tools.machine import cpu_model
from tools.stages import ROOT, Stage, choose, lines_changed

START_COST = 200  # importing TensorFlow and evaluating, in steps of the fastest stage


def run_stages(
    stages: list[Stage], steps: int, batch_size: int, ranks: int, repeats: int, console: Console
) -> Iterator[dict]:
    """Each stage's row as it is done; a progress bar on a terminal, plain lines elsewhere."""
    threads = max(1, (os.cpu_count() or 1) // ranks) if ranks > 1 else None
    total = repeats * sum(START_COST + steps * stage.step_cost for stage in stages)
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
        for stage in stages * repeats:  # so that a noisy minute does not affect only one stage

            def report(done: int, speed: float, stage: Stage = stage, spent: float = spent) -> None:
                now = spent + START_COST + done * stage.step_cost
                progress.update(bar, completed=now, speed=f"{speed:8,.0f} img/s")

            progress.update(bar, description=f"{stage.name:<20}", speed="   starting  ")
            began = time.monotonic()
            job = launch.Job(stage, steps, batch_size, ranks, threads)
            row = launch.train(job, report=report, say=partial(console.print, markup=False))
            spent += START_COST + steps * stage.step_cost
            progress.update(bar, completed=spent)
            result = "FAILED: " + row["failed"] if "failed" in row else speed_of(row)
            took = time.monotonic() - began
            console.print(f"{stage.name:<20} {result}  ({took:.0f} s)", markup=False)
            yield row | {"lines": lines_changed(stage)}


def speed_of(row: dict) -> str:
    return f"{terminal.number(row['img_per_s'])} img/s"


def middle(rows: list[dict]) -> dict:
    """One row for a stage's repeats: the (lower) median with all speeds, or the first failure."""
    rows = [row for row in rows if not row.get("interrupted")] or rows
    for row in rows:
        if "failed" in row or row.get("interrupted"):
            return row
    speeds = [row["img_per_s"] for row in rows]
    if None in speeds:  # too short to time
        return rows[0]
    ordered = sorted(rows, key=lambda row: row["img_per_s"])
    return ordered[(len(rows) - 1) // 2] | {"repeats": speeds}


def commit() -> str:
    """The commit that was measured; empty where there is no git."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def run(stages: list[str], steps: int, batch_size: int, ranks: int, repeats: int) -> int:
    names = [name for text in stages for name in text.split(",") if name]
    return climb(choose(names), steps, batch_size, ranks, repeats)


def climb(stages: list[Stage], steps: int, batch_size: int, ranks: int, repeats: int = 1) -> int:
    console = terminal.console()
    kind = data.ensure(fallback=True, say=lambda line: console.print(line, markup=False))
    results = results_folder()
    plan = f"{len(stages)} stages of {steps} steps, batch {batch_size}, ranks {ranks}, data {kind}"
    console.print(plan + (f", {repeats} times" if repeats > 1 else ""))
    ladder = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": cpu_model(),
        "steps": steps,
        "ceiling": {},
    }
    rounds = [ceiling.measure()]
    done: dict[str, list[dict]] = {}
    interrupted = False
    for row in run_stages(stages, steps, batch_size, ranks, repeats, console):
        done.setdefault(row["stage"], []).append(row)
        interrupted = bool(row.get("interrupted"))
        if interrupted:
            break
    else:
        with contextlib.suppress(KeyboardInterrupt):  # what was measured is not lost
            rounds.append(ceiling.measure())
    ladder["ceiling"] = ceiling.best_of(rounds)
    rows = ladder["rows"] = [middle(rows) for rows in done.values()]
    table.show(ladder, console)
    for path in table.write(ladder, results):
        console.print(f"wrote {os.path.relpath(path)}", markup=False)
    if interrupted:
        return 130
    for row in rows:
        if "failed" in row:
            log = os.path.relpath(results / f"{row['stage']}.err")
            print(f"workshop: {row['stage']} failed: {row['failed']} (see {log})", file=sys.stderr)
    return 1 if any("failed" in row for row in rows) else 0
