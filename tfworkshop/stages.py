"""The ladder: which scripts there are, in which order, and the one idea of each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from tfworkshop.problem import Problem

ROOT = Path(__file__).resolve().parent.parent

# One image, one training step: twice the multiplications of the forward pass (a multiplication and
# an addition each), three times over (forward, gradient of the weights, gradient of the input);
# conv_1 has no gradient of its input. The rest (pooling, relu, Adam) is under 1 %.
FLOP_PER_IMAGE = 2 * (2 * 26 * 26 * 32 * 9 + 3 * (24 * 24 * 64 * 288 + 9216 * 128 + 128 * 10))


@dataclass(frozen=True)
class Stage:
    name: str  # the script's STAGE: a row's label, and the name of its files
    change: str
    step_cost: float  # rough, on a CPU, relative to the fastest: to estimate the time left
    file: str = "train_MNIST.py"
    profiles: bool = False  # `run` gives it --logdir and --profile-steps
    inside: str = ""  # the folder, if it is not named like the stage
    chooses: bool = False  # the folder's choose.py finds its switches

    @property
    def folder(self) -> str:
        return self.inside or self.name

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def script(self) -> Path:
        return ROOT / self.folder / self.file


STAGES = (
    Stage("00_baseline", "reads all data every step", 9),
    Stage("01_line_profiler", "read once, then tf.data", 3, "train_MNIST_iofix.py"),
    Stage("02_tf_function", "the step is a tf.function", 1),
    Stage("03_xla", "gradients compiled by XLA", 4),
    Stage("04_tf_profiler", "profiled: XLA if it pays", 1, profiles=True),
    Stage("05_reduced_precision", "16 bit where it has units", 1, profiles=True),
    Stage(
        "06_device",
        "the loop on the device",
        1,
        "train_MNIST_device.py",
        inside="06_optimized",
    ),
    Stage("06_optimized", "fewer kernels, faster ones", 1, chooses=True),
)


def lines_changed(stage: Stage) -> int | None:
    """How many lines of a stage's script are not in the previous one."""
    i = STAGES.index(stage) if stage in STAGES else 0
    if i == 0:
        return None
    old, new = (s.script.read_text().splitlines() for s in (STAGES[i - 1], stage))
    added = [line for line in difflib.ndiff(old, new) if line.startswith("+ ")]
    return sum(not line.startswith("+ Speed: ") for line in added)  # that one is measured


class UnknownStage(Problem):
    """A stage was named that does not exist."""


def choose(names: list[str]) -> list[Stage]:
    """The stages of these numbers or names, in the ladder's order; all for no name.

    06 is two: where one is wanted, it is the last.
    """
    for name in names:
        if not any(name in (stage.number, stage.name) for stage in STAGES):
            known = ", ".join(dict.fromkeys(stage.number for stage in STAGES))
            raise UnknownStage(f"no stage {name}. The stages are {known}")
    chosen = [stage for stage in STAGES if {stage.number, stage.name} & set(names)]
    return chosen if names else list(STAGES)
