"""Measure alternatives in turn, so that their medians can be compared: for bench and scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from tfworkshop.ladder import launch
from tfworkshop.results import Measured, Results
from tfworkshop.terminal import number

Alternative = TypeVar("Alternative", bound=Measured)


def measure(
    alternatives: Sequence[Alternative],
    repeats: int,
    train: Callable[[Alternative], float],
    console: Console,
    skip_slow: bool = False,
) -> None:
    """Fill in the speeds, alternating, so that a noisy minute affects all of them.

    skip_slow: those that are less than half as fast as the fastest run only once.
    """
    for repeat in range(repeats):
        fastest = max(alternative.speed for alternative in alternatives)
        for alternative in alternatives:
            if skip_slow and repeat > 0 and alternative.speed < fastest / 2:
                continue
            speed = train(alternative)
            alternative.repeats.append(speed)
            console.print(f"  {repeat + 1}/{repeats}  {alternative.name:<42} {number(speed)} img/s")


def train_stage(job: launch.Job, folder: Path) -> float:
    return speed_of(launch.train(job, folder))


def speed_of(results: Results) -> float:
    if results.interrupted:
        raise KeyboardInterrupt
    if not results.img_per_s:
        raise launch.StageFailed(f"{results.stage}: {results.steps} steps are too few to time")
    return results.img_per_s
