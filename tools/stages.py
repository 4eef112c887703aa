"""The ladder: which scripts there are, in which order, and the one idea of each."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# One image, one training step: twice the multiplications of the forward pass (a multiplication and
# an addition each), three times over (forward, gradient of the weights, gradient of the input);
# conv_1 has no gradient of its input. The rest (pooling, relu, Adam) is under 1 %.
FLOP_PER_IMAGE = 2 * (2 * 26 * 26 * 32 * 9 + 3 * (24 * 24 * 64 * 288 + 9216 * 128 + 128 * 10))


def results_path() -> Path:
    """Where results and profiles go; it may not be there yet."""
    return Path(os.environ.get("WORKSHOP_RESULTS") or ROOT / "results")


@dataclass(frozen=True)
class Stage:
    folder: str
    change: str
    step_cost: float  # rough, on a CPU, against the fastest: only for the time left
    file: str = "train_MNIST.py"
    profiles: bool = False  # takes --logdir and --profile-steps

    @property
    def number(self) -> str:
        return self.folder[:2]

    @property
    def script(self) -> Path:
        return ROOT / self.folder / self.file


STAGES = (
    Stage("00_baseline", "reads all data every step", 9),
    Stage("01_line_profiler", "read once, then tf.data", 3, file="train_MNIST_iofix.py"),
    Stage("02_tf_function", "the step is a tf.function", 1),
    Stage("03_xla", "gradients compiled by XLA", 4),
    Stage("04_tf_profiler", "a window of steps profiled", 4, profiles=True),
    Stage("05_reduced_precision", "mixed precision", 4, profiles=True),
    Stage("06_optimized", "the host leaves the loop", 1),
)


def lines_changed(stage: Stage) -> int | None:
    """How many lines of a stage's script are not in the stage's before it."""
    i = STAGES.index(stage) if stage in STAGES else 0
    if i == 0:
        return None
    old, new = (s.script.read_text().splitlines() for s in (STAGES[i - 1], stage))
    return sum(line.startswith("+ ") for line in difflib.ndiff(old, new))


class UnknownStage(Exception):
    """A stage was named that is not there."""


def choose(numbers: list[str]) -> list[Stage]:
    """The stages named by number or folder, in the ladder's order; all of them for no name."""
    if not numbers:
        return list(STAGES)
    known = {stage.number: stage for stage in STAGES} | {stage.folder: stage for stage in STAGES}
    wrong = [number for number in numbers if number not in known]
    if wrong:
        names = ", ".join(stage.number for stage in STAGES)
        raise UnknownStage(f"no stage {wrong[0]}. The stages are {names}")
    wanted = {known[number] for number in numbers}
    return [stage for stage in STAGES if stage in wanted]
