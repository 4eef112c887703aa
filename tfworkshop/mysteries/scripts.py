"""Build the mysteries' scripts: patches of 04's script, applied on demand, so they cannot drift.

patches/all.txt applies to every mystery, patches/N.txt to mystery N. Each patch replaces the text
between "@@ before" and "@@ after" by the text that follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfworkshop.exercises.task import my_folder
from tfworkshop.problem import Problem
from tfworkshop.stages import STAGES

BASE = next(stage for stage in STAGES if stage.number == "04")
PATCHES = Path(__file__).with_name("patches")
DOCSTRING = '''"""Mystery {number}: what is wrong with this training? See docs/MYSTERIES.md.

    python train_MNIST.py --steps 60 --logdir logs | tee log.txt    # the log, and a profile
    kernprof -l train_MNIST.py --steps 30                           # line by line
"""

'''


@dataclass(frozen=True)
class Mystery:
    number: int
    cause: str  # the name of one of causes.CAUSES

    @property
    def script(self) -> Path:
        return my_folder() / f"mystery_{self.number}" / "train_MNIST.py"


MYSTERIES = (
    Mystery(1, "python"),
    Mystery(2, "input"),
    Mystery(3, "clock"),
    Mystery(4, "retracing"),
    Mystery(5, "copies"),
    Mystery(6, "writing"),
    Mystery(7, "straggler"),
)


def find_mystery(number: str) -> Mystery:
    for mystery in MYSTERIES:
        if number.lstrip("0") == str(mystery.number):
            return mystery
    raise Problem(f"there is no mystery {number}, only 1 to {len(MYSTERIES)}")


def build_script(mystery: Mystery) -> str:
    return apply_patches(PATCHES / f"{mystery.number}.txt", build_healthy(mystery.number))


def build_healthy(number: int) -> str:
    """What a mystery's script would be if nothing were wrong with it."""
    text = BASE.script.read_text(encoding="utf-8")
    _, _, code = text.partition('"""\n\n')
    code = code.replace(f'STAGE = "{BASE.name}"', f'STAGE = "mystery_{number}"')
    return DOCSTRING.format(number=number) + apply_patches(PATCHES / "all.txt", code)


def apply_patches(file: Path, text: str) -> str:
    """ValueError unless each patch of the file fits in exactly one place."""
    for patch in file.read_text(encoding="utf-8").split("@@ before\n")[1:]:
        before, after = patch.rstrip("\n").split("\n@@ after\n")
        count = text.count(before)
        if count != 1:
            raise ValueError(f"{file.name} fits {count} times into {BASE.folder}: {before}")
        text = text.replace(before, after)
    return text
