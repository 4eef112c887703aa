"""The environment that ./workshop has made, as Python sees it. Standard library only."""

from __future__ import annotations

import sys
from pathlib import Path


def installed_requirements() -> list[str]:
    """The requirements of this environment; none if it is not one that ./workshop has made."""
    stamp = Path(sys.prefix, "workshop.txt")
    return stamp.read_text().splitlines() if stamp.exists() else []


def run(test: bool, horovod: bool, ideal_gpu: bool) -> int:
    """`./workshop setup`: all is done by now."""
    if installed_requirements():
        print(f"Ready: {sys.prefix}")
    else:
        print(f"Using {sys.executable}; nothing is installed.")
    return 0
