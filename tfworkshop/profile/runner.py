"""Runs a Python program as `python` would, with its steps counted and some of them recorded.

    python runner.py '{"logdir": ...}' train.py ...
    python runner.py '{"logdir": ...}' -m module ...

It is started by the user's own Python, so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # our package, for these imports only

from tfworkshop.ideal_gpu.counted import Device
from tfworkshop.profile import hooks
from tfworkshop.profile.recorder import Recorder
from tfworkshop.profile.summary import rank, rank_folder


def make_recorder(settings: str) -> Recorder:
    options = json.loads(settings)
    folder = None
    if rank() == 0 or options["all_ranks"]:
        folder = rank_folder(Path(options["logdir"]))
        folder.mkdir(parents=True, exist_ok=True)
    if "IDEAL_GPU_FOLDER" in os.environ:
        read_counters = Device().counts
        return Recorder(folder, options["window"], options["stop"], read_counters)
    return Recorder(folder, options["window"], options["stop"])


def main() -> None:
    settings, *program = sys.argv[1:]
    recorder = make_recorder(settings)
    hooks.install(recorder)
    try:
        if program[0] == "-m":
            sys.path[0] = str(Path.cwd())
            sys.argv = program[1:]
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(program[0]).resolve().parent)
            sys.argv = program
            runpy.run_path(program[0], run_name="__main__")
    finally:
        recorder.finish()


if __name__ == "__main__":
    main()
