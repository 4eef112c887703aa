"""`./workshop scale`: weak scaling, the same batch on every rank, from one rank to many."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tools import data, launch
from tools.machine import has_nvidia_gpu
from tools.stages import Stage
from tools.table import as_markdown, number, on_terminal, save


@dataclass
class Point:
    """A number of ranks, and what it came to in each repeat."""

    ranks: int
    threads: int | None = None  # per rank; None where GPUs do the work
    speeds: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def name(self) -> str:
        return f"{self.ranks}" + (f" x {self.threads} thread(s)" if self.threads else "")

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds) if self.speeds else 0.0


def plan(ranks: list[int], cores: int, gpu: bool) -> list[Point]:
    """On a CPU the ranks share the cores, and one process with all of them is the yardstick."""
    ranks = sorted(set(ranks))
    if gpu:
        return [Point(n) for n in ranks]
    share = max(1, cores // max(ranks))
    points = [Point(n, share) for n in ranks]
    return points if share == cores else [Point(1, cores), *points]


def measure(
    stage: Stage, points: list[Point], repeats: int, steps: int, batch_size: int
) -> Iterator[tuple[int, Point]]:
    """Fill in the speeds, alternating between the points: a noisy minute then hits all of them."""
    for repeat in range(repeats):
        for point in points:
            if point.failed:
                continue
            job = launch.Job(stage, steps, batch_size, ranks=point.ranks, threads=point.threads)
            row = launch.train(job, name=f"scale_{stage.folder}_{point.ranks}")
            if row["interrupted"]:
                raise KeyboardInterrupt
            if "failed" in row:
                point.failed = row["failed"]
            elif row["img_per_s"]:
                point.speeds.append(row["img_per_s"])
            else:
                point.failed = "too few steps to time"
            yield repeat, point


def markdown(rows: list[dict]) -> str:
    """The table of a run that was kept."""
    return as_markdown(HEADER, cells(points_of(rows)))


def points_of(rows: list[dict]) -> list[Point]:
    return [Point(row["ranks"], row["threads"], row["repeats"]) for row in rows]


def verdict(rows: list[dict]) -> str:
    """The ranks against one process with all cores, where that is a row."""
    points = points_of(rows)
    alone, most = points[0], points[-1]
    if alone.threads == most.threads or not alone.speed or not most.speed:
        return ""
    return (
        f"{most.ranks} ranks of {most.threads} thread(s) are {most.speed / alone.speed:.2f}x "
        f"one process with {alone.threads} threads"
    )


def cells(points: list[Point]) -> list[list[str]]:
    """ranks, img/s, spread, per rank, efficiency against the fewest ranks of the same kind."""
    first = next((p for p in points if p.threads == points[-1].threads), points[0])
    rows = []
    for point in points:
        if not point.speeds:
            rows.append([point.name, "failed", "-", "-", "-"])
            continue
        same_kind = point.threads == first.threads
        efficiency = point.speed / point.ranks / (first.speed / first.ranks) if first.speed else 0
        rows.append(
            [
                point.name,
                number(point.speed),
                f"{number(min(point.speeds))} to {number(max(point.speeds))}",
                number(point.speed / point.ranks),
                f"{efficiency:.0%}" if same_kind else "-",
            ]
        )
    return rows


HEADER = ["ranks", "img/s", "spread", "img/s per rank", "efficiency"]


def draw(points: list[Point], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    good = [p for p in points if p.speeds and p.threads == points[-1].threads]
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    ranks = [p.ranks for p in good]
    if good:
        ideal = [good[0].speed / good[0].ranks * n for n in ranks]
        axes.plot(
            ranks, ideal, "--", color="#888888", label="ideal: every rank as fast as the first"
        )
        axes.plot(ranks, [p.speed for p in good], "o-", color="#1f4e79", label="measured")
    for point in points:
        if point.speeds and point.threads != points[-1].threads:
            label = f"one process, {point.threads} threads"
            axes.axhline(point.speed, linestyle=":", color="#b35806", label=label)
    axes.set_xticks(ranks)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("ranks")
    axes.set_ylabel("images per second, all ranks")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save(path, lambda part: figure.savefig(part, dpi=140, format="png"))
    plt.close(figure)


def run(stage: Stage, ranks: list[int], repeats: int, steps: int, batch_size: int) -> int:
    console = launch.console()
    try:
        kind = data.ensure(fallback=True, say=lambda line: console.print(line, markup=False))
    except data.DataError as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 1
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    points = plan(ranks, cores, has_nvidia_gpu())
    console.print(f"{stage.folder}: {repeats} x {steps} steps, batch {batch_size} on every rank")
    for repeat, point in measure(stage, points, repeats, steps, batch_size):
        told = point.failed and f"FAILED: {point.failed}"
        told = told or f"{number(point.speeds[-1])} img/s"
        console.print(f"  {repeat + 1}/{repeats}  ranks {point.name:<16} {told}", markup=False)
    show(points, console)
    for path in write(stage, points, kind):
        console.print(f"wrote {os.path.relpath(path)}")
    for point in points:
        if point.failed:
            print(f"workshop: {point.name} failed: {point.failed}", file=sys.stderr)
    return 1 if any(point.failed for point in points) else 0


def show(points: list[Point], console: Console) -> None:
    console.print(on_terminal(HEADER, cells(points)))
    console.print(verdict(as_rows(points)))


def as_rows(points: list[Point]) -> list[dict]:
    return [
        {"ranks": p.ranks, "threads": p.threads, "img_per_s": p.speed, "repeats": p.speeds}
        for p in points
    ]


def write(stage: Stage, points: list[Point], kind: str) -> list[Path]:
    folder = launch.results_folder()
    paths = [folder / f"scale_{stage.folder}.{ending}" for ending in ("json", "png")]
    text = json.dumps({"data": kind, "points": as_rows(points)}, indent=2) + "\n"
    save(paths[0], lambda part: part.write_text(text))
    draw(points, f"{stage.folder}: weak scaling", paths[1])
    return paths
