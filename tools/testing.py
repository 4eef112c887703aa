"""`./workshop test`: pytest, with what it does not know of its own passed on."""

from __future__ import annotations

import os
import sys

from tools.stages import ROOT


def run(quick: bool, rest: list[str]) -> int:
    os.chdir(ROOT)
    marked = ["-m", "not slow"] if quick else []
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *marked, *rest])
