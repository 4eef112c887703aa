"""`./workshop test`: runs pytest, and passes on all options that are not its own."""

from __future__ import annotations

import os
import sys

from tools.stages import ROOT


def run(quick: bool, rest: list[str]) -> int:
    os.chdir(ROOT)
    marked = ["-m", "not slow"] if quick else []
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *marked, *rest])
