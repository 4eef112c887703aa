"""The JSON files of the exercises: what observe.py is to run, what it saw, and the score card."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tfworkshop.files import read_cached

PASSED = "passed"
CORRECT = "correct, not timed"
NOT_YET = "not yet"


class Run(msgspec.Struct):
    """One run of a training script."""

    name: str
    argv: list[str]
    steps: int
    data: str
    dropout: bool  # False: dropout layers drop nothing
    watched: bool = True  # False: timed, so nothing may slow it down


class Plan(msgspec.Struct):
    script: str
    runs: list[Run]


class Graph(msgspec.Struct):
    """A graph with gradients that Python started, and what it contains."""

    name: str
    calls: int
    bytes_fed: int  # of large tensors that were new to it, after the first call
    backward: int = 0  # gradients of convolutions
    programs: list[tuple[int, int]] = []  # convolutions and gradients in each program of XLA
    updates: int = 0  # of float32 variables
    updates_in_xla: int = 0
    conv_types: list[str] = []
    has_iterator: bool = False


class Observed(msgspec.Struct):
    """What a run really did."""

    traceback: str = ""
    losses: list[float] = []  # as logged
    throughputs: list[float] = []  # as logged, img/s
    times: list[float] = []  # when these lines were logged, in seconds
    gpu: bool = False
    weight_types: list[str] = []  # none: there is no model with the CNN's weights
    logits_type: str = "float32"
    accuracy: float = 0.0  # of its model on the test images
    loss_scaled: bool = False
    reads: int = 0  # of arrays of the data file
    graphs: list[Graph] = []
    has_profile: bool = False
    steps_in_profile: list[int] = []  # by their markers
    root_markers: bool = False


class Check(msgspec.Struct):
    """The outcome of the last check: check.json beside the script."""

    sha256: str
    status: str
    code: str  # of the first mistake
    speeds: dict[str, float]  # img/s: yours, before, ours


class Hints(msgspec.Struct):
    """How many hints were shown: hints.json beside the script."""

    shown: int = 0


def check_file(script: Path) -> Path:
    return script.with_name("check.json")


def read_check(script: Path) -> Check | None:
    return read_cached(check_file(script), Check)
