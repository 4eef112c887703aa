"""Runs of a script in a process of their own (observe.py), and what came out.

What is wrong with a run whatever the exercise is about is found here.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfworkshop import data, processes
from tfworkshop.exercises.records import Observed, Plan, Run
from tfworkshop.files import cache_folder, read_record, save_record
from tfworkshop.machine import alone
from tfworkshop.problem import Problem
from tfworkshop.processes import Finished
from tfworkshop.results import Results, read_results
from tfworkshop.stages import ROOT, Stage

OUR_LIMIT = 600  # seconds that our own solution may take
BATCH = 16  # of the watched runs: small, to be quick
TIMED_BATCH = 64
STILL = 1e-9  # a learning rate at which no weight changes
WINDOW = (11, 14)  # the steps to profile in the last run: after the warm-up
EPOCH = 4  # steps in an epoch of the grey images
TEST_IMAGES = 100
CALL = 3  # steps in a call, in 06: an epoch of four takes two calls
WATCHED = 16  # steps of the last run


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
    """One run of a script."""

    observed: Observed
    results: Results
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
    return {
        **env,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")]),
    }


def make_data(folder: Path) -> None:
    """Small data sets, each made so that one mistake shows.

    one: a single batch, so that the order of images cannot matter.
    same: one image, repeated.
    grey: images of different greys: the loss of a batch depends on which images are in it.
    """
    with np.load(data.DEFAULT_PATH) as file:
        x, y = file["x_train"][:BATCH], file["y_train"][:BATCH]
        test = {name: file[name][:TEST_IMAGES] for name in ("x_test", "y_test")}
    same = {"x_train": x[:1].repeat(WATCHED * BATCH, 0), "y_train": y[:1].repeat(WATCHED * BATCH)}
    levels = np.linspace(0, 255, EPOCH * BATCH).astype(np.uint8)
    greys = levels.repeat(28 * 28).reshape(-1, 28, 28)
    np.savez(folder / "one.npz", x_train=x, y_train=y, **test)
    np.savez(folder / "same.npz", **same, **test)
    np.savez(folder / "grey.npz", x_train=greys, y_train=np.zeros_like(levels), **test)


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
        plan_run("half", "one.npz", 1, options["half"], dropout=False),
        plan_run("epochs", "grey.npz", 2 * EPOCH, options["epochs"], STILL, dropout=False),
        plan_run("watch", "same.npz", WATCHED, options["watch"], STILL),
    ]
    return [run for run in runs if run.name != "half" or stage.number == "05"]


# --- the run ---


def observe_runs(script: Path, folder: Path, runs: list[Run], limit: float) -> dict[str, Ran]:
    plan = folder / "plan.json"
    save_record(plan, Plan(str(script), runs))
    command = [sys.executable, "-m", "tfworkshop.exercises.observe", str(plan)]
    env = {**script_environment(), "TMPDIR": str(folder)}
    finished = processes.run(command, timeout=limit, cwd=folder, env=env)
    if finished.timed_out or finished.status != 0:
        raise explain_end(finished, limit)
    return read_runs(runs, folder)


def read_runs(runs: list[Run], folder: Path) -> dict[str, Ran]:
    return {run.name: read_run(run, folder) for run in runs}


def explain_end(finished: Finished, limit: float) -> NotYet:
    """Why a process failed before it could say so itself."""
    if finished.timed_out:
        return mistake("timeout", limit=limit)
    return mistake("exit", reason=finished.reason)


def read_run(run: Run, folder: Path) -> Ran:
    observed = read_record(folder / f"{run.name}.json", Observed)
    if observed.traceback:
        raise mistake("exception", traceback=observed.traceback)
    if len(observed.losses) != run.steps:
        raise mistake("log-lines", lines=len(observed.losses), steps=run.steps)
    try:
        results = read_results(folder / f"{run.name}.results.json")
    except Problem as problem:
        raise mistake("results", problem=problem) from None
    weights = {}
    if observed.weight_types:
        with np.load(folder / f"{run.name}.npz") as file:
            weights = dict(file)
    return Ran(observed, results, weights)


# --- the workshop's own runs ---


def reference_key(stage: Stage) -> str:
    """Changes with everything that our own runs depend on."""
    sha256 = hashlib.sha256()
    for path in [stage.script, *sorted(Path(__file__).parent.glob("*.py"))]:
        sha256.update(path.read_bytes())
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    sha256.update(repr([platform.node(), importlib.metadata.version("keras"), gpus]).encode())
    return sha256.hexdigest()[:16]


def reference_runs(stage: Stage) -> dict[str, Ran]:
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
                observe_runs(stage.script, folder, runs, OUR_LIMIT)
            except NotYet as error:
                reason = "\n".join([str(error), *error.details])
                raise Problem(f"{stage.folder} itself does not run here: {reason}") from None
            folder.rename(cached)
    return read_runs(runs, cached)
