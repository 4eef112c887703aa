"""The ladder: which scripts there are, in which order, and the one idea of each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from tfworkshop.problem import UsageProblem

ROOT = Path(__file__).resolve().parent.parent

# One image, one training step: twice the multiplications of the forward pass (a multiplication and
# an addition each), three times over (forward, gradient of the weights, gradient of the input);
# conv_1 has no gradient of its input. The rest (pooling, relu, Adam) is under 1 %.
FLOP_PER_IMAGE = 2 * (2 * 26 * 26 * 32 * 9 + 3 * (24 * 24 * 64 * 288 + 9216 * 128 + 128 * 10))


@dataclass(frozen=True)
class Stage:
    name: str  # the script's STAGE: a row's label, and the name of its files
    folder: str
    change: str
    step_cost: float  # rough, on a CPU, relative to the fastest: to estimate the time left
    file: str = "train_MNIST.py"
    profiles: bool = False  # `run` gives it --logdir and --profile-steps
    chooses: bool = False  # the folder's choose.py finds its switches

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def script(self) -> Path:
        return ROOT / self.folder / self.file


STAGES = (
    Stage("00_baseline", "00_baseline", "reads all data every step", step_cost=9),
    Stage(
        "01_line_profiler",
        "01_line_profiler",
        "read once, then tf.data",
        step_cost=3,
        file="train_MNIST_iofix.py",
    ),
    Stage("02_tf_function", "02_tf_function", "the step is a tf.function", step_cost=1),
    Stage("03_xla", "03_xla", "gradients compiled by XLA", step_cost=4),
    Stage(
        "04_tf_profiler",
        "04_tf_profiler",
        "profiled: XLA if it pays",
        step_cost=1,
        profiles=True,
    ),
    Stage(
        "05_reduced_precision",
        "05_reduced_precision",
        "16 bit where it has units",
        step_cost=1,
        profiles=True,
    ),
    Stage(
        "06_device",
        "06_optimized",
        "the loop on the device",
        step_cost=1,
        file="train_MNIST_device.py",
    ),
    Stage(
        "06_optimized",
        "06_optimized",
        "fewer kernels, faster ones",
        step_cost=1,
        chooses=True,
    ),
)


def lines_changed(stage: Stage) -> int | None:
    """How many lines of a stage's script are not in the previous one; None for the first."""
    if stage not in STAGES or stage == STAGES[0]:
        return None
    previous = STAGES[STAGES.index(stage) - 1]
    old = previous.script.read_text().splitlines()
    new = stage.script.read_text().splitlines()
    added = [line for line in difflib.ndiff(old, new) if line.startswith("+ ")]
    measured = [line for line in added if line.startswith("+ Speed: ")]  # not written by hand
    return len(added) - len(measured)


def choose(names: list[str]) -> list[Stage]:
    """The stages of these numbers or names, in the ladder's order; all of them for no name.

    06 means two stages; where one is wanted, it is the last.
    """
    for name in names:
        if not any(name in (stage.number, stage.name) for stage in STAGES):
            known = ", ".join(dict.fromkeys(stage.number for stage in STAGES))
            raise UsageProblem(f"no stage {name}. The stages are {known}")
    if not names:
        return list(STAGES)
    return [stage for stage in STAGES if stage.number in names or stage.name in names]
