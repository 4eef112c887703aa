"""A run of a script in a separate process (observe.py), and its outcome.

Problems of a run that do not depend on the exercise are reported here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import pickle
import platform
import re
import secrets
import signal
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfworkshop import data
from tfworkshop.exercises import watched
from tfworkshop.files import save
from tfworkshop.machine import alone
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT, Stage

BATCH = 16  # of the watched runs: small, to be quick
TIMED_BATCH = 64
STEPS = 6  # of the runs on one batch
STILL = 1e-9  # a learning rate at which no weight changes
WINDOW = (11, 14)  # the steps to profile in the watched run: after the warm-up
EPOCH = 4  # steps in an epoch of the grey images
TEST_IMAGES = 250
FEW = 16  # test images where the accuracy does not matter
CALL = 3  # steps in a call, in 06: an epoch of four takes two calls
PIECE = 16 * BATCH  # images in the data set of the watched run
WATCHED = 16  # steps of that run


class NotYet(Exception):
    """The one thing that is wrong with a script; `details` are lines below it."""

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message)
        self.details = details


@dataclass
class Ran:
    """One run of a script, as observed and as logged."""

    observed: dict
    results: dict
    losses: list[float]
    times: list[float]  # when each log line came in
    weights: dict[str, np.ndarray]


# --- the plan ---


def environment() -> dict[str, str]:
    """The same for every script, and set before TensorFlow loads."""
    env = {k: v for k, v in alone().items() if not k.startswith(("LINE_PROFILE", "MNIST_NPZ"))}
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as 05 does; its README explains why
    path = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    return {**env, "KERAS_BACKEND": "tensorflow", "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}


def make_data(folder: Path) -> dict[str, Path]:
    """one: a single batch, so that its order cannot matter. few: the same, with fewer test images.

    same: one image, repeated. grey: images of different greys, so that a batch's loss depends on
    which images are in it.
    """
    with np.load(data.DEFAULT_PATH) as file:
        x, y = file["x_train"][:BATCH], file["y_train"][:BATCH]
        test = {name: file[name][:TEST_IMAGES] for name in ("x_test", "y_test")}
    few = {name: array[:FEW] for name, array in test.items()}
    paths = {name: folder / f"{name}.npz" for name in ("one", "few", "same", "grey")}
    np.savez(paths["one"], x_train=x, y_train=y, **test)
    np.savez(paths["few"], x_train=x, y_train=y, **few)
    x, y = np.repeat(x[:1], PIECE, axis=0), np.repeat(y[:1], PIECE, axis=0)
    np.savez(paths["same"], x_train=x, y_train=y, **few)
    greys = np.linspace(0, 255, EPOCH * BATCH).astype(np.uint8)
    greys = np.repeat(greys, 28 * 28).reshape(-1, 28, 28)
    np.savez(paths["grey"], x_train=greys, y_train=np.zeros(len(greys), np.uint8), **few)
    return paths


def timed_data(folder: Path) -> Path:
    """All of MNIST to train with, as it is stored; a part of the test images."""
    with np.load(data.DEFAULT_PATH) as file:
        arrays = {n: file[n] if "train" in n else file[n][:TEST_IMAGES] for n in file.files}
    path = folder / "timed.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name, array in arrays.items():  # as NumPy would pack it, but in a fifth of the time
            with packed.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
    return path


def options(stage: Stage, run: str, folder: Path) -> list[str]:
    """Extra options of a run of this exercise; all others keep the script's defaults."""
    if stage.number == "06":
        return ["--precision", "float32", "--steps-per-call", str(CALL)]
    off = ["--xla", "off"]
    switches = {"step": ["--xla", "on"], "steps": off, "undropped": off}
    switches["watch"] = ["--logdir", str(folder / "logs"), "--profile-steps", *map(str, WINDOW)]
    kinds = {"step": ["--precision", "mixed_bfloat16"], "few": ["--precision", "mixed_float16"]}
    words = switches.get(run, []) if stage.number >= "04" else []
    return words + (kinds.get(run, []) if stage.number == "05" else [])


def plan_run(
    name: str, folder: Path, file: Path, steps: int, lr: float, dropout: bool, extra: list[str]
) -> dict:
    batch = TIMED_BATCH if name == "time" else BATCH
    argv = ["--steps", str(steps), "--batch-size", str(batch), "--lr", str(lr), "--seed", "1"]
    argv += ["--data", str(file), "--results", str(folder / f"{name}.results"), *extra]
    return {
        "name": name,
        "argv": argv,
        "steps": steps,
        "dropout": dropout,
        "data": str(file),
        "observe": name != "time",
    }


def plan_runs(stage: Stage, folder: Path, files: dict[str, Path], ours: bool) -> list[dict]:
    """The runs in which a script is watched, in the order in which they are judged."""
    runs = [
        ("step", "one", 1, 0.001, False),
        ("steps", "one", STEPS, 0.001, True),
        ("undropped", "one", STEPS, 0.001, False),
        ("epochs", "grey", 2 * EPOCH, STILL, False),
        ("watch", "same", WATCHED, STILL, True),
    ]
    if stage.number == "05":
        runs.insert(1, ("few", "few", 1, 0.001, False))
    return [
        plan_run(name, folder, files[source], *how, options(stage, name, folder))
        for name, source, *how in runs
        if name != ("watch" if ours else "undropped")
    ]


# --- the run ---


def probe(script: Path, folder: Path, runs: list[dict], limit: float) -> Iterator[Ran]:
    """Each run's outcome as soon as it is there; NotYet if a basic requirement is not met."""
    cwd, temporary = folder / "cwd", folder / "tmp"  # for files that the script may write
    cwd.mkdir(parents=True)
    temporary.mkdir()  # AutoGraph's are removed at an end that observe.py does not come to
    env = {**environment(), "TMPDIR": str(temporary)}
    mark = f"##{secrets.token_hex(8)}"
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"script": str(script), "mark": mark, "runs": runs}))
    command = [sys.executable, "-m", "tfworkshop.exercises.observe", str(plan)]
    left = list(runs)
    with contextlib.closing(watched.follow(command, cwd, env, limit)) as story:
        for ended in story:
            if not left:
                return  # this also ends whatever the script left running
            kept = f"{mark} kept {left[0]['name']}"
            if any(text == kept for _, text in ended.lines):
                yield read_run(left.pop(0), folder, ended, mark, limit)
    for run in left:
        yield read_run(run, folder, ended, mark, limit)


def read_run(run: dict, folder: Path, ended: watched.Ended, mark: str, limit: float) -> Ran:
    try:
        observed = json.loads((folder / f"{run['name']}.json").read_text())
    except (OSError, ValueError):
        raise died(ended, limit) from None
    if "error" in observed:
        error = observed["error"]
        place = f"line {error['line']}: {error['text']}" if error["line"] else "outside your file"
        why = [RAN_OUT] if error["type"] == "StopIteration" else []
        raise NotYet(f"It stops with {error['type']}: {error['message']}", place, *why)
    if observed["status"] != 0:
        status = observed["status"]
        raise NotYet(f"It ends with exit status {status}.", observed.get("said") or "")
    lines = of_run(ended.lines, mark, run["name"])
    logged = [(at, found) for at, text in lines if (found := LOG_LINE.search(text))]
    results = read_results(folder / f"{run['name']}.results", trained=bool(logged))
    if len(logged) != run["steps"]:
        raise NotYet(
            f"It logs {len(logged)} lines for {run['steps']} steps: call log_step() once for "
            "each step."
        )
    weights = {}
    with contextlib.suppress(OSError, ValueError), np.load(folder / f"{run['name']}.npz") as file:
        weights = dict(file)
    losses = [float(found["loss"]) for _, found in logged]
    return Ran(observed, results, losses, [at for at, _ in logged], weights)


RAN_OUT = "The batches ran out. Training continues after an epoch: create new ones, or repeat()."
NO_NUMBER = "A loss is still a tensor: float() turns it into a number, and waits for the device."

LOG_LINE = re.compile(
    r"INFO - \(\d+, \d+\), Loss: (?P<loss>\d+\.\d+), step_time: \S+, throughput: \S+ img/s"
)


def of_run(lines: list[tuple[float, str]], mark: str, name: str) -> list[tuple[float, str]]:
    """The lines between a run's two marks."""
    found, inside = [], False
    for at, text in lines:
        if text.startswith(mark):
            inside = text == f"{mark} {name}"
        elif inside:
            found.append((at, text))
    return found


def died(ended: watched.Ended, limit: float) -> NotYet:
    """Why a script's process ended before the script did."""
    if ended.timed_out:
        return NotYet(f"It did not end within {limit:.0f} s: is there an endless loop?")
    if ended.flooded:
        return NotYet(f"It printed more than {watched.MOST_OUTPUT // 10**6} MB and was stopped.")
    if ended.status < 0:
        return NotYet(f"Its process was killed by {signal.Signals(-ended.status).name}.")
    errors = [line for line in ended.errors.splitlines() if line.strip()]
    if "exercises/observe.py" in ended.errors and "Traceback" in ended.errors:
        raise Problem(f"the check could not examine your script: {errors[-1][:200]}")
    return NotYet(
        f"Its process ended by itself, with status {ended.status}, before main() finished.",
        "Something in it ends the process immediately: os._exit(), for instance.",
    )


def read_results(path: Path, trained: bool) -> dict:
    leave = "summarize() writes them; leave it as it was."
    if path.is_dir():
        raise NotYet("It creates a folder where --results names a file.", leave)
    try:
        results = json.loads(path.read_text())
    except OSError:
        if not trained:
            raise NotYet("It ends before it trains: no log line, no results.") from None
        raise NotYet("It trains, but there is no results file at the end.", leave) from None
    except ValueError as error:
        kind = "text" if isinstance(error, UnicodeError) else "JSON"
        raise NotYet(f"Its results file is not {kind}.", leave) from None
    wanted = {"final_loss", "test_accuracy", "img_per_s", "steps_timed", "warmup_steps"}
    missing = sorted(wanted - set(results)) if isinstance(results, dict) else ["all"]
    if missing:
        raise NotYet(f"Its results lack {', '.join(missing)}.", leave)
    for name in ("final_loss", "test_accuracy"):
        value = results[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            why = NO_NUMBER if "tf.Tensor" in str(value) else leave
            raise NotYet(f"Its results say {name}: {value}. That is not a number.", why)
        if not math.isfinite(value):
            raise NotYet(f"Its {name} is {value}.")
    for name in ("steps_timed", "warmup_steps"):
        if not isinstance(results[name], int):
            raise NotYet(f"Its results say {name}: {results[name]}. That is not a count.", leave)
    speed = results["img_per_s"]  # None where a run was too short
    if speed is not None and not (isinstance(speed, (int, float)) and math.isfinite(speed)):
        raise NotYet(f"Its results say img_per_s: {speed}. That is not a speed.", leave)
    return results


# --- the workshop's own run ---


def tensorflow_version() -> str:
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def right_runs(stage: Stage, files: dict[str, Path], folder: Path, limit: float) -> dict[str, Ran]:
    """The same runs of the workshop's own solution; cached, because they never change."""
    ours = [ROOT / f"tfworkshop/exercises/{name}.py" for name in ("cnn", "observe", "trial")]
    parts: list[object] = [path.read_bytes() for path in (stage.script, *ours, *files.values())]
    parts += [stage.number, tensorflow_version(), platform.node()]
    parts += [os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("WORKSHOP_CACHE") or ROOT / ".cache") / "check"
    kept = cache / f"{stage.number}_{key}.pickle"
    with contextlib.suppress(Exception):  # missing, or cut short
        return pickle.loads(kept.read_bytes())
    runs = plan_runs(stage, folder, files, ours=True)
    names = [run["name"] for run in runs]
    try:
        ran = dict(zip(names, probe(stage.script, folder, runs, limit)))
    except NotYet as error:
        raise Problem(f"{stage.folder} itself does not run here: {error}") from None
    with contextlib.suppress(OSError, Problem):  # a read-only folder: the next check runs it again
        kept.parent.mkdir(parents=True, exist_ok=True)
        save(kept, lambda part: part.write_bytes(pickle.dumps(ran)))
    return ran
