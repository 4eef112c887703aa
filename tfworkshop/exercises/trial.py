"""Runs of a script in a process of their own (observe.py), and what came out.

What is wrong with a run whatever the exercise is about is found here.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from tfworkshop import data, processes
from tfworkshop.exercises.records import Observed, Plan, Run
from tfworkshop.files import cache_folder, read_record, save_record
from tfworkshop.machine import alone
from tfworkshop.problem import Problem
from tfworkshop.processes import Finished
from tfworkshop.results import Results, read_results
from tfworkshop.stages import ROOT, Stage

BATCH = 16  # of the watched runs: small, to be quick
TIMED_BATCH = 64
STILL = 1e-9  # a learning rate at which no weight changes
WINDOW = (11, 14)  # the steps to profile in the last run: after the warm-up
EPOCH = 4  # steps in an epoch of the grey images
TEST_IMAGES = 250
FEW = 16  # test images where the accuracy does not matter
CALL = 3  # steps in a call, in 06: an epoch of four takes two calls
WATCHED = 16  # steps of the last run
SAVED = "##saved"  # observe.py prints it after each run

LOG_LINE = re.compile(
    r"INFO - \(\d+, \d+\), Loss: (?P<loss>\d+\.\d+), step_time: \S+, throughput: \S+ img/s"
)


class NotYet(Exception):
    """The one thing that is wrong with a script. `code` names it, `details` explain it."""

    def __init__(self, code: str, message: str, *details: str) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


@functools.cache
def read_mistakes() -> dict[str, list[str]]:
    """The paragraphs of each section of mistakes.md."""
    text = Path(__file__).with_name("mistakes.md").read_text(encoding="utf-8")
    text = re.sub(r"^# .*\n", "", text, flags=re.M)
    _, *sections = re.split(r"^## ", text, flags=re.M)
    mistakes = {}
    for section in sections:
        code, _, body = section.partition("\n")
        paragraphs = body.strip().split("\n\n")
        mistakes[code] = [paragraph.replace("\n", " ") for paragraph in paragraphs]
    return mistakes


def mistake(code: str, **values: object) -> NotYet:
    """A mistake as mistakes.md describes it."""
    return NotYet(code, *[paragraph.format(**values) for paragraph in read_mistakes()[code]])


@dataclass
class Ran:
    """One run of a script, as observed and as logged."""

    observed: Observed
    results: Results
    losses: list[float]  # of each log line
    times: list[float]  # when each log line arrived
    weights: dict[str, np.ndarray]


# --- the plan ---


def script_environment() -> dict[str, str]:
    """The same for every script, and set before TensorFlow is loaded."""
    env = alone()
    for name in list(env):
        if name.startswith(("LINE_PROFILE", "MNIST_NPZ")):
            del env[name]
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as 05 does; its README explains why
    python_path = [str(ROOT), *filter(None, [env.get("PYTHONPATH")])]
    return {
        **env,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(python_path),
    }


def make_data(folder: Path) -> None:
    """Small data sets, each made so that one mistake shows.

    one: a single batch, so that the order of images cannot matter.
    few: the same with fewer test images.
    same: one image, repeated.
    grey: images of different greys: the loss of a batch depends on which images are in it.
    """
    with np.load(data.DEFAULT_PATH) as file:
        x, y = file["x_train"][:BATCH], file["y_train"][:BATCH]
        x_test, y_test = file["x_test"][:TEST_IMAGES], file["y_test"][:TEST_IMAGES]
    few = {"x_test": x_test[:FEW], "y_test": y_test[:FEW]}
    same = {"x_train": x[:1].repeat(WATCHED * BATCH, 0), "y_train": y[:1].repeat(WATCHED * BATCH)}
    levels = np.linspace(0, 255, EPOCH * BATCH).astype(np.uint8)
    greys = levels.repeat(28 * 28).reshape(-1, 28, 28)
    np.savez(folder / "one.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    np.savez(folder / "few.npz", x_train=x, y_train=y, **few)
    np.savez(folder / "same.npz", **same, **few)
    np.savez(folder / "grey.npz", x_train=greys, y_train=np.zeros_like(levels), **few)


def plan_run(
    name: str, file: str, steps: int, options: str = "", lr: float = 0.001, dropout: bool = True
) -> Run:
    """The script runs in the folder of its run: file names are relative to that."""
    watched = name != "time"
    batch_size = BATCH if watched else TIMED_BATCH
    argv = ["--steps", str(steps), "--batch-size", str(batch_size), "--lr", str(lr)]
    argv += ["--seed", "1", "--data", file, "--results", f"{name}.results.json", *options.split()]
    return Run(name, argv, steps, file, dropout, watched)


def plan_runs(stage: Stage) -> list[Run]:
    """The runs in which a script is watched, in the order in which they are judged."""
    options = {"step": "", "half": "", "epochs": "", "watch": ""}
    if stage.number in ("04", "05"):
        first, last = WINDOW
        options["step"] = "--xla on"
        options["epochs"] = "--xla off"
        options["watch"] = f"--logdir logs --profile-steps {first} {last}"
    if stage.number == "05":
        options["step"] += " --precision mixed_bfloat16"
        options["half"] = "--precision mixed_float16"
    if stage.number == "06":
        options = dict.fromkeys(options, f"--precision float32 --steps-per-call {CALL}")
    runs = [
        plan_run("step", "one.npz", 1, options["step"], dropout=False),
        plan_run("half", "few.npz", 1, options["half"], dropout=False),
        plan_run("epochs", "grey.npz", 2 * EPOCH, options["epochs"], STILL, dropout=False),
        plan_run("watch", "same.npz", WATCHED, options["watch"], STILL),
    ]
    return [run for run in runs if run.name != "half" or stage.number == "05"]


# --- the run ---


def observe_runs(
    script: Path, folder: Path, runs: list[Run], limit: float
) -> Generator[Ran, None, None]:
    """Each run as soon as it is over; closing this generator ends the process."""
    plan = folder / "plan.json"
    save_record(plan, Plan(str(script), runs))
    command = [sys.executable, "-m", "tfworkshop.exercises.observe", str(plan)]
    env = {**script_environment(), "TMPDIR": str(folder)}
    start = time.monotonic()
    with (
        (folder / "stderr.txt").open("w") as stderr,
        processes.started(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr
        ) as process,
    ):
        assert process.stdout
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            for run in runs:
                if not copy_log(process.stdout, folder / f"{run.name}.log"):
                    timed_out = time.monotonic() - start >= limit
                    errors = (folder / "stderr.txt").read_text(errors="replace")
                    raise explain_end(Finished(process.wait(), "", errors, timed_out), limit)
                yield read_run(run, folder)
        finally:
            timer.cancel()
            process.kill()


def copy_log(stdout: IO[str], log: Path) -> bool:
    """The lines of one run, each with the time when it arrived; whether the run came to its end."""
    with log.open("w") as file:
        for line in stdout:
            if line.startswith(SAVED):
                return True
            file.write(f"{time.monotonic()} {line}")
    return False


def explain_end(finished: Finished, limit: float) -> NotYet:
    """Why a process failed before it could say so itself."""
    if finished.timed_out:
        return mistake("timeout", limit=limit)
    return mistake("died", reason=finished.reason)


def read_run(run: Run, folder: Path) -> Ran:
    observed = read_record(folder / f"{run.name}.json", Observed)
    if observed.traceback:
        ran_out = observed.traceback.endswith("StopIteration")
        code = "batches-ran-out" if ran_out else "exception"
        raise mistake(code, traceback=observed.traceback)
    if observed.status != 0:
        lines = (folder / "stderr.txt").read_text(errors="replace").strip().split("\n")
        raise mistake("exit", status=observed.status, last_line=lines[-1])
    times, losses = [], []
    for line in (folder / f"{run.name}.log").read_text().splitlines():
        if match := LOG_LINE.search(line):
            times.append(float(line.split()[0]))
            losses.append(float(match["loss"]))
    if len(losses) != run.steps:
        raise mistake("log-lines", lines=len(losses), steps=run.steps)
    try:
        results = read_results(folder / f"{run.name}.results.json")
    except Problem as problem:
        raise mistake("results", problem=problem) from None
    weights = {}
    if observed.weight_types:
        with np.load(folder / f"{run.name}.npz") as file:
            weights = dict(file)
    return Ran(observed, results, losses, times, weights)


# --- the workshop's own runs ---


def reference_key(stage: Stage) -> str:
    """Changes with everything that our own runs depend on."""
    sha256 = hashlib.sha256()
    for path in [stage.script, *sorted(Path(__file__).parent.glob("*.py"))]:
        sha256.update(path.read_bytes())
    facts = [platform.node(), data.DEFAULT_PATH.stat().st_size]
    facts.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
    for package in ("tensorflow", "tensorflow-cpu", "keras"):
        facts += [found.version for found in importlib.metadata.distributions(name=package)]
    sha256.update(repr(facts).encode())
    return sha256.hexdigest()[:16]


def reference_runs(stage: Stage, limit: float) -> dict[str, Ran]:
    """The runs of the workshop's own solution to compare with; their files are cached."""
    runs = [run for run in plan_runs(stage) if run.name != "watch"]
    cached = cache_folder() / "check" / f"{stage.name}_{reference_key(stage)}"
    if not cached.is_dir():
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as temporary:
            folder = Path(temporary) / "runs"
            folder.mkdir()
            make_data(folder)
            try:
                collections.deque(observe_runs(stage.script, folder, runs, limit))
            except NotYet as error:
                reason = "\n".join([str(error), *error.details])
                raise Problem(f"{stage.folder} itself does not run here: {reason}") from None
            folder.rename(cached)
    return {run.name: read_run(run, cached) for run in runs}
