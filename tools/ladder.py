"""`./workshop run`: train the stages one after the other and show what each one brought."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tools import data, table
from tools.stages import ROOT, Stage

RESULTS = ROOT / "results"
LOG_LINE = re.compile(r"INFO - \((\d+), (\d+)\), Loss: .*throughput: ([\d.]+) img/s")
START_COST = 40  # importing TensorFlow and testing, in steps of the fastest stage

Report = Callable[[int, float], None]  # steps done, img/s now


def stage_command(stage: Stage, steps: int, batch_size: int, data_path: Path) -> list[str]:
    command = [sys.executable, str(stage.script), "--steps", str(steps)]
    command += ["--batch-size", str(batch_size), "--data", str(data_path)]
    command += ["--results", str(RESULTS / f"{stage.folder}.json")]
    if stage.profiles:
        first, last = min(10, steps // 2), min(20, steps - 1)
        command += ["--logdir", str(RESULTS / "logs" / stage.folder)]
        command += ["--profile-steps", str(first), str(last)]
    return command


def train(stage: Stage, command: list[str], report: Report) -> dict:
    """Run one stage; its row of the ladder, with `failed` saying why where it did."""
    result_file, log_file = RESULTS / f"{stage.folder}.json", RESULTS / f"{stage.folder}.log"
    result_file.unlink(missing_ok=True)
    done = 0
    with log_file.open("w") as log, started(command, log_file) as process:
        for line in process.stdout or ():
            log.write(line)
            found = LOG_LINE.search(line)
            if found:
                done += 1
                report(done, float(found[3]))
    row = {"stage": stage.folder, "change": stage.change}
    try:
        row |= json.loads(result_file.read_text()) | {"stage": stage.folder}
    except (OSError, ValueError):
        row["failed"] = "no results"
    if process.returncode:
        row["failed"] = last_words(process.returncode, log_file.with_suffix(".err"))
    return row


@contextmanager
def started(command: list[str], log_file: Path) -> Iterator[subprocess.Popen[str]]:
    """The stage's process; Ctrl+C here reaches it, and it always ends before we go on."""
    with (
        log_file.with_suffix(".err").open("w") as err,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True) as process,
    ):
        try:
            yield process
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def last_words(status: int, err_file: Path) -> str:
    """Why a stage failed: its last line on stderr, or how it died."""
    lines = [line.strip() for line in err_file.read_text(errors="replace").splitlines()]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return next((line for line in reversed(lines) if line), f"exit status {status}")


def run_stages(
    stages: list[Stage], steps: int, batch_size: int, data_path: Path, console: Console
) -> Iterator[dict]:
    """Each stage's row as it is done; a progress bar on a terminal, plain lines elsewhere."""
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
            row = train(stage, stage_command(stage, steps, batch_size, data_path), report)
            spent += START_COST + steps * stage.step_cost
            progress.update(bar, completed=spent)
            told = row.get("failed") and f"FAILED: {row['failed']}"
            told = told or f"{table.number(row['img_per_s'])} img/s"
            console.print(
                f"{stage.folder:<20} {told}  ({time.monotonic() - began:.0f} s)", highlight=False
            )
            yield row


def run(stages: list[Stage], steps: int, batch_size: int) -> int:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 100  # a file or a pipe has no width of its own
    try:
        kind = data.ensure(fallback=True, say=lambda line: console.print(line, markup=False))
    except data.DataError as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 1
    RESULTS.mkdir(exist_ok=True)
    console.print(f"{len(stages)} stages of {steps} steps, batch {batch_size}, data: {kind}")
    rows: list[dict] = []
    interrupted = False
    try:
        for row in run_stages(stages, steps, batch_size, data.DEFAULT_PATH, console):
            rows.append(row)
            interrupted = row.get("interrupted", False)
            if interrupted:
                break
    except KeyboardInterrupt:
        interrupted = True
    if rows:
        table.show(rows, console)
        for path in table.write(rows, RESULTS):
            console.print(f"wrote {os.path.relpath(path)}")
    for row in rows:
        if "failed" in row and not row.get("interrupted"):
            log = os.path.relpath(RESULTS / f"{row['stage']}.err")
            print(f"workshop: {row['stage']} failed: {row['failed']} (see {log})", file=sys.stderr)
    if interrupted:
        return 130
    return 1 if any("failed" in row for row in rows) else 0
