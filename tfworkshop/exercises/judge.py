"""What a run must have done: the same training, and the exercise's idea. NotYet otherwise."""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.cnn import SHAPES, first_weights, shape_key
from tfworkshop.exercises.trial import (
    BATCH,
    CALL,
    EPOCH,
    STEPS,
    WATCHED,
    WINDOW,
    NotYet,
    Ran,
    make_data,
    plan_runs,
    probe,
    right_runs,
)
from tfworkshop.stages import Stage


@dataclass(frozen=True)
class Tolerance:
    """How far a correct solution may be off; based on how much the stages themselves differ."""

    loss: float  # relative
    update: float  # |update - correct one| / |correct one|, for each tensor
    accuracy: float


# Adam's first step is the sign of the gradient: where that is almost 0, rounding can flip it.
# Measured on a CPU: float32 stages differ by 0.00002, float16 by 0.12, bfloat16 by 0.32.
FLOAT32 = Tolerance(loss=1e-4, update=0.01, accuracy=0.005)
TENSOR_FLOAT = Tolerance(loss=2e-3, update=0.3, accuracy=0.01)  # an A100 rounds as float16 does
MIXED = Tolerance(loss=0.02, update=0.5, accuracy=0.06)
KEYS = {shape_key(shape): shape for shape in SHAPES}
LOGGED = 0.002  # log lines have three digits
SAME_PATH = 0.1  # training with dropout must differ by more than this from training without


# --- 1: it runs ---


def check_source(file: Path) -> None:
    """What can be checked without running it."""
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


def updates(ran: Ran) -> dict[str, np.ndarray]:
    """How far each tensor moved from its initial value."""
    return {key: ran.weights[key] - first_weights(shape) for key, shape in KEYS.items()}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |b|."""
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


def how_wrong(name: str, mine: np.ndarray, right: np.ndarray) -> str:
    length, wanted = np.linalg.norm(mine), np.linalg.norm(right)
    if not length:
        return f"{name} did not move"
    along, times = float(np.vdot(mine, right) / (length * wanted)), length / wanted
    off = f"{100 * distance(mine, right):.0f} % off"
    if not abs(along) > 0.95:
        return f"{name} moved in another direction: its update is {off}"
    if along > 0 and 0.95 < times < 1.05:
        return f"{name} moved {off}: is it computed in 16 bit?"
    return f"{name} moved {times:.2f}x as far as it should{', and backwards' * (along < 0)}"


def judge_model(ran: Ran) -> None:
    if not ran.observed["trained"]:
        raise NotYet(
            "No Keras model with the CNN's eight weights was trained.",
            f"Their shapes are {', '.join(KEYS)}. Do not change the layers of MNISTClassifier.",
        )
    if ran.observed["weight_types"] != ["float32"]:
        kinds = " and ".join(ran.observed["weight_types"])
        raise NotYet(f"Weights are kept as {kinds}: they must stay float32.")


def judge_step(mine: Ran, right: Ran, within: Tolerance) -> str:
    """One step on the same batch, from the same weights, nothing dropped."""
    loss, wanted = mine.results["final_loss"], right.results["final_loss"]
    if abs(loss - wanted) > within.loss * abs(wanted):
        raise NotYet(
            f"The first step's loss is {loss:.4f}; on the one batch of the check's data it should "
            f"be {wanted:.4f}: different images, labels or scaling?"
        )
    if abs(mine.losses[0] - loss) > 0.002 + within.loss * abs(loss):
        raise NotYet(f"It logs the loss {mine.losses[0]}, but its results say {loss:.4f}.")
    moved, due, names = updates(mine), updates(right), right.observed["names"]
    off = {key: distance(moved[key], due[key]) for key in due}
    wrong = [key for key in due if not off[key] <= within.update]
    if wrong:
        worst = max(wrong, key=lambda key: off[key])
        texts = {key: how_wrong(names[key], moved[key], due[key]) for key in wrong}
        raise NotYet(f"After one step {texts.pop(worst)}.", *texts.values())
    far, most = (f"{100 * share:.1f} %" for share in (max(off.values()), within.update))
    return f"loss {loss:.4f}, all 8 tensors moved as they should: {far} off, limit {most}"


def judge_half(mine: Ran, right: Ran) -> None:
    """One step in float16."""
    if "float16" in conv_types(mine) and not mine.observed["loss_scaling"]:
        raise NotYet("float16 without loss scaling: small gradients become 0.")
    try:
        judge_step(mine, right, MIXED)
    except NotYet as problem:
        if mine.observed["loss_scaling"] and not mine.observed["scaled"]:
            raise NotYet(
                "float16: scale_loss was never called. The gradients are scaled down, but the "
                "loss was not scaled up."
            ) from None
        raise NotYet(f"In float16: {problem}", *problem.details) from None


def judge_count(ran: Ran, steps: int) -> None:
    """A fake trains less. (An optimizer that is not Keras's keeps no count.)"""
    made = ran.observed["iterations"]
    if made is not None and made != steps:
        raise NotYet(f"Asked for {steps} steps, the optimizer made {made} updates.")


def judge_steps(mine: Ran, right: Ran) -> None:
    """Several steps: less precisely, but all of them."""
    judge_count(mine, STEPS)
    moved, due = (sum(float(np.sum(d**2)) for d in updates(r).values()) for r in (mine, right))
    far = math.sqrt(moved / due)
    if not 0.8 < far < 1.3:
        raise NotYet(
            f"In {STEPS} steps the weights moved {far:.2f}x as far as they should: does every step "
            "train once, with the learning rate --lr?"
        )


def judge_accuracy(ran: Ran, within: Tolerance, why: str) -> None:
    reported, found = ran.results["test_accuracy"], ran.observed["accuracy"]
    if abs(reported - found) > within.accuracy:
        raise NotYet(
            f"It reports a test accuracy of {100 * reported:.1f} %; its weights reach "
            f"{100 * found:.1f} %{why}."
        )


def judge_dropout(mine: Ran, undropped: Ran) -> None:
    rates, wanted = mine.observed["rates"], undropped.observed["rates"]
    if rates and rates != wanted:
        texts = [" and ".join(f"{rate:g}" for rate in some) for some in (rates, wanted)]
        raise NotYet(f"The dropout rates are {texts[0]}; they should be {texts[1]}.")
    moved, without = updates(mine), updates(undropped)
    if max(distance(moved[key], without[key]) for key in moved) < SAME_PATH:
        raise NotYet(
            "Dropout has no effect: training gives the same weights with it and without it.",
            "The model must be called with training=True in the training step.",
        )


def judge_epochs(mine: Ran, right: Ran) -> None:
    """Two epochs in which no weight changes: the mean loss shows whether each image came once."""
    wanted = np.mean(right.losses)
    first, second = mine.losses[:EPOCH], mine.losses[EPOCH:]
    for found in (np.mean(first), np.mean(second)):
        if abs(found - wanted) > LOGGED:
            raise NotYet(
                f"An epoch does not use each image once: its mean loss is {found:.3f}, but the "
                f"mean over all images is {wanted:.3f}."
            )
    if first == second:
        raise NotYet("Two epochs use the images in the same order: shuffle again for each.")


def judge_draws(ran: Ran) -> None:
    if len(set(ran.losses)) == 1:
        raise NotYet(
            "Dropout drops the same values at every step: on one batch, with a learning rate of "
            "almost 0, all losses are the same."
        )


# --- 3: it does what was asked ---


def training(ran: Ran) -> list[dict]:
    """The graphs with gradients: any other graph proves nothing."""
    return [graph for graph in ran.observed["graphs"] if graph["backward"]]


def conv_types(ran: Ran) -> list[str]:
    return sorted({kind for graph in training(ran) for kind in graph["conv_types"]})


def judge_reads(ran: Ran, one: Ran) -> str:
    """Files and arrays: one step reads as much as many do."""
    opens, reads = ran.observed["opens"], ran.observed["reads"]
    if opens > one.observed["opens"] + 2:
        raise NotYet(f"In {WATCHED} steps the data file was opened {opens} times.")
    if reads > one.observed["reads"] + 8:
        raise NotYet(f"In {WATCHED} steps {reads} arrays were read from the data file.")
    return f"the data file was opened {opens} times in {WATCHED} steps, not {WATCHED + 2}"


def judge_graph(ran: Ran, one_a_step: bool) -> str:
    found = ran.observed["graphs"]
    if not found:
        raise NotYet(
            "No graph ran: the training step is still eager.",
            "The function that the loop calls must be a tf.function.",
        )
    whole = [graph for graph in training(ran) if graph["updates"] >= len(SHAPES)]
    if not whole and any(graph["forward"] for graph in training(ran)):
        raise NotYet(
            "The graph contains the gradients, but not the update of the weights: that still "
            "runs one operation at a time."
        )
    if not whole:
        raise NotYet(
            "The graph contains only the forward pass: gradients and updates are still outside."
        )
    name, times = collections.Counter(graph["name"] for graph in whole).most_common(1)[0]
    if times > 2:  # two: some create their variables in the first
        raise NotYet(
            f"{name} was traced {times} times in {WATCHED} steps: something that changes is passed "
            "as a Python value, or the tf.function is created again."
        )
    calls = sum(graph["calls"] for graph in whole)
    if calls > WATCHED:
        raise NotYet(f"The training graph ran {calls} times for {WATCHED} steps.")
    if one_a_step and calls < WATCHED:
        raise NotYet(
            f"The training graph was called {calls} times for {WATCHED} steps: every step should "
            "be one call of it."
        )
    once = "once" if times == 1 else "twice"
    ran_so = f"{name} was traced {once} and ran {calls} times for {WATCHED} steps"
    return f"{ran_so}; it contains gradients and updates"


def judge_xla(ran: Ran) -> str:
    whole = [graph for graph in training(ran) if graph["updates"]]
    programs = [program for graph in whole for program in graph["programs"]]
    if not any(backward for _, backward in programs):
        raise NotYet(
            "No convolution's gradient was compiled by XLA.",
            "The function around the gradients needs jit_compile=True, and must be the one used.",
        )
    if any(graph["plain_convs"] for graph in whole):
        raise NotYet(
            "Some convolutions of the training step were compiled by XLA, some were not.",
            "The step must use only the compiled function.",
        )
    if not all(forward and backward for forward, backward in programs):
        raise NotYet(
            "Forward pass and gradients were compiled separately: XLA could not fuse across them.",
            "Compile the function that contains both.",
        )
    if any(graph["updates_xla"] for graph in whole):
        raise NotYet(
            "The update is compiled too. Between it and the gradients is the exchange between "
            "ranks, which XLA cannot compile: on two ranks this would fail.",
        )
    return "forward pass and gradients ran as one XLA program"


def judge_switch(on: Ran, off: Ran, default: Ran) -> str:
    gpu = default.observed["gpu"]
    unasked = "Without --xla, on a GPU" if gpu else "Without --xla, on a CPU"
    runs = {"With --xla on": (on, True), "With --xla off": (off, False), unasked: (default, gpu)}
    for words, (ran, compiled) in runs.items():
        if compiled:
            try:
                judge_xla(ran)
            except NotYet as problem:
                raise NotYet(f"{words}: {problem}", *problem.details) from None
        elif any(graph["programs"] for graph in training(ran)):
            raise NotYet(f"{words}: XLA compiled convolutions of the training step.")
    here = "on" if gpu else "off"
    return f"--xla on compiles the gradients, off does not; the default here is {here}"


def judge_profile(ran: Ran) -> str:
    found, (first, last) = ran.observed["markers"] or {}, WINDOW
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
        steps = ", ".join(map(str, marked[:12])) + (", ..." if len(marked) > 12 else "")
        raise NotYet(f"With {asked} the profile has markers for steps {steps}.")
    if not found["times"]:
        raise NotYet(
            "The profile has markers, but no step times: ./workshop report could not split them.",
            "A marker begins a step only with _r=1.",
        )
    if ran.observed["fetches"] and not ran.observed["fetches_in_marker"]:
        raise NotYet("The batch is fetched outside the step marker: no step includes its time.")
    counted = ran.results["steps_timed"] + ran.results["warmup_steps"]
    most = WATCHED - (last - first + 1)
    if counted > most:
        raise NotYet(
            f"{counted} steps of {WATCHED} count for the throughput; {asked} leaves {most}: "
            "recorded steps are slower, and must not count."
        )
    return f"a readable profile with markers for steps {first} to {last}, which are not timed"


def judge_kind(ran: Ran, wanted: str) -> None:
    """One of the two 16-bit formats, requested with --precision."""
    found = conv_types(ran)
    if found != [wanted]:
        raise NotYet(
            f"With --precision mixed_{wanted} the convolutions of the training step ran in "
            f"{' and '.join(found)}."
        )
    losses = {kind for graph in training(ran) for kind in graph["loss_types"]}
    losses.add(ran.observed.get("logits", "float32"))  # TensorFlow casts them, too late
    if losses != {"float32"}:
        raise NotYet(
            f"The logits are {wanted}: a softmax needs float32, so the last layer must produce it."
        )
    if wanted == "bfloat16" and ran.observed["loss_scaling"]:
        raise NotYet("bfloat16 has float32's range and needs no loss scaling: leave it out.")


def judge_precision(ran: dict[str, Ran], right: Ran) -> str:
    judge_kind(ran["step"], "bfloat16")
    judge_kind(ran["few"], "float16")
    found, wanted = conv_types(ran["watch"]), conv_types(right)
    if found != wanted:
        units = "no 16-bit units" if wanted == ["float32"] else f"units for {wanted[0]}"
        raise NotYet(
            f"Without --precision the convolutions ran in {' and '.join(found)}. This device has "
            f"{units}: the default should be {wanted[0]}."
        )
    return f"both formats work; the default here is {wanted[0]}; the loss is float32"


def judge_loop(ran: Ran) -> str:
    whole, steps = training(ran), WATCHED
    calls = sum(graph["calls"] for graph in whole)
    asked = f"--steps-per-call {CALL}: Python made {calls} calls for {steps} steps"
    if 2 * calls > steps:
        raise NotYet(f"{asked}: a call should run several.")
    if any(graph["iterator"] for graph in whole):
        raise NotYet("The steps take their batches from a tf.data iterator, which is on the host.")
    if any(graph["python"] for graph in whole):
        raise NotYet(
            "The steps call Python from within the graph, so the host is still in the loop."
        )
    fed = sum(graph["fed"] for graph in whole)
    if fed > steps * BATCH * 28 * 28 // 2:
        raise NotYet(
            f"{fed / 1e6:.1f} MB came from the host in {calls} calls: the data should be on the "
            "device already, so that only indices change."
        )
    if CALL * calls < steps:
        raise NotYet(f"{asked}: no call should run more steps than requested.")
    return f"{calls} calls for {steps} steps, and no images from the host"


def idea_checks(
    stage: Stage, ran: dict[str, Ran], right: dict[str, Ran]
) -> list[tuple[str, str, Callable[[], str]]]:
    """The checks of this exercise's idea, after those of the stages that it builds on."""
    watch = ran["watch"]
    known = [
        ("01", "The data is read once", lambda: judge_reads(watch, ran["step"])),
        ("02", "The step is a graph", lambda: judge_graph(watch, stage.number < "06")),
        ("03", "XLA compiled it", lambda: judge_xla(watch)),
        ("04", "There is a profile", lambda: judge_profile(watch)),
        ("04", "XLA has a switch", lambda: judge_switch(ran["step"], ran["steps"], watch)),
        ("05", "It computes in 16 bit", lambda: judge_precision(ran, right["epochs"])),
        ("06", "The host left the loop", lambda: judge_loop(watch)),
    ]
    past = {"01": (), "05": ("01", "02", "04")}.get(stage.number, ("01", "02"))
    return [check for check in known if check[0] == stage.number or check[0] in past]


# --- all of it ---


def judge_training(stage: Stage, attempt: Attempt) -> bool:
    """Everything but the speed, up to the first mistake; whether it ran on a GPU."""
    check_source(attempt.script)
    files, limit = make_data(attempt.folder), attempt.limit
    with attempt.doing("running the workshop's own solution"):
        right = right_runs(stage, files, attempt.folder / "right", limit)
    ran: dict[str, Ran] = {}
    runs = plan_runs(stage, attempt.folder / "mine", files, ours=False)
    with (
        attempt.doing("running yours, watched"),
        contextlib.closing(probe(attempt.script, attempt.folder / "mine", runs, limit)) as found,
    ):
        one = ran["step"] = next(found)
        attempt.good("one log line per step, and results")
        attempt.step = "It trains the same model"
        gpu = one.observed["gpu"]
        within = MIXED if stage.number == "05" else TENSOR_FLOAT if gpu else FLOAT32
        judge_model(one)
        how = judge_step(one, right["step"], within)
        judge_accuracy(one, within, "")
        for run in runs[1:]:
            ran[run["name"]] = now = next(found)
            judge_model(now)
            if run["name"] == "few":
                judge_half(now, right["few"])
            elif run["name"] == "steps":
                judge_steps(now, right["steps"])
                judge_dropout(now, right["undropped"])
                judge_accuracy(now, within, " without dropout")
            elif run["name"] == "watch":
                judge_count(now, run["steps"])
                judge_draws(now)
        attempt.good(how)
    for of_stage, attempt.step, judge_idea in idea_checks(stage, ran, right):
        how = judge_idea()
        if of_stage == stage.number:
            attempt.good(how)
    attempt.step = "It sees every image"
    judge_epochs(ran["epochs"], right["epochs"])  # now: a loss in 16 bit has been ruled out
    attempt.good("once per epoch, each epoch in a new order")
    return gpu
