"""What a stage script writes with --results: the one description of that file's format."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tfworkshop.files import read_record


class Results(msgspec.Struct):
    """One training: its options, what it ran on, and what came out.

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
    precision: str = "float32"
    # From 06 on.
    steps_per_call: int = 1
    threads: int | None = None


def read_results(path: Path) -> Results:
    return read_record(path, Results)
