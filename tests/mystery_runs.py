"""Run many scripts in one process, so that TensorFlow is loaded once for all of them.

python -m tests.mystery_runs FOLDER DATA                       each script with the attendee's tools
python -m tests.mystery_runs FOLDER DATA, on the ideal GPU      each script, profiled on it
horovodrun -np 2 python -m tests.mystery_runs FOLDER DATA      each script with Horovod's timeline
FOLDER has a folder for each script, which is named train_MNIST.py.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import runpy
import sys
from pathlib import Path

import line_profiler
import tensorflow as tf

from tfworkshop.ideal_gpu import build as ideal_gpu
from tfworkshop.mysteries import evidence

with contextlib.suppress(ImportError):  # the ideal GPU's environment has none
    import horovod.tensorflow as hvd

SMALL = ["--steps", "16", "--batch-size", "16"]
LARGE = ["--steps", "12", "--batch-size", "64"]
SHORT = ["--steps", "8", "--batch-size", "16"]  # tracing at each step takes long
OPTIONS = {"mystery_2": LARGE, "mystery_3": LARGE, "mystery_4": SHORT}
PROFILE = ["--xla", "off", "--logdir", evidence.PROFILES, "--profile-steps", "5", "7"]
TWO_RANKS = ["--steps", "16", "--batch-size", "16"]


def run_script(options: list[str]) -> None:
    logging.getLogger().handlers.clear()
    sys.argv = ["train_MNIST.py", *options]
    try:
        runpy.run_path("train_MNIST.py", run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code


def use_tools(folder: Path, data: str) -> None:
    """Leave a log, a profile and a line profile, as an attendee's tools do."""
    profiler = line_profiler.LineProfiler()
    line_profiler.profile = profiler
    options = OPTIONS.get(folder.name, SMALL)
    with Path(evidence.LOG).open("w") as log, contextlib.redirect_stdout(log):
        run_script([*options, *PROFILE, "--data", data])
    profiler.dump_stats(evidence.LINE_PROFILE)
    tf.config.experimental.set_synchronous_execution(True)  # mystery 3 changes it


def use_ideal_gpu(folder: Path, data: str) -> None:
    """Leave a profile of the ideal GPU."""
    logdir = ["--logdir", evidence.ON_IDEAL_GPU]
    run_script([*SHORT, *PROFILE, *logdir, "--data", data])
    tf.config.experimental.set_synchronous_execution(True)  # mystery 3 changes it


def record_timeline(folder: Path, data: str) -> None:
    hvd.start_timeline(str(folder / evidence.TIMELINE))
    run_script([] if folder.name == "stranger" else [*TWO_RANKS, "--data", data])
    hvd.allgather_object(None)  # wait for the other rank
    hvd.stop_timeline()


def main(root: Path, data: str) -> None:
    gc.disable()  # the process ends soon
    run = use_tools
    if ideal_gpu.is_in_use():
        run = use_ideal_gpu
    else:
        hvd.init()
        if hvd.size() > 1:
            run = record_timeline
    for folder in sorted(root.iterdir()):
        os.chdir(folder)
        run(folder, data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
