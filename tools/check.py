"""`./workshop check N`: is the attendee's script right, did it do the thing, is it faster?

The script runs in processes of its own, see tools/probe.py; here its deeds are judged, in the order
in which a teacher would look. The first thing that is wrong ends the check.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools import data, launch, watched
from tools.cnn import SHAPES, first_weights, shape_key
from tools.exercise import digest, previous, script_of, shown
from tools.stages import ROOT, STAGES, Stage
from tools.table import number, ratio, save

BATCH = 64
STEPS = 6  # of the runs on one batch
WATCHED = {"06": 24}  # steps of the run in which a script is watched
WATCHED_STEPS = 12
WINDOW = (5, 9)  # of those, the steps to profile
TEST_IMAGES = 1000
PIECE = 16 * BATCH  # images in the data set of the watched run
MUST_BE_FASTER = ("01", "02", "06")
RIGHT = "right, not timed"


@dataclass(frozen=True)
class Tolerance:
    """How far a right solution may be off; chosen from what the stages themselves differ by."""

    loss: float  # relative
    update: float  # |update - right one| / |right one|, for each tensor
    accuracy: float


# Adam's first step is the sign of the gradient: where that is almost 0, rounding turns it round.
# Measured on a CPU: float32 stages differ by 0.00002, float16 by 0.12, bfloat16 by 0.32.
FLOAT32 = Tolerance(loss=1e-4, update=0.01, accuracy=0.003)
TENSOR_FLOAT = Tolerance(loss=2e-3, update=0.3, accuracy=0.01)  # an A100 rounds to float16's digits
MIXED = Tolerance(loss=0.02, update=0.5, accuracy=0.03)
SAME_PATH = 0.1  # training with dropout must end farther than this from training without
CLOCK = 1.3  # a claimed speed may be this much above the wall clock's
ACCURACY_LOSS = 0.1  # after so few steps accuracy is noisy


class NotYet(Exception):
    """The one thing that is wrong; `details` are lines below it."""

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message)
        self.details = details


class CannotCheck(Exception):
    """Not the attendee's fault."""


@dataclass
class Ran:
    """One run of a script, as the probe and the log tell it."""

    told: dict
    results: dict
    losses: list[float]
    times: list[float]  # when each log line came in
    weights: dict[str, np.ndarray] = field(default_factory=dict)


# --- running ---


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="workshop_check_"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """For every script the same, and set before TensorFlow loads."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LINE_PROFILE", "MNIST_NPZ"))}
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    env.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # as 05 does, and why is said there
    path = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    return {**env, "KERAS_BACKEND": "tensorflow", "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}


def make_data(folder: Path) -> dict[str, Path]:
    """one: a single batch, so that its order cannot matter. same: one image, many times over."""
    with np.load(data.DEFAULT_PATH) as file:
        x, y = file["x_train"][:BATCH], file["y_train"][:BATCH]
        test = {"x_test": file["x_test"][:TEST_IMAGES], "y_test": file["y_test"][:TEST_IMAGES]}
    paths = {name: folder / f"{name}.npz" for name in ("one", "same")}
    np.savez(paths["one"], x_train=x, y_train=y, **test)
    x, y = np.repeat(x[:1], PIECE, axis=0), np.repeat(y[:1], PIECE, axis=0)
    np.savez(paths["same"], x_train=x, y_train=y, **test)
    return paths


def options(stage: Stage, folder: Path, run: str, profiles: bool) -> list[str]:
    """What a run of this exercise asks for on top; 06 keeps 05's command line."""
    words = []
    if profiles:
        # A step must be recorded; the first is none of those that are timed or compared.
        window = WINDOW if run == "watch" and stage.number in ("04", "05") else (0, 0)
        words += ["--logdir", str(folder / f"logs_{run}"), "--profile-steps", *map(str, window)]
    if stage.number == "06" and run != "time":
        words += ["--precision", "float32"]
    return words


def plan_run(
    name: str, folder: Path, file: Path, steps: int, lr: float, dropout: bool, extra: list[str]
) -> dict:
    argv = ["--steps", str(steps), "--batch-size", str(BATCH), "--lr", str(lr), "--seed", "1"]
    argv += ["--data", str(file), "--results", str(folder / f"{name}.results"), *extra]
    watch = name == "watch" and "--logdir" in extra
    return {
        "name": name,
        "argv": argv,
        "steps": steps,
        "dropout": dropout,
        "data": str(file),
        "test_images": 0 if name in ("steps", "watch") else TEST_IMAGES,
        "observe": name != "time",
        "markers": str(folder / "logs_watch") if watch else None,
    }


def probe(script: Path, folder: Path, runs: list[dict], limit: float) -> Iterator[Ran]:
    """Each run's outcome as soon as it is there; NotYet for one that did not do what all do."""
    (folder / "cwd").mkdir(parents=True)  # what the script drops is dropped there
    mark = f"##{secrets.token_hex(8)}"
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"script": str(script), "mark": mark, "runs": runs}))
    command = [sys.executable, "-m", "tools.probe", str(plan)]
    left = list(runs)
    with contextlib.closing(watched.follow(command, folder / "cwd", environment(), limit)) as story:
        for ended in story:
            if not left:
                return  # whatever the script left running ends with this
            name = left[0]["name"]
            through = any(text == f"{mark} end of {name}" for _, text in ended.lines)
            if through and (folder / f"{name}.json").exists():
                yield read_run(left.pop(0), folder, ended, mark, limit)
    for run in left:
        yield read_run(run, folder, ended, mark, limit)


def read_run(run: dict, folder: Path, ended: watched.Ended, mark: str, limit: float) -> Ran:
    try:
        told = json.loads((folder / f"{run['name']}.json").read_text())
    except (OSError, ValueError):
        raise died(ended, limit) from None
    if "error" in told:
        error = told["error"]
        place = f"line {error['line']}: {error['text']}" if error["line"] else "outside your file"
        raise NotYet(f"It stops with {error['type']}: {error['message']}", place)
    if told["status"] != 0:
        raise NotYet(f"It ends with exit status {told['status']}.", told.get("said") or "")
    lines = of_run(ended.lines, mark, run["name"])
    logged = [(at, found) for at, text in lines if (found := LOG_LINE.search(text))]
    results = read_results(folder / f"{run['name']}.results", trained=bool(logged))
    if len(logged) != run["steps"]:
        raise NotYet(
            f"It logs {len(logged)} lines for {run['steps']} steps: log_step() logs one a step, "
            "let it be called for each."
        )
    weights = {}
    with contextlib.suppress(OSError, ValueError), np.load(folder / f"{run['name']}.npz") as file:
        weights = dict(file)
    losses = [float(found["loss"]) for _, found in logged]
    return Ran(told, results, losses, [at for at, _ in logged], weights)


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
    """Why a script's process is gone before the script was through."""
    if ended.timed_out:
        return NotYet(f"It did not end within {limit:.0f} s: is there an endless loop?")
    if ended.flooded:
        return NotYet(f"It printed more than {watched.MOST_OUTPUT // 10**6} MB and was stopped.")
    if ended.status < 0:
        return NotYet(f"Its process was killed by {signal.Signals(-ended.status).name}.")
    errors = [line for line in ended.errors.splitlines() if line.strip()]
    if "tools/probe.py" in ended.errors and "Traceback" in ended.errors:
        raise CannotCheck(f"the check could not look at your script: {errors[-1][:200]}")
    return NotYet(
        f"Its process ended by itself, with status {ended.status}, before main() was through.",
        "Something in it ends the process at once: os._exit(), for instance.",
    )


def read_results(path: Path, trained: bool) -> dict:
    leave = "summarize() writes them; leave it as it was."
    if path.is_dir():
        raise NotYet("It makes a folder where --results names a file.", leave)
    try:
        text = path.read_text()
    except OSError:
        if not trained:
            raise NotYet("It ends before it trains: no log line, no results.") from None
        raise NotYet("It trains, but there is no results file at the end.", leave) from None
    except ValueError:
        raise NotYet("Its results file is not text.", leave) from None
    try:
        results = json.loads(text)
        wanted = {"final_loss", "test_accuracy", "img_per_s", "steps_timed", "warmup_steps"}
        missing = sorted(wanted - set(results)) if isinstance(results, dict) else ["all"]
    except ValueError:
        raise NotYet("Its results file is not JSON.", leave) from None
    if missing:
        raise NotYet(f"Its results lack {', '.join(missing)}.", leave)
    for name in ("final_loss", "test_accuracy"):
        value = results[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise NotYet(f"Its results say {name}: {value}. That is no number.", leave)
        if not math.isfinite(value):
            raise NotYet(f"Its {name} is {value}.")
    for name in ("steps_timed", "warmup_steps"):
        if not isinstance(results[name], int):
            raise NotYet(f"Its results say {name}: {results[name]}. That is no count.", leave)
    speed = results["img_per_s"]  # None where a run was too short
    if speed is not None and not (isinstance(speed, (int, float)) and math.isfinite(speed)):
        raise NotYet(f"Its results say img_per_s: {speed}. That is no speed.", leave)
    return results


# --- 1: it runs ---


def check_source(file: Path) -> None:
    """What can be told without running it."""
    try:
        compile(file.read_bytes(), str(file), "exec")
    except SyntaxError as error:
        line = (error.text or "").strip()
        if error.lineno is None:
            raise NotYet(f"Python cannot read it: {error.msg}") from None
        raise NotYet(f"Syntax error in line {error.lineno}: {error.msg}", line) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise NotYet(f"Python cannot read it: {error}") from None


# --- 2: it trains the same model ---


def cache_folder() -> Path:
    return Path(os.environ.get("WORKSHOP_CACHE") or ROOT / ".cache") / "check"


def tensorflow_version() -> str:
    for name in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def right_step(stage: Stage, files: dict[str, Path], folder: Path, limit: float) -> dict[str, Ran]:
    """The same runs of the workshop's own script; kept, for it is the same each time."""
    own = stage if stage.number == "05" else previous(stage)  # 05's arithmetic is its own
    parts = [own.script.read_bytes(), (ROOT / "tools/probe.py").read_bytes()]
    parts += [path.read_bytes() for path in files.values()]
    parts += [f"{stage.number} {tensorflow_version()} {platform.node()}".encode()]
    parts += [os.environ.get("CUDA_VISIBLE_DEVICES", "").encode()]
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    kept = cache_folder() / f"{stage.number}_{key[:16]}.npz"
    with contextlib.suppress(OSError, ValueError, KeyError), np.load(kept) as file:
        story = json.loads(str(file["story"]))
        return {
            name: Ran(
                told,
                results,
                losses,
                [],
                {k[len(name) + 1 :]: file[k] for k in file if k.startswith(f"{name}/")},
            )
            for name, (told, results, losses) in story.items()
        }
    extra = {name: options(stage, folder, name, own.profiles) for name in ("step", "steps")}
    runs = [
        plan_run("step", folder, files["one"], 1, 0.001, False, extra["step"]),
        plan_run("steps", folder, files["one"], STEPS, 0.001, False, extra["steps"]),
    ]
    try:
        ran = dict(zip(("step", "steps"), probe(own.script, folder, runs, limit)))
    except NotYet as error:
        raise CannotCheck(f"{own.folder} itself does not run here: {error}") from None
    arrays = {f"{n}/{key}": value for n, run in ran.items() for key, value in run.weights.items()}
    story = json.dumps({name: (run.told, run.results, run.losses) for name, run in ran.items()})
    with contextlib.suppress(OSError):  # a read-only folder: next time it is run again
        kept.parent.mkdir(parents=True, exist_ok=True)

        def write(part: Path) -> None:
            with part.open("wb") as target:
                np.savez(target, story=np.array(story), **arrays)

        save(kept, write)
    return ran


def updates(ran: Ran) -> dict[str, np.ndarray]:
    """How far each tensor went from where all start."""
    return {
        shape_key(shape): ran.weights[shape_key(shape)] - first_weights(shape) for shape in SHAPES
    }


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |b|."""
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


def how_wrong(name: str, mine: np.ndarray, right: np.ndarray) -> str:
    length, wanted = np.linalg.norm(mine), np.linalg.norm(right)
    if not length:
        return f"{name} did not move"
    along = float(np.vdot(mine, right) / (length * wanted))
    if along > 0.95:
        return f"{name} moved {length / wanted:.2f}x as far as it should"
    if along < -0.95:
        return f"{name} moved {length / wanted:.2f}x as far as it should, and backwards"
    off = distance(mine, right)
    return f"{name} moved another way: its update is {100 * off:.0f} % off"


def judge_model(ran: Ran) -> None:
    if not ran.told["trained"]:
        sizes = ", ".join(map(shape_key, SHAPES))
        raise NotYet(
            "No Keras model with the CNN's eight weights was trained.",
            f"Their shapes are {sizes}. Leave MNISTClassifier's layers as they are.",
        )
    if ran.told["weight_types"] != ["float32"]:
        kinds = " and ".join(ran.told["weight_types"])
        raise NotYet(f"Weights are kept as {kinds}: they must stay float32.")


def judge_step(mine: Ran, right: Ran, within: Tolerance) -> str:
    """One step on the same batch, from the same weights, nothing dropped."""
    loss, wanted = mine.results["final_loss"], right.results["final_loss"]
    if abs(loss - wanted) > within.loss * abs(wanted):
        raise NotYet(f"The first step's loss is {loss:.4f}; on that batch it is {wanted:.4f}.")
    if abs(mine.losses[0] - loss) > 0.002 + within.loss * abs(loss):
        raise NotYet(f"It logs the loss {mine.losses[0]}, but its results say {loss:.4f}.")
    moved, due, names = updates(mine), updates(right), right.told["names"]
    off = {key: distance(moved[key], due[key]) for key in due}
    wrong = [key for key in due if not off[key] <= within.update]
    if wrong:
        told = [how_wrong(names[key], moved[key], due[key]) for key in wrong]
        worst = wrong.index(max(wrong, key=lambda key: off[key]))
        rest = [text for i, text in enumerate(told) if i != worst]
        raise NotYet(f"After one step {told[worst]}.", *rest)
    return (
        f"loss {loss:.4f}, all 8 tensors moved as they should (to {100 * max(off.values()):.1f} %)"
    )


def judge_count(ran: Ran, steps: int) -> None:
    """A fake trains less; an optimizer that is not Keras's keeps no count to look at."""
    made = ran.told["iterations"]
    if made is not None and made != steps:
        raise NotYet(f"Asked for {steps} steps, the optimizer made {made} updates.")


def judge_steps(mine: Ran, right: Ran, least: float) -> None:
    """Several steps: not so exactly, but all of them."""
    judge_count(mine, STEPS)
    moved, due = updates(mine), updates(right)
    far = math.sqrt(sum(float(np.sum(d**2)) for d in moved.values()))
    far /= math.sqrt(sum(float(np.sum(d**2)) for d in due.values()))
    if not least < far < 1.3:  # with a rate that falls, as 06's own, it is 0.6
        raise NotYet(
            f"In {STEPS} steps the weights moved {far:.2f}x as far as they should: is every step "
            "trained, once, with the rate --lr?"
        )


def judge_accuracy(ran: Ran, within: Tolerance, why: str) -> None:
    said, found = ran.results["test_accuracy"], ran.told["accuracy"]
    if abs(said - found) > within.accuracy:
        raise NotYet(
            f"It reports a test accuracy of {100 * said:.1f} %; its weights reach "
            f"{100 * found:.1f} %{why}."
        )


def judge_dropout(alive: Ran, off: Ran, right: Ran) -> None:
    rates, wanted = alive.told["rates"], right.told["rates"]
    if rates and rates != wanted:
        told = [" and ".join(f"{rate:g}" for rate in some) for some in (rates, wanted)]
        raise NotYet(f"The dropout rates are {told[0]}; they should be {told[1]}.")
    moved, without = updates(alive), updates(off)
    if max(distance(moved[key], without[key]) for key in moved) < SAME_PATH:
        raise NotYet(
            "Dropout is lost: training goes the same way with it as without it.",
            "The model must be called with training=True in the training step.",
        )


def judge_draws(ran: Ran) -> None:
    if len(set(ran.losses)) == 1:
        raise NotYet(
            "Dropout drops the same values at every step: on one batch, with a learning rate of "
            "almost 0, all losses are the same."
        )


# --- 3: it did the thing ---


def judge_reads(ran: Ran, one: Ran, steps: int) -> str:
    """Files and arrays: one step reads as much as many do."""
    opens, reads = ran.told["opens"], ran.told["reads"]
    if opens > one.told["opens"] + 2:
        raise NotYet(f"In {steps} steps the data file was opened {opens} times.")
    if reads > one.told["reads"] + 8:
        raise NotYet(f"In {steps} steps {reads} arrays were read from the data file.")
    return f"the data file was opened {opens} times in {steps} steps, not {steps + 2}"


def judge_graph(ran: Ran, steps: int) -> str:
    found = ran.told["graphs"]
    if not found:
        raise NotYet(
            "No graph ran: the training step is still eager.",
            "The function that the loop calls must be a tf.function.",
        )
    whole = [graph for graph in found if graph["backward"] and graph["updates"] >= len(SHAPES)]
    if not whole:
        if any(graph["forward"] and graph["backward"] for graph in found):
            raise NotYet(
                "The graph holds the gradients, but not the update of the weights: that is still "
                "done one operation at a time."
            )
        raise NotYet(
            "The graph holds the forward pass only: gradients and updates are still outside of it."
        )
    traced = collections.Counter(graph["name"] for graph in whole)
    name, times = traced.most_common(1)[0]
    if times > 2:  # two: some make their variables in the first
        raise NotYet(
            f"{name} was traced {times} times in {steps} steps: something that is new each time is "
            "passed as a Python value, or the tf.function is made anew."
        )
    calls = sum(graph["calls"] for graph in whole)
    if calls > steps:
        raise NotYet(f"The training graph ran {calls} times for {steps} steps.")
    once = "once" if times == 1 else "twice"
    ran_so = f"{name} was traced {once} and ran {calls} times for {steps} steps"
    return f"{ran_so}; gradients and updates are in it"


def judge_xla(ran: Ran) -> str:
    if not any(graph["backward_xla"] for graph in ran.told["graphs"]):
        raise NotYet(
            "No convolution's gradient was compiled by XLA.",
            "The function around the gradients needs jit_compile=True, and must be the one used.",
        )
    return "forward pass and gradients ran as one XLA program"


def judge_profile(ran: Ran, steps: int) -> str:
    found, (first, last) = ran.told["markers"] or {}, WINDOW
    asked = f"--profile-steps {first} {last}"
    if "unreadable" in found:
        raise NotYet(f"There is no profile to read: {found['unreadable']}")
    marked = found["steps"]
    if not marked:
        raise NotYet(
            "The profile has no step markers.",
            "Each step goes into tf.profiler.experimental.Trace, with step_num and _r=1.",
        )
    if marked != list(range(first, last + 1)):
        told = ", ".join(map(str, marked[:12])) + (", ..." if len(marked) > 12 else "")
        raise NotYet(f"Asked for {asked}, the profile has markers of steps {told}.")
    if ran.told["fetches"] and not ran.told["fetches_in_marker"]:
        raise NotYet("The batch is fetched outside the step marker: its time is in no step.")
    counted = ran.results["steps_timed"] + ran.results["warmup_steps"]
    most = steps - (last - first + 1)
    if counted > most:
        raise NotYet(
            f"{counted} steps of {steps} count for the throughput; {asked} leaves {most}: "
            "recorded steps are slower, and must not count."
        )
    return f"a readable profile with markers of steps {first} to {last}, which are not timed"


def judge_precision(ran: Ran) -> str:
    graphs = [graph for graph in ran.told["graphs"] if graph["backward"]]
    kinds = sorted({kind for graph in graphs for kind in graph["conv_types"]})
    half = [kind for kind in kinds if kind in ("float16", "bfloat16")]
    if not half:
        raise NotYet(f"The convolutions of the training step ran in {' and '.join(kinds)}.")
    if kinds != half:
        raise NotYet(f"Some convolutions of the training step ran in float32, some in {half[0]}.")
    losses = {kind for graph in graphs for kind in graph["loss_types"]}
    losses.add(ran.told.get("logits", "float32"))  # TensorFlow casts them, when the digits are lost
    if losses != {"float32"}:
        kind = sorted(losses - {"float32"})[0]
        raise NotYet(
            f"The logits are {kind}: a softmax needs float32, so the last layer must give it."
        )
    if "float16" in half and not ran.told["loss_scaling"]:
        raise NotYet("float16 without loss scaling: small gradients become 0.")
    if half == ["bfloat16"] and ran.told["loss_scaling"]:
        raise NotYet("bfloat16 has float32's range and needs no loss scaling: leave it out there.")
    return f"convolutions ran in {half[0]}; weights and loss are float32"


def judge_loop(ran: Ran, steps: int) -> str:
    whole = [graph for graph in ran.told["graphs"] if graph["backward"]]
    calls = sum(graph["calls"] for graph in whole)
    if 2 * calls > steps:
        raise NotYet(f"Python made {calls} calls for {steps} steps: a call should do several.")
    if any(graph["iterator"] for graph in whole):
        raise NotYet("The steps take their batches from a tf.data iterator, which is on the host.")
    fed = sum(graph["fed"] for graph in whole)
    if fed > steps * BATCH * 28 * 28 // 2:
        raise NotYet(
            f"{fed / 1e6:.1f} MB came from the host in {calls} calls: the data should be on the "
            "device already, and only indices change."
        )
    return f"{calls} calls for {steps} steps, and no images from the host"


# --- 4: is it faster? ---


@dataclass
class Entry:
    """One of the scripts that are timed in turns."""

    name: str
    script: Path
    profiles: bool
    speeds: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return statistics.median(self.speeds)


def timed_steps(stage: Stage, gpu: bool) -> int:
    """Enough for a clear answer, few enough for a short wait."""
    if stage.number == "01":
        return 30  # the baseline's take long on any device
    return 600 if gpu else 40  # under 50 steps 06 does not stop to choose


def wall_speed(times: list[float], warmup: int = 10) -> float:
    """Images a second from when the lines came in, whatever they say.

    A call of several steps logs in bursts. So the clock starts at a line with a pause after it:
    there, what was logged is done and what follows has not begun.
    """
    last = len(times) - 1
    first = min(warmup, last) - 1
    starts = range(max(first, 0), max(first + 1, len(times) // 2))
    start = max(starts, key=lambda i: times[i + 1] - times[i])
    return BATCH * (last - start) / max(times[last] - times[start], 1e-9)


def time_once(entry: Entry, stage: Stage, folder: Path, steps: int, limit: float) -> None:
    extra = options(stage, folder, "time", entry.profiles)
    run = plan_run("time", folder, Path(data.DEFAULT_PATH), steps, 0.001, True, extra)
    (ran,) = probe(entry.script, folder, [run], limit)
    judge_model(ran)
    judge_count(ran, steps)
    entry.speeds.append(wall_speed(ran.times))
    entry.claims.append(ran.results["img_per_s"] or 0.0)
    entry.accuracies.append(ran.told["accuracy"])


def verdict(mine: Entry, before: Entry) -> str:
    """faster, slower or unclear: only what no repeat contradicts."""
    if min(mine.speeds) > max(before.speeds):
        return "faster"
    return "slower" if max(mine.speeds) < min(before.speeds) else "unclear"


def judge_clock(mine: Entry) -> None:
    over = min(claim / speed for claim, speed in zip(mine.claims, mine.speeds))
    if over > CLOCK:
        raise NotYet(
            f"Your clock does not wait for the device: it says {number(max(mine.claims))} img/s, "
            f"the wall clock {number(mine.speed)}.",
            "See 02's README: a clock that does not wait.",
        )
    if over < 1 / 3:
        raise NotYet(
            "Its log lines come in one burst, so that the wall clock has nothing to time.",
            "Log after each call, and let a call be 10 steps.",
        )


def judge_learning(mine: Entry, before: Entry) -> None:
    if max(mine.accuracies) < min(before.accuracies) - ACCURACY_LOSS:
        raise NotYet(
            f"It learns less: {100 * max(mine.accuracies):.1f} % of the test images, against "
            f"{100 * min(before.accuracies):.1f} % after as many steps of {before.name}."
        )


# --- the whole ---


@dataclass
class Outcome:
    step: str = "It runs"  # what is being looked at
    passed: bool = False
    status: str = "begun"
    problem: str = ""
    speeds: dict[str, float] = field(default_factory=dict)


class Screen:
    """A line for each thing that was looked at."""

    def __init__(self) -> None:
        self.console: Console = launch.console()
        self.console.width = min(self.console.width, 100)
        fine = (self.console.encoding or "").lower().startswith("utf")
        self.tick, self.cross = ("✓", "✗") if fine else ("+", "x")

    def doing(self, what: str) -> contextlib.AbstractContextManager:
        if self.console.is_terminal:
            return self.console.status(what)
        return contextlib.nullcontext()

    def good(self, what: str, how: str = "") -> None:
        self.line(self.tick, "green", what, how)

    def bad(self, what: str) -> None:
        self.line(self.cross, "red", what, "no")

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style=style))

    def line(self, mark: str, style: str, what: str, how: str) -> None:
        grid = Table.grid(padding=(0, 1))
        for width in (1, 24, None):
            grid.add_column(width=width)
        grid.add_row(Text(mark, style=style), Text(what, style="bold"), Text(how))
        self.console.print(grid)


def run(stage: Stage, quick: bool, repeats: int, limit: float) -> int:
    screen, file = Screen(), script_of(stage)
    if not file.is_file():
        told = f"no {shown(file)} yet. Type: ./workshop exercise {stage.number}"
        print(f"workshop: {told}", file=sys.stderr)
        return 1
    outcome, problem = Outcome(), None
    try:
        data.ensure(say=lambda line: None)
        sha = digest(file)
        with scratch() as folder:
            copies = folder / stage.number  # what is judged is what was there at first
            copies.mkdir()
            for source in [*file.parent.glob("*.py"), file]:
                shutil.copyfile(source, copies / source.name)
            judge(stage, copies / file.name, folder, quick, repeats, limit, screen, outcome)
    except NotYet as found:
        problem = found
        outcome.problem = str(problem)
        screen.bad(outcome.step)
    except (CannotCheck, data.DataError) as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 1
    except Exception as error:  # an attendee's script must not show us up
        told = f"the check itself failed, {type(error).__name__}: {error}"
        print(f"workshop: {told}", file=sys.stderr)
        return 1
    keep(file, sha, outcome)
    screen.say("")
    if problem:
        screen.say(f"Not yet: {problem}", "bold")
        for detail in filter(None, problem.details):
            screen.say(f"    {detail}")
        screen.say(f"A hint: ./workshop check {stage.number} --hint")
        return 1
    if outcome.status == RIGHT:
        told = f"Exercise {stage.number} is right. Is it faster? ./workshop check {stage.number}"
        screen.say(told, "bold green")
    else:
        screen.say(f"Exercise {stage.number} passed.{following(stage)}", "bold green")
    return 0


def following(stage: Stage) -> str:
    later = STAGES[STAGES.index(stage) + 1 :]
    return f" Next: ./workshop exercise {later[0].number}" if later else " That was the last one."


def judge(
    stage: Stage,
    script: Path,
    folder: Path,
    quick: bool,
    repeats: int,
    limit: float,
    screen: Screen,
    outcome: Outcome,
) -> None:
    """The checks in their order; NotYet at the first that fails."""
    check_source(script)
    files = make_data(folder)
    with screen.doing("running the workshop's own step"):
        right = right_step(stage, files, folder / "right", limit)
    place, steps = folder / "mine", WATCHED.get(stage.number, WATCHED_STEPS)
    profiles = stage.number >= "04"
    runs = [
        plan_run(
            name, place, files[source], count, lr, dropout, options(stage, place, name, profiles)
        )
        for name, source, count, lr, dropout in (
            ("step", "one", 1, 0.001, False),
            ("steps", "one", STEPS, 0.001, False),
            ("dropout", "one", STEPS, 0.001, True),
            ("watch", "same", steps, 1e-9, True),
        )
    ]
    with (
        screen.doing("running yours, watched"),
        contextlib.closing(probe(script, place, runs, limit)) as found,
    ):
        one = next(found)
        screen.good(outcome.step, "a log line a step, and results")
        outcome.step = "It trains the same model"
        gpu = one.told["gpu"]
        within = MIXED if stage.number == "05" else TENSOR_FLOAT if gpu else FLOAT32
        judge_model(one)
        how = judge_step(one, right["step"], within)
        judge_accuracy(one, within, "")
        off = next(found)
        judge_model(off)
        judge_steps(off, right["steps"], 0.5 if stage.number == "06" else 0.8)
        alive = next(found)
        judge_model(alive)
        judge_dropout(alive, off, right["steps"])
        judge_accuracy(alive, within, " without dropout")
        watch = next(found)
        judge_model(watch)
        judge_count(watch, steps)
        judge_draws(watch)
        screen.good(outcome.step, how)
    outcome.step = DEEDS[stage.number]
    screen.good(outcome.step, judge_deed(stage, watch, one, steps))
    if quick:
        screen.say("  Not timed: --quick.", "dim")
        outcome.passed = True
        outcome.status = RIGHT if stage.number in MUST_BE_FASTER else "passed"
        return
    outcome.step = "It is faster" if stage.number in MUST_BE_FASTER else "Its clock is right"
    judge_speed(stage, script, folder, repeats, limit, screen, outcome, gpu)
    outcome.passed, outcome.status = True, "passed"


DEEDS = {
    "01": "The data is read once",
    "02": "The step is a graph",
    "03": "XLA compiled it",
    "04": "There is a profile",
    "05": "It computes in 16 bit",
    "06": "The host left the loop",
}


def judge_deed(stage: Stage, watch: Ran, one: Ran, steps: int) -> str:
    """This exercise's idea, and the ideas before it; the words are about this one."""
    told = {"01": judge_reads(watch, one, steps)}
    if stage.number >= "02":
        told["02"] = judge_graph(watch, steps)
    if "03" <= stage.number <= "05":
        told["03"] = judge_xla(watch)
    if "04" <= stage.number <= "05":
        told["04"] = judge_profile(watch, steps)
    if stage.number == "05":
        told["05"] = judge_precision(watch)
    if stage.number == "06":
        told["06"] = judge_loop(watch, steps)
    return told[stage.number]


ON_A_CPU = {
    "03": "On a CPU XLA does not pay: it has slower convolutions. It is made for GPUs: try there.",
    "05": "On a CPU 16 bit does not pay. It does on tensor cores: V100, A100 and later.",
}


def judge_speed(
    stage: Stage,
    script: Path,
    folder: Path,
    repeats: int,
    limit: float,
    screen: Screen,
    outcome: Outcome,
    gpu: bool,
) -> None:
    mine = Entry("yours", script, stage.number >= "04")
    before = Entry(previous(stage).folder, previous(stage).script, previous(stage).profiles)
    own = Entry(f"{stage.folder} (ours)", stage.script, stage.profiles)
    steps = timed_steps(stage, gpu)
    for repeat in range(repeats):
        for i, entry in enumerate((mine, before, own)):
            place = folder / f"time_{repeat}_{i}"
            with screen.doing(f"timing, repeat {repeat + 1} of {repeats}: {entry.name}"):
                try:
                    time_once(entry, stage, place, steps, limit)
                except NotYet as problem:
                    if entry is mine:
                        raise
                    raise CannotCheck(f"{entry.name} does not run here: {problem}") from None
            shutil.rmtree(place, ignore_errors=True)
    outcome.speeds = {"yours": mine.speed, "before": before.speed, "ours": own.speed}
    judge_clock(mine)
    judge_learning(mine, before)
    found = verdict(mine, before)
    times = ratio(mine.speed, before.speed)
    told = {"faster": f"Faster, {times}", "slower": f"Slower, {times}"}
    told = told.get(found, "No clear difference")
    if stage.number not in MUST_BE_FASTER:
        screen.good(outcome.step, "the wall clock agrees")
    elif found == "faster":
        best = f"{times} the speed of {before.name}"
        screen.good(outcome.step, f"{best}; the slowest of yours beats the fastest of those")
    show_speeds((mine, before, own), screen, steps)
    if stage.number in MUST_BE_FASTER:
        if found == "slower":
            raise NotYet(f"It is slower than {before.name}: {times}.")
        if found == "unclear":
            raise NotYet(
                "No clear difference in speed: the repeats overlap.",
                f"On a busy machine more of them help: ./workshop check {stage.number} --repeats 7",
            )
    else:
        screen.say(f"  {told}. This exercise is judged on having done it, not on the speed.")
        if not gpu and stage.number in ON_A_CPU:
            screen.say(f"  {ON_A_CPU[stage.number]}")


def show_speeds(entries: tuple[Entry, ...], screen: Screen, steps: int) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("script", "img/s", "from", "to", "yours is", "accuracy"):
        table.add_column(name, justify="left" if name == "script" else "right")
    for entry in entries:
        table.add_row(
            entry.name,
            number(entry.speed),
            number(min(entry.speeds)),
            number(max(entry.speeds)),
            "" if entry is entries[0] else ratio(entries[0].speed, entry.speed),
            f"{100 * statistics.median(entry.accuracies):.1f} %",
        )
    screen.console.print(table)
    count = len(entries[0].speeds)
    times = f"{count} times in turns" if count > 1 else "once each"
    screen.say(f"  By the wall clock, batch {BATCH}, {steps} steps, {times}.", "dim")


# --- what is kept, and the score card ---


def keep(file: Path, sha: str, outcome: Outcome) -> None:
    kept = {
        "sha256": sha,
        "status": outcome.status if outcome.passed else "not yet",
        "problem": outcome.problem,
        "speeds": {name: round(speed, 1) for name, speed in outcome.speeds.items()},
        "date": datetime.date.today().isoformat(),
    }
    path = file.with_name("check.json")
    before = read_kept(file)
    if not kept["speeds"] and before.get("sha256") == sha:  # --quick forgets nothing
        kept["speeds"] = before.get("speeds", {})
        if outcome.passed and before.get("status") == "passed":
            kept["status"] = "passed"
    save(path, lambda part: part.write_text(json.dumps(kept, indent=1) + "\n"))


def read_kept(file: Path) -> dict[str, Any]:
    try:
        kept = json.loads(file.with_name("check.json").read_text())
        return kept if isinstance(kept, dict) else {}
    except (OSError, ValueError):
        return {}


def state(stage: Stage) -> tuple[str, dict]:
    file = script_of(stage)
    kept = read_kept(file)
    if not file.is_file():
        return "not begun", {}
    status = kept.get("status", "begun")
    if kept and kept.get("sha256") != digest(file):
        good = status in ("passed", RIGHT)
        return ("changed since it passed" if good else "begun"), kept if good else {}
    return (status if status in ("passed", RIGHT) else "begun"), kept


def score_card() -> int:
    screen = Screen()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Your exercises", title_justify="left")
    names = ("", "exercise", "state", "img/s", "x before", "x ours")
    for name in names:
        table.add_column(name, justify="right" if name in names[3:] else "left")
    passed, following_command = 0, ""
    styles = {"passed": "green", RIGHT: "green", "changed since it passed": "yellow"}
    for stage in STAGES[1:]:
        status, kept = state(stage)
        speeds = kept.get("speeds") or {}
        mine = speeds.get("yours")
        table.add_row(
            stage.number,
            stage.change,
            Text(status, style=styles.get(status, "dim" if status == "not begun" else "")),
            number(mine),
            ratio(mine, speeds.get("before")),
            ratio(mine, speeds.get("ours")),
        )
        passed += status == "passed"
        if status != "passed" and not following_command:
            verb = "exercise" if status == "not begun" else "check"
            following_command = f"./workshop {verb} {stage.number}"
    screen.console.print(table)
    told = f"{passed} of {len(STAGES) - 1} passed."
    screen.say(f"{told} Next: {following_command}" if following_command else f"{told} Well done.")
    return 0
