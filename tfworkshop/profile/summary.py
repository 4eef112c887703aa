"""What the profiled program leaves for `./workshop profile`. Standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

NAME = "profile.json"  # in the folder that the process records into
RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def rank() -> int:
    """The number of this process in a job of several, as its launcher says."""
    numbers = [os.environ[name] for name in RANKS if os.environ.get(name, "").isdecimal()]
    return int(numbers[0]) if numbers else 0


def rank_folder(logdir: Path) -> Path:
    """The first rank records into the folder itself, as the stages do."""
    return logdir / str(rank()) if rank() else logdir


@dataclass
class Timed:
    """Steps that were timed without being recorded."""

    steps: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.steps += 1
        self.seconds += seconds


@dataclass
class Kind:
    """A kind of step: the batches of a model's fit, the calls of a function, of an optimizer."""

    name: str  # "batches of model.fit"
    count: int = 0
    before: Timed = field(default_factory=Timed)  # the window
    after: Timed = field(default_factory=Timed)
    all: Timed = field(default_factory=Timed)
    irregular: int = 0  # steps with an evaluation inside, say: not timed
    samples: int = 0  # of a step; 0: not known
    first: int = 0  # the window's first step
    recorded: int = 0  # steps in the window
    folder: str = ""  # the window's profile; empty: none
    inside: str = ""  # the kind of step whose steps contain this one
    has_settled: bool = True  # nothing had been traced in the last steps before the window
    median_ms: float = 0.0  # of the unrecorded steps
    work: dict[str, int] = field(default_factory=dict)  # on the ideal GPU: its counters, of these

    @property
    def unrecorded(self) -> Timed:
        return Timed(self.before.steps + self.after.steps, self.before.seconds + self.after.seconds)


@dataclass
class Summary:
    kinds: list[Kind] = field(default_factory=list)
    tensorflow: str = ""  # its version; empty: it was never imported
    occupied: bool = False  # the program's own profiler was running when ours should have
