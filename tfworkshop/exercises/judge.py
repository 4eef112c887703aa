"""What a script must have done: the same training, and the exercise's idea."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tfworkshop.exercises.attempt import Attempt
from tfworkshop.exercises.cnn import SHAPES, initial_weights
from tfworkshop.exercises.trial import (
    BATCH,
    CALL,
    EPOCH,
    WATCHED,
    WINDOW,
    Ran,
    make_data,
    mistake,
    observe_runs,
    plan_runs,
    reference_runs,
)
from tfworkshop.stages import Stage


@dataclass(frozen=True)
class Tolerance:
    """How far a correct solution may be off; based on how much the stages themselves differ."""

    loss: float  # relative
    update: float  # |update - correct one| / |correct one|, for each tensor


# Adam's first step is the sign of the gradient: where that is almost 0, rounding can flip it.
# Measured on a CPU: float32 stages differ by 0.00002, float16 by 0.12, bfloat16 by 0.32.
FLOAT32 = Tolerance(loss=1e-4, update=0.01)
TENSOR_FLOAT = Tolerance(loss=2e-3, update=0.3)  # an A100 rounds as float16 does
MIXED = Tolerance(loss=0.02, update=0.5)
ACCURACY = 0.01
LOGGED = 0.002  # log lines have three digits
FORMATS = {"step": "bfloat16", "half": "float16"}  # that 05's runs ask for


# --- it trains the same model ---


def updates(ran: Ran) -> dict[str, np.ndarray]:
    """How far each tensor moved from its initial value."""
    return {name: ran.weights[name] - initial_weights(shape) for name, shape in SHAPES.items()}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |b|."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def judge_model(ran: Ran) -> None:
    types = ran.observed.weight_types
    if not types:
        raise mistake("model")
    if types != ["float32"]:
        raise mistake("weight-types", types=" and ".join(types))


def judge_step(ran: Ran, reference: Ran, tolerance: Tolerance) -> str:
    """One step on the same batch, from the same weights, nothing dropped."""
    loss, correct_loss = ran.observed.losses[0], reference.observed.losses[0]
    if abs(loss - correct_loss) > LOGGED + tolerance.loss * correct_loss:
        raise mistake("loss", loss=loss, correct=correct_loss)
    own, correct = updates(ran), updates(reference)
    errors = {name: distance(own[name], correct[name]) for name in SHAPES}
    worst = max(SHAPES, key=errors.__getitem__)
    if errors[worst] > tolerance.update:
        factor = np.linalg.norm(own[worst]) / np.linalg.norm(correct[worst])
        raise mistake("update", tensor=worst, factor=factor, error=errors[worst])
    return (
        f"loss {loss:.3f}, all {len(SHAPES)} tensors moved as they should: "
        f"{errors[worst]:.1%} off, limit {tolerance.update:.1%}"
    )


def judge_accuracy(ran: Ran) -> None:
    reported, correct = ran.results.test_accuracy, ran.observed.accuracy
    if reported is None or abs(reported - correct) > ACCURACY:
        raise mistake("accuracy", reported=reported, correct=correct)


def judge_dropout(ran: Ran) -> None:
    """All batches and weights of this run are equal: only dropout makes its losses differ."""
    if len(set(ran.observed.losses)) == 1:
        raise mistake("dropout")


def judge_epochs(ran: Ran, reference: Ran) -> None:
    """Two epochs in which no weight changes: the mean loss shows whether each image came once."""
    correct_mean = np.mean(reference.observed.losses)
    first, second = ran.observed.losses[:EPOCH], ran.observed.losses[EPOCH:]
    for mean in (np.mean(first), np.mean(second)):
        if abs(mean - correct_mean) > LOGGED:
            raise mistake("epoch-images", mean=mean, correct=correct_mean)
    if first == second:
        raise mistake("epoch-order")


# --- it does what was asked ---


def conv_types(ran: Ran) -> list[str]:
    return sorted({kind for graph in ran.observed.graphs for kind in graph.conv_types})


def judge_reads(ran: Ran, one_step: Ran) -> str:
    factor = ran.observed.reads / one_step.observed.reads
    if factor > 1:
        raise mistake("reads", factor=factor, steps=WATCHED)
    return f"{WATCHED} steps read as much of the data file as one step does"


def judge_graph(ran: Ran) -> str:
    whole = [graph for graph in ran.observed.graphs if graph.updates >= len(SHAPES)]
    if not ran.observed.graphs:
        raise mistake("eager")
    if not whole:
        raise mistake("update-outside")
    name, traces = collections.Counter(graph.name for graph in whole).most_common(1)[0]
    if traces > 2:  # two: some solutions create their variables in the first
        raise mistake("retraced", name=name, traces=traces, steps=WATCHED)
    calls = sum(graph.calls for graph in whole)
    return f"{name} ran {calls} times for {WATCHED} steps; it contains gradients and updates"


def judge_xla(ran: Ran, options: str = "") -> str:
    whole = [graph for graph in ran.observed.graphs if graph.updates]
    programs = [program for graph in whole for program in graph.programs]
    if not any(backward for _, backward in programs):
        raise mistake("not-compiled", options=options)
    if not all(forward and backward for forward, backward in programs):
        raise mistake("compiled-apart", options=options)
    if any(graph.updates_in_xla for graph in whole):
        raise mistake("update-compiled", options=options)
    return "forward pass and gradients ran as one XLA program"


def judge_no_xla(ran: Ran, options: str) -> None:
    if any(graph.programs for graph in ran.observed.graphs):
        raise mistake("compiled", options=options)


def judge_xla_switch(on: Ran, off: Ran, default: Ran) -> str:
    judge_xla(on, "With --xla on: ")
    judge_no_xla(off, "With --xla off: ")
    if default.observed.gpu:
        judge_xla(default, "Without --xla, on a GPU: ")
    else:
        judge_no_xla(default, "Without --xla, on a CPU: ")
    return "--xla on compiles the gradients, off does not; the default suits this device"


def judge_profile(ran: Ran) -> str:
    observed = ran.observed
    first, last = WINDOW
    options = f"--profile-steps {first} {last}"
    if not observed.has_profile:
        raise mistake("no-profile")
    if observed.steps_in_profile != list(range(first, last + 1)):
        raise mistake("window", options=options, numbers=observed.steps_in_profile)
    if not observed.root_markers:
        raise mistake("marker-not-root")
    counted = ran.results.steps_timed + ran.results.warmup_steps
    most = WATCHED - (last - first + 1)
    if counted > most:
        raise mistake(
            "recorded-steps-timed", counted=counted, steps=WATCHED, options=options, most=most
        )
    return f"a readable profile with markers for steps {first} to {last}, which are not timed"


def judge_format(ran: Ran, wanted: str) -> None:
    """One of the two 16-bit formats, requested with --precision."""
    types = conv_types(ran)
    if types != [wanted]:
        raise mistake("precision", wanted=wanted, types=" and ".join(types))
    if ran.observed.logits_type != "float32":  # a cast after the layer would be too late
        raise mistake("logits", wanted=wanted)
    if wanted == "float16" and not ran.observed.loss_scaled:
        raise mistake("unscaled")


def judge_default_precision(ran: Ran, reference: Ran) -> str:
    types, (wanted,) = conv_types(ran), conv_types(reference)
    if types != [wanted]:
        raise mistake("default-precision", types=" and ".join(types), wanted=wanted)
    return f"both formats work; the default here is {wanted}; the loss is float32"


def judge_loop(ran: Ran) -> str:
    graphs = ran.observed.graphs
    calls = sum(graph.calls for graph in graphs)
    if 2 * calls > WATCHED or CALL * calls < WATCHED:
        raise mistake("steps-per-call", asked=CALL, calls=calls, steps=WATCHED)
    if any(graph.has_iterator for graph in graphs):
        raise mistake("iterator")
    bytes_fed = sum(graph.bytes_fed for graph in graphs)
    bytes_trained = WATCHED * BATCH * 28 * 28
    if bytes_fed > bytes_trained / 2:
        raise mistake("fed", megabytes=bytes_fed / 1e6, calls=calls)
    return f"{calls} calls for {WATCHED} steps, and no images from the host"


# Which ideas an exercise must show, besides its own: those of the stages that it builds on.
BUILDS_ON = {
    "01": (),
    "02": ("01",),
    "03": ("01", "02"),
    "04": ("01", "02"),
    "05": ("01", "02", "04"),
    "06": ("01", "02"),
}


def judge_ideas(
    stage: Stage, attempt: Attempt, runs: dict[str, Ran], reference: dict[str, Ran]
) -> None:
    step, epochs, watch = runs["step"], runs["epochs"], runs["watch"]
    checks: list[tuple[str, str, Callable[[], str]]] = [
        ("01", "The data is read once", lambda: judge_reads(watch, step)),
        ("02", "The step is a graph", lambda: judge_graph(watch)),
        ("03", "XLA compiled it", lambda: judge_xla(watch)),
        ("04", "There is a profile", lambda: judge_profile(watch)),
        ("04", "XLA has a switch", lambda: judge_xla_switch(step, epochs, watch)),
        (
            "05",
            "It computes in 16 bit",
            lambda: judge_default_precision(watch, reference["epochs"]),
        ),
        ("06", "The host left the loop", lambda: judge_loop(watch)),
    ]
    for number, idea, judge in checks:
        if number == stage.number or number in BUILDS_ON[stage.number]:
            attempt.step = idea
            outcome = judge()
            if number == stage.number:
                attempt.good(outcome)


# --- all of it ---


def judge_training(stage: Stage, attempt: Attempt) -> bool:
    """Everything but the speed, up to the first mistake. Returns whether it ran on a GPU."""
    with attempt.console.status("running the workshop's own solution"):
        reference = reference_runs(stage)
    make_data(attempt.folder)
    with attempt.console.status("running yours, watched"):
        runs = observe_runs(attempt.script, attempt.folder, plan_runs(stage), attempt.limit)
    step = runs["step"]
    attempt.good("one log line per step, and results")
    attempt.step = "It trains the same model"
    for name, ran in runs.items():
        judge_model(ran)
        if stage.number == "05" and name in FORMATS:
            judge_format(ran, FORMATS[name])
    same_model = judge_step(step, reference["step"], choose_tolerance(stage, step))
    if "half" in runs:
        judge_step(runs["half"], reference["half"], MIXED)
    judge_accuracy(step)
    judge_dropout(runs["watch"])
    attempt.good(same_model)
    judge_ideas(stage, attempt, runs, reference)
    attempt.step = "It sees every image"
    judge_epochs(runs["epochs"], reference["epochs"])  # last: a loss in 16 bit is ruled out now
    attempt.good("once per epoch, each epoch in a new order")
    return step.observed.gpu


def choose_tolerance(stage: Stage, ran: Ran) -> Tolerance:
    if stage.number == "05":
        return MIXED
    return TENSOR_FLOAT if ran.observed.gpu else FLOAT32
