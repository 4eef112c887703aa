"""The formats of our result files: what a stage, `run`, `bench` and `scale` write as JSON."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from tfworkshop.files import read_record


class Results(msgspec.Struct):
    """One training, as a stage writes it with --results: options, device, and what came out.

    Times and speeds are None where a run was too short to time (the first ten steps are warm-up).
    """

    stage: str
    batch_size: int  # on each rank
    ranks: int
    steps: int
    seed: int
    data: str  # "mnist" or "synthetic"
    device: str  # "CPU, 2 cores", or a GPU's name
    versions: dict[str, str]
    warmup_steps: int
    steps_timed: int
    compile_s: float | None  # what warm-up took beyond the steps' own time: tracing, compiling
    step_ms_median: float | None
    img_per_s: float | None  # of all ranks together
    final_loss: float | None
    test_accuracy: float | None  # None if it was interrupted
    interrupted: bool = False
    # From 04 on.
    xla: str | None = None
    logdir: str | None = None
    # From 05 on.
    precision: str | None = None  # None is float32
    # From 06 on.
    steps_per_call: int | None = None
    threads: int | None = None


def read_results(path: Path) -> Results:
    return read_record(path, Results)


# --- ./workshop run: ladder.json ---


class Choice(msgspec.Struct):
    """What choose.py printed."""

    lines: list[str]  # one for each trial: its switches and its speed, or why there is none
    switches: str  # the fastest ones; empty if no trial succeeded


class Row(Results, kw_only=True):
    """A stage of the ladder: the median run of its repeats."""

    change: str  # the stage's idea, in a few words
    lines: int | None  # of its script that the previous stage does not have
    log: list[str]  # the last steps as it printed them
    tried: Choice | None = None
    repeats: list[float] = msgspec.field(default_factory=list)  # img/s of each run
    # On the ideal GPU, per step: what the device was given to do (ideal_gpu/counted.py), and the
    # time with 2 us more for each submission.
    counts: dict[str, float] = msgspec.field(default_factory=dict)
    step_ms_with_driver: float | None = None

    @property
    def on_cpu(self) -> bool:
        return self.device.startswith("CPU")


class Failure(msgspec.Struct):
    """A stage that failed."""

    stage: str
    reason: str


class Ladder(msgspec.Struct):
    """A run of several stages."""

    date: str
    commit: str  # empty where there is no git
    machine: str  # the CPU's name
    steps: int
    ceiling: dict[str, float]  # FLOP/s of a matrix multiply, by precision
    rows: list[Row]
    failed: list[Failure] = msgspec.field(default_factory=list)


# --- ./workshop bench and scale: alternatives that were measured in turn ---


class Measured(msgspec.Struct):
    """One of the alternatives, and its speed in each repeat."""

    name: str
    repeats: list[float] = msgspec.field(default_factory=list)  # img/s

    @property
    def speed(self) -> float:
        """The median; 0 before the first repeat."""
        return statistics.median(self.repeats) if self.repeats else 0.0


class Bench(msgspec.Struct):
    """bench_BATCH.json: 06 in the first row, then what it is compared with."""

    batch_size: int
    steps: int
    data: str
    rows: list[Measured]


class ScalePoint(Measured, kw_only=True):
    """A number of processes."""

    ranks: int
    threads: int | None = None  # per rank; None where GPUs do the work
    exchange: bool = True  # False: independent processes


class Scale(msgspec.Struct):
    """scale_STAGE_BATCH.json: the references first, the most ranks last."""

    stage: str
    batch_size: int  # on each rank
    data: str
    points: list[ScalePoint]
