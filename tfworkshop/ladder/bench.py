"""`./workshop bench`: 06 against what a user would choose instead, in one run, alternating.

If 06 chose 16 bit, a `model.fit` in 16 bit is included.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tfworkshop import data, terminal
from tfworkshop.files import measuring, read_json, results_folder, save
from tfworkshop.ladder import launch
from tfworkshop.ladder.keras_fit import VARIANTS
from tfworkshop.machine import has_nvidia_gpu
from tfworkshop.processes import output_of
from tfworkshop.stages import ROOT, STAGES, Stage
from tfworkshop.terminal import as_markdown, number, on_terminal


@dataclass
class Entry:
    """One way to train, and its speed in each repeat."""

    name: str
    stage: Stage | None = None  # None: a variant of model.fit
    variant: str = ""
    speeds: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds) if self.speeds else 0.0

    @property
    def sixteen_bit(self) -> bool:
        return bool(self.variant) and VARIANTS[self.variant][-1] != "float32"


def entries() -> list[Entry]:
    names = [name for name in VARIANTS if ", float16" not in name or has_nvidia_gpu()]
    fit = [Entry(f"model.fit, {name}", variant=name) for name in names]
    return [Entry(stage.name, stage) for stage in (STAGES[-1], STAGES[2])] + fit


def train(entry: Entry, steps: int, batch_size: int) -> dict:
    """One repeat of an entry: its img_per_s, or why there is none."""
    if entry.stage:
        return launch.train(
            launch.Job(entry.stage, steps, batch_size), name=f"bench_of_{entry.name}"
        )
    results = results_folder() / "bench_fit.json"
    results.unlink(missing_ok=True)
    words = [entry.variant, str(steps), str(batch_size), str(data.DEFAULT_PATH), str(results)]
    command = [sys.executable, "-m", "tfworkshop.ladder.keras_fit", *words]
    status, _, errors = output_of(command, cwd=ROOT)
    if status:
        lines = errors.strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit status {status}"}
    return read_json(results)


def measure(
    entered: list[Entry], repeats: int, steps: int, batch_size: int
) -> Iterator[tuple[int, Entry]]:
    """Alternating, so that a noisy minute affects all of them. Slow ones run only once."""
    chosen = "float32"  # by choose.py, for 06
    for repeat in range(repeats):
        best = max(entry.speed for entry in entered)
        for entry in entered:
            if entry.failed or (repeat and entry.speed < best / 2):
                continue
            if entry.sixteen_bit and chosen == "float32":  # compare only the same precision
                continue
            row = train(entry, steps, batch_size)
            chosen = row["precision"] if entry is entered[0] and "precision" in row else chosen
            if row.get("interrupted"):
                raise KeyboardInterrupt
            if "failed" in row:
                entry.failed = row["failed"]
            elif row["img_per_s"]:
                entry.speeds.append(row["img_per_s"])
            else:
                entry.failed = "too few steps to time"
            yield repeat, entry


HEADER = ["way to train", "img/s", "spread", "06 is"]


def cells(bench: dict) -> list[list[str]]:
    ours = bench["rows"][0]["img_per_s"]
    rows = []
    for row in bench["rows"]:
        if not row["img_per_s"]:
            rows.append([row["name"], "failed", "-", "-"])
            continue
        spread = f"{number(min(row['repeats']))} to {number(max(row['repeats']))}"
        factor = f"{ours / row['img_per_s']:.2f}x" if row is not bench["rows"][0] else "-"
        rows.append([row["name"], number(row["img_per_s"]), spread, factor])
    return rows


def verdict(bench: dict) -> str:
    """06 against the fastest model.fit."""
    ours = bench["rows"][0]["img_per_s"]
    fits = [row for row in bench["rows"] if row["name"].startswith("model.fit")]
    best = max(fits, key=lambda row: row["img_per_s"])
    if not ours or not best["img_per_s"]:
        return "nothing to compare"
    times = f"{ours / best['img_per_s']:.2f}x"
    return f"batch {bench['batch_size']}: 06 is {times} the best {best['name']}"


def markdown(bench: dict) -> str:
    return as_markdown(HEADER, cells(bench))


def show(bench: dict, console: Console) -> None:
    console.print(on_terminal(HEADER, cells(bench)))
    console.print(verdict(bench) + "\n", markup=False)


def run(batch_size: list[int], repeats: int, steps: int | None) -> int:
    launch.check_size(max(batch_size), ranks=1)
    with measuring(results_folder()):
        return measure_and_show(batch_size, repeats, steps)


def measure_and_show(batch_sizes: list[int], repeats: int, steps: int | None) -> int:
    console = terminal.console()
    say = functools.partial(console.print, markup=False)
    kind = data.ensure(fallback=True, say=say)
    status = 0
    for batch_size in batch_sizes:
        entered = entries()
        count = steps or max(60, min(600, 6400 // batch_size))
        console.print(f"batch {batch_size}: {repeats} x {count} steps, alternating")
        launch.choose(STAGES[-1], batch_size, say)
        for repeat, entry in measure(entered, repeats, count, batch_size):
            result = (
                f"FAILED: {entry.failed}" if entry.failed else f"{number(entry.speeds[-1])} img/s"
            )
            console.print(f"  {repeat + 1}/{repeats}  {entry.name:<42} {result}", markup=False)
        bench = {
            "batch_size": batch_size,
            "steps": count,
            "data": kind,
            "rows": [
                {"name": e.name, "img_per_s": e.speed, "repeats": e.speeds, "failed": e.failed}
                for e in entered
                if e.speeds or e.failed
            ],
        }
        good = not any(entry.failed for entry in entered)
        path = launch.place_for(good) / f"bench_{batch_size}.json"
        text = json.dumps(bench, indent=2) + "\n"
        save(path, lambda part, text=text: Path(part).write_text(text))
        show(bench, console)
        console.print(f"wrote {os.path.relpath(path)}", markup=False)
        for entry in entered:
            if entry.failed:
                print(f"workshop: {entry.name} failed: {entry.failed}", file=sys.stderr)
                status = 1
    return status
