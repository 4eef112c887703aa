"""`./workshop run`: train the stages one after the other and show what each one gained."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tfworkshop import data, terminal
from tfworkshop.files import measuring, results_folder, writing_results
from tfworkshop.ladder import ceiling, launch, table
from tfworkshop.machine import cpu_model
from tfworkshop.problem import Problem
from tfworkshop.processes import output_of
from tfworkshop.stages import ROOT, Stage, choose, lines_changed
from tfworkshop.terminal import plain

START_COST = 200  # importing TensorFlow and evaluating, in steps of the fastest stage


def run_stages(
    stages: list[Stage],
    steps: int,
    batch_size: int,
    ranks: int,
    repeats: int,
    console: Console,
    folder: Path,
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
            say = partial(console.print, markup=False)
            row = launch.train(job, report=report, say=say, folder=folder)
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
    with contextlib.suppress(OSError):
        return output_of(git)[1].strip()
    return ""


def run(stages: list[str], steps: int, batch_size: int, ranks: int, repeats: int) -> int:
    names = [name for text in stages for name in text.split(",") if name]
    if stages and not names:
        raise Problem("--stages names no stage: for instance --stages 00 02")
    chosen = choose(names)
    launch.check_size(batch_size, ranks)
    with measuring(results_folder()):
        return climb(chosen, steps, batch_size, ranks, repeats)


def climb(stages: list[Stage], steps: int, batch_size: int, ranks: int, repeats: int = 1) -> int:
    """All stages into a folder of their own; only a good run takes the place of the last one."""
    console = terminal.console()
    kind = data.ensure(fallback=True, say=lambda line: console.print(line, markup=False))
    text = f"{len(stages)} stages of {steps} steps, batch {batch_size}, ranks {ranks}, data {kind}"
    console.print(text + (f", {repeats} times" if repeats > 1 else ""))
    ladder = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": plain(cpu_model()),
        "steps": steps,
        "ceiling": {},
    }
    with temporary_folder() as name:
        folder = Path(name)
        rounds = [ceiling.measure()]
        done: dict[str, list[dict]] = {}
        interrupted = False
        for row in run_stages(stages, steps, batch_size, ranks, repeats, console, folder):
            done.setdefault(row["stage"], []).append(row)
            interrupted = bool(row.get("interrupted"))
            if interrupted:
                break
        else:
            with contextlib.suppress(KeyboardInterrupt):  # what was measured is not lost
                rounds.append(ceiling.measure())
        ladder["ceiling"] = ceiling.best_of(rounds)
        rows = ladder["rows"] = [middle(rows) for rows in done.values()]
        good = not interrupted and not any("failed" in row for row in rows)
        kept = launch.place_for(good)
        table.write(ladder, folder)
        with writing_results():
            move_into(kept, folder)
    table.show(ladder, console)  # last: nobody may be reading
    for ending in ("json", "md", "png"):
        console.print(f"wrote {os.path.relpath(kept / f'ladder.{ending}')}", markup=False)
    for row in rows:
        if "failed" in row and not interrupted:
            log = os.path.relpath(kept / f"{row['stage']}.err")
            print(f"workshop: {row['stage']} failed: {row['failed']} (see {log})", file=sys.stderr)
    return 0 if good else 130 if interrupted else 1


def move_into(kept: Path, folder: Path) -> None:
    """All files of a run, in the place of those of the same names."""
    for path in folder.rglob("*"):
        if path.is_file():
            place = (kept / path.relative_to(folder)).resolve()  # a link stays a link
            if place.is_dir():
                raise Problem(f"{place} is a folder, and a result has that name: move it away")
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".json":  # it names its own files
                path.write_text(path.read_text().replace(str(folder), str(kept)))
            shutil.move(path, place)


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    with writing_results():
        return tempfile.TemporaryDirectory(dir=results_folder(), prefix="running-")
