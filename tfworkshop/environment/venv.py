"""The environment that ./workshop has made, as Python sees it. Standard library only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tfworkshop.stages import ROOT

STAMP = "workshop.txt"  # in the environment: the requirements that are installed


def venv_folder() -> Path:
    return Path(os.environ.get("WORKSHOP_VENV") or ROOT / ".venv").absolute()


def installed_requirements(folder: Path) -> list[str]:
    """The lines of the requirements; none if ./workshop has not completed this environment."""
    stamp = folder / STAMP
    return stamp.read_text().splitlines() if stamp.exists() else []


def run(test: bool, horovod: bool) -> int:
    """`./workshop setup`: all is done by now."""
    if not installed_requirements(Path(sys.prefix)):
        print(f"Using {sys.executable}; nothing is installed.")
        return 0
    print(f"Ready: {sys.prefix}")
    return 0
