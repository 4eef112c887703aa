"""`./workshop test`: runs pytest on all cores, and passes on all options that are not its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tfworkshop.stages import ROOT

MOST_WORKERS = 4  # each holds TensorFlow: about 3 GB


def run(quick: bool, rest: list[str]) -> int:
    os.chdir(ROOT)
    words = ["-m", "not slow"] if quick else []
    names_file = any(Path(word.partition("::")[0]).exists() for word in rest)
    if not names_file:  # that needs no more processes
        workers = min(MOST_WORKERS, os.cpu_count() or 1)
        words += ["-n", str(workers), "--dist", "loadfile"]
        words += ["--durations", "10"]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *words, *rest])
