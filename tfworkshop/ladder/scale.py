"""`./workshop scale`: weak scaling, the same batch on every rank, from one rank to many."""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from tfworkshop import data, terminal
from tfworkshop.files import measuring, results_folder, save
from tfworkshop.ladder import launch
from tfworkshop.machine import cores, has_nvidia_gpu
from tfworkshop.processes import end_all
from tfworkshop.stages import Stage, choose
from tfworkshop.terminal import as_markdown, number, on_terminal


@dataclass
class Point:
    """A number of ranks, and its speed in each repeat."""

    ranks: int
    threads: int | None = None  # per rank; None where GPUs do the work
    exchange: bool = True  # if not: independent processes
    speeds: list[float] = field(default_factory=list)
    failed: str = ""

    @property
    def name(self) -> str:
        threads = f" x {self.threads} thread(s)" if self.threads else ""
        return f"{self.ranks}{threads}" + ("" if self.exchange else ", no exchange")

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds) if self.speeds else 0.0


def plan(ranks: list[int], cores: int, gpu: bool) -> list[Point]:
    """On a CPU the ranks share the cores, and are compared with one process that has all cores.

    The same number of processes without any exchange shows the best that ranks could reach.
    """
    ranks = sorted(set(ranks))
    if gpu:
        return [Point(n) for n in ranks]
    share = cores // max(ranks)
    points = [Point(n, share) for n in ranks]
    if share == cores:
        return points
    alone = Point(max(ranks), share, exchange=False)
    return [Point(1, cores), *points[:-1], alone, points[-1]]


def measure(
    stage: Stage, points: list[Point], repeats: int, steps: int, batch_size: int
) -> Iterator[tuple[int, Point]]:
    """Fill in the speeds, alternating between the points: a noisy minute affects them all."""
    for repeat in range(repeats):
        for point in points:
            if point.failed:
                continue
            rows = train(stage, point, steps, batch_size)
            if any(row["interrupted"] for row in rows):
                raise KeyboardInterrupt
            failures = [row["failed"] for row in rows if "failed" in row]
            if failures:
                point.failed = failures[0]
            elif all(row["img_per_s"] for row in rows):
                point.speeds.append(sum(row["img_per_s"] for row in rows))
            else:
                point.failed = "too few steps to time"
            yield repeat, point


def train(stage: Stage, point: Point, steps: int, batch_size: int) -> list[dict]:
    """The results of one repeat: of all ranks together, or of each independent process."""
    name = f"scaling_of_{stage.name}_{point.ranks}"
    ranks = point.ranks if point.exchange else 1
    job = launch.Job(stage, steps, batch_size, ranks, point.threads)
    if point.exchange:
        return [launch.train(job, name)]
    with ThreadPoolExecutor(point.ranks) as pool:
        names = [f"{name}_alone_{i}" for i in range(point.ranks)]
        try:
            return list(pool.map(launch.train, [job] * point.ranks, names))
        except BaseException:
            end_all()
            raise


def markdown(rows: list[dict]) -> str:
    """The table of a run that was kept."""
    return as_markdown(HEADER, cells(points_of(rows)))


def points_of(rows: list[dict]) -> list[Point]:
    return [Point(row["ranks"], row["threads"], row["exchange"], row["repeats"]) for row in rows]


def like_the_last(points: list[Point]) -> list[Point]:
    """The points to compare: not the references, which have other threads or no exchange."""
    return [p for p in points if p.exchange and p.threads == points[-1].threads]


def verdict(rows: list[dict]) -> str:
    """The ranks, and the same without exchange, against one process with all cores."""
    points = points_of(rows)
    one, most = points[0], points[-1]
    alone = next((p for p in points if not p.exchange), None)
    if not (alone and alone.speed and one.speed and most.speed):
        return ""
    return (
        f"{most.ranks} ranks of {most.threads} thread(s) are {most.speed / one.speed:.2f}x "
        f"one process with {one.threads} threads; without exchange they would be "
        f"{alone.speed / one.speed:.2f}x"
    )


def cells(points: list[Point]) -> list[list[str]]:
    """ranks, img/s, spread, per rank, efficiency against the fewest ranks of the same kind."""
    same_kind = like_the_last(points)
    first = same_kind[0]
    rows = []
    for point in points:
        if not point.speeds:
            rows.append([point.name, "failed", "-", "-", "-"])
            continue
        efficiency = point.speed / point.ranks / (first.speed / first.ranks) if first.speed else 0
        rows.append(
            [
                point.name,
                number(point.speed),
                f"{number(min(point.speeds))} to {number(max(point.speeds))}",
                number(point.speed / point.ranks),
                f"{efficiency:.0%}" if point in same_kind else "-",
            ]
        )
    return rows


HEADER = ["ranks", "img/s", "spread", "img/s per rank", "efficiency"]


def draw(points: list[Point], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    good = [p for p in like_the_last(points) if p.speeds]
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    ranks = [p.ranks for p in good]
    if good:
        ideal = [good[0].speed / good[0].ranks * n for n in ranks]
        axes.plot(
            ranks, ideal, "--", color="#888888", label="ideal: every rank as fast as the first"
        )
        axes.plot(ranks, [p.speed for p in good], "o-", color="#1f4e79", label="measured")
    for point in points:
        if point.speeds and not point.exchange:
            label = f"{point.ranks} processes without exchange"
            axes.plot(point.ranks, point.speed, "D", color="#888888", label=label)
        elif point.speeds and point.threads != points[-1].threads:
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


def run(stage: str, ranks: list[int], repeats: int, steps: int, batch_size: int) -> int:
    chosen = choose([stage])[-1]
    launch.check_size(batch_size, max(ranks))
    with measuring(results_folder()):
        return measure_and_show(chosen, ranks, repeats, steps, batch_size)


def measure_and_show(
    stage: Stage, ranks: list[int], repeats: int, steps: int, batch_size: int
) -> int:
    points = plan(ranks, cores(), has_nvidia_gpu())
    console = terminal.console()
    say = functools.partial(console.print, markup=False)
    kind = data.ensure(fallback=True, say=say)
    if stage.chooses:
        launch.choose(stage, batch_size, say)
    console.print(f"{stage.name}: {repeats} x {steps} steps, batch {batch_size} on every rank")
    for repeat, point in measure(stage, points, repeats, steps, batch_size):
        result = point.failed and f"FAILED: {point.failed}"
        result = result or f"{number(point.speeds[-1])} img/s"
        console.print(f"  {repeat + 1}/{repeats}  ranks {point.name:<28} {result}", markup=False)
    paths = write(stage, points, kind, batch_size)
    show(points, console)
    for path in paths:
        console.print(f"wrote {os.path.relpath(path)}", markup=False)
    for point in points:
        if point.failed:
            print(f"workshop: {point.name} failed: {point.failed}", file=sys.stderr)
    return 1 if any(point.failed for point in points) else 0


def show(points: list[Point], console: Console) -> None:
    console.print(on_terminal(HEADER, cells(points)))
    console.print(verdict(as_rows(points)))


def as_rows(points: list[Point]) -> list[dict]:
    return [
        {
            "ranks": p.ranks,
            "threads": p.threads,
            "exchange": p.exchange,
            "img_per_s": p.speed,
            "repeats": p.speeds,
        }
        for p in points
    ]


def write(stage: Stage, points: list[Point], kind: str, batch_size: int) -> list[Path]:
    label = stage.number if choose([stage.number])[-1] is stage else stage.name
    folder = launch.place_for(good=not any(point.failed for point in points))
    name = f"scale_{label}_{batch_size}"
    paths = [folder / f"{name}.{ending}" for ending in ("json", "png")]
    content = {"stage": stage.name, "batch_size": batch_size, "data": kind}
    text = json.dumps({**content, "points": as_rows(points)}, indent=2) + "\n"
    save(paths[0], lambda part: part.write_text(text))
    draw(points, f"{stage.name}: weak scaling, batch {batch_size} on every rank", paths[1])
    return paths
