"""Runs a training script as its user would, and records what it really did.

python -m tfworkshop.exercises.observe PLAN.json: all runs of the plan, in this one process, so that
TensorFlow is loaded only once. What a run did is saved beside the plan.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import os
import re
import runpy
import signal
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.initializers import random_initializers
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from tfworkshop.exercises.cnn import SHAPES, initial_weights
from tfworkshop.exercises.records import Graph, Observed, Plan, RecordedSteps, Run
from tfworkshop.exercises.trial import SAVED
from tfworkshop.files import read_record, save_record
from tfworkshop.problem import Problem
from tfworkshop.report import command as report
from tfworkshop.report import profile

FORWARD = "Conv2D"
BACKWARD = "Conv2DBackpropFilter"
LOSSES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", "LogSoftmax")
UPDATES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply")
LARGE = 1 << 13  # bytes: a smaller input of a step is a number or an index, not images
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Keras colours its messages


class Seen:
    """What was seen in one run."""

    def __init__(self, data: str, dropout: bool) -> None:
        self.data = data
        self.dropout = dropout
        self.reads = 0
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.loss_scaled = False
        self.functions: dict[int, ConcreteFunction] = {}
        self.calls: collections.Counter[int] = collections.Counter()
        self.bytes_fed: collections.Counter[int] = collections.Counter()
        self.large_inputs: dict[int, Any] = {}  # the same one again is not a new feed
        self.markers_open = 0
        self.fetches = 0
        self.fetches_in_marker = 0


seen = Seen("", True)


# --- patches ---


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace owner.name by around(original, ...)."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def watch_models() -> None:
    """Keep every model and optimizer alive, to examine them when the script is done."""

    def new_model(original: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        model = original(cls, *args, **kwargs)
        seen.models.append(model)
        return model

    def new_optimizer(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        seen.optimizers.append(self)

    def scale_loss(original: Any, self: Any, loss: Any) -> Any:
        seen.loss_scaled = True
        return original(self, loss)

    wrap(keras.Model, "__new__", new_model)
    wrap(keras.optimizers.Optimizer, "__init__", new_optimizer)
    wrap(keras.optimizers.LossScaleOptimizer, "scale_loss", scale_loss)


def fix_initial_weights() -> None:
    def draw(self: Any, shape: Any, dtype: Any = None) -> Any:
        dtype = keras.backend.standardize_dtype(dtype or "float32")
        return tf.constant(initial_weights(tuple(shape)), dtype)

    for name in ("RandomNormal", "TruncatedNormal", "RandomUniform", "VarianceScaling"):
        getattr(random_initializers, name).__call__ = draw


def switch_dropout() -> None:
    """Let seen.dropout decide whether anything is dropped."""

    def init(original: Any, self: Any, rate: float, *args: Any, **kwargs: Any) -> None:
        original(self, rate, *args, **kwargs)
        if not seen.dropout:
            self.rate = 0

    wrap(keras.layers.Dropout, "__init__", init)


def watch_reads() -> None:
    def open_member(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.filename == seen.data:
            seen.reads += 1
        return original(self, *args, **kwargs)

    wrap(zipfile.ZipFile, "open", open_member)


def watch_functions() -> None:
    """Every graph that Python starts, and the large tensors that are new to it."""

    def call(original: Any, self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        if tf.executing_eagerly():
            seen.functions[id(self)] = self
            seen.calls[id(self)] += 1
            for tensor in [*tensor_inputs, *captured_inputs]:
                count_feed(id(self), tensor)
        return original(self, tensor_inputs, captured_inputs)

    wrap(ConcreteFunction, "_call_flat", call)


def count_feed(function: int, tensor: Any) -> None:
    elements = tensor.shape.num_elements() or 0  # None: a shape that is not known
    size = elements * tensor.dtype.size
    if size > LARGE and id(tensor) not in seen.large_inputs:
        seen.large_inputs[id(tensor)] = tensor
        if seen.calls[function] > 1:
            seen.bytes_fed[function] += size


def watch_markers() -> None:
    def enter(original: Any, self: Any) -> Any:
        seen.markers_open += 1
        return original(self)

    def leave(original: Any, self: Any, *error: Any) -> Any:
        seen.markers_open -= 1
        return original(self, *error)

    def fetch(original: Any, self: Any) -> Any:
        seen.fetches += 1
        if seen.markers_open:
            seen.fetches_in_marker += 1
        return original(self)

    wrap(tf.profiler.experimental.Trace, "__enter__", enter)
    wrap(tf.profiler.experimental.Trace, "__exit__", leave)
    wrap(OwnedIterator, "__next__", fetch)


def allow_late_settings() -> None:
    """Ignore settings that must come first in a process: in its second run it is too late."""

    def lenient(original: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            return original(*args, **kwargs)

    wrap(tf.config, "set_visible_devices", lenient)
    wrap(tf.config.experimental, "set_memory_growth", lenient)
    wrap(tf.config.threading, "set_intra_op_parallelism_threads", lenient)
    wrap(tf.config.threading, "set_inter_op_parallelism_threads", lenient)


# --- what a graph contains ---


def describe_graph(function: ConcreteFunction) -> Graph:
    """Count the operations that matter in a graph and in all functions that it calls."""
    definition = function.graph.as_graph_def()
    library = {body.signature.name: body for body in definition.library.function}
    name = function.graph.name.removeprefix("__inference_")
    graph = Graph(name, seen.calls[id(function)], seen.bytes_fed[id(function)])
    programs: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    conv_types: set[str] = set()
    loss_types: set[str] = set()
    visited: set[tuple[str, str]] = set()

    def visit(nodes: Iterable[Any], program: str) -> None:
        """`program` is the outermost function around them that XLA compiles, if any."""
        for node in nodes:
            count(node, program)
            for value in list(node.attr.values()):
                for called in [value.func, *value.list.func]:
                    if called.name in library:
                        body = library[called.name]
                        compiled = is_compiled(node) or is_compiled(body)
                        enter(body, program or (called.name if compiled else ""))

    def enter(body: Any, program: str) -> None:
        key = (body.signature.name, program)
        if key not in visited:
            visited.add(key)
            visit(body.node_def, program)

    def count(node: Any, program: str) -> None:
        if node.op == FORWARD or node.op == BACKWARD:
            programs[program][node.op == BACKWARD] += 1
            conv_types.add(tf.dtypes.as_dtype(node.attr["T"].type).name)
        elif node.op in LOSSES:
            loss_types.add(tf.dtypes.as_dtype(node.attr["T"].type).name)
        elif node.op.startswith(UPDATES) and updates_float(node):
            graph.updates += 1
            if program:
                graph.updates_in_xla += 1
        elif node.op.startswith("IteratorGetNext"):
            graph.has_iterator = True
        elif "PyFunc" in node.op:
            graph.calls_python = True

    visit(definition.node, function.name if is_compiled(function.function_def) else "")
    graph.forward = sum(forward for forward, _ in programs.values())
    graph.backward = sum(backward for _, backward in programs.values())
    graph.outside_xla = sum(programs.pop("", [0, 0]))
    graph.programs = [(forward, backward) for forward, backward in programs.values()]
    graph.conv_types = sorted(conv_types)
    graph.loss_types = sorted(loss_types)
    return graph


def is_compiled(part: Any) -> bool:
    """Whether XLA compiles this node or function."""
    return part.attr["_XlaMustCompile"].b


def updates_float(node: Any) -> bool:
    """Whether it updates a weight: not a random seed, not a step count."""
    attribute = "dtype" if "dtype" in node.attr else "T"
    return node.attr[attribute].type == tf.float32.as_datatype_enum


def describe_graphs() -> list[Graph]:
    graphs = [describe_graph(function) for function in seen.functions.values()]
    return [graph for graph in graphs if graph.forward or graph.backward]


# --- the model, examined afterwards ---


def find_cnn() -> tuple[Any, dict[str, Any]]:
    """The last model with the CNN's weights, and these by name."""
    for model in reversed(seen.models):
        by_shape = {tuple(weight.shape): weight for weight in model.trainable_weights}
        if set(by_shape) == set(SHAPES.values()):
            return model, {name: by_shape[shape] for name, shape in SHAPES.items()}
    return None, {}


def compute_accuracy(model: Any, data: str) -> float:
    with np.load(data) as file:
        images, labels = file["x_test"], file["y_test"]
    logits = model(images[..., np.newaxis].astype(np.float32) / 255, training=False)
    return float(np.mean(np.argmax(logits, axis=1) == labels))


def count_updates() -> int | None:
    """How many updates the busiest optimizer made; one that is not Keras's does not count them."""
    counts = [int(optimizer.iterations.numpy()) for optimizer in seen.optimizers if optimizer.built]
    return max(counts, default=None)


def read_profile(logdir: Path) -> RecordedSteps:
    if not any(logdir.rglob(f"*{profile.ENDING}")):
        return RecordedSteps("--logdir is empty. Is the profiler started and stopped?")
    try:
        contents, hosts = report.load(logdir)
    except Problem as problem:
        return RecordedSteps(str(problem))
    numbers = sorted(marker.number for host in hosts for marker in host.markers())
    return RecordedSteps("", numbers, contents.steps.count)


# --- a run ---


def format_traceback(error: BaseException, script: str) -> str:
    """Python's own, without the frames of TensorFlow, Keras and this module."""
    folder = Path(script).parent
    frames = traceback.extract_tb(error.__traceback__)
    own_frames = [frame for frame in frames if Path(frame.filename).parent == folder]
    lines = ["Traceback (most recent call last):\n"]
    lines += traceback.format_list(own_frames)
    lines += traceback.format_exception_only(error)
    return COLOURS.sub("", "".join(lines)).rstrip()


def run_script(script: str, argv: list[str]) -> Observed:
    """How the script ended: its exit status, or its exception."""
    sys.argv = [script, *argv]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return Observed(status=1)
        return Observed(status=end.code or 0)
    except BaseException as error:
        return Observed(status=1, traceback=format_traceback(error, script))
    return Observed()


def clean_up() -> None:
    """Make the next run start as in a new process, as far as possible."""
    with contextlib.suppress(tf.errors.UnavailableError):  # no profile is being recorded
        tf.profiler.experimental.stop(save=False)
    keras.backend.clear_session()
    keras.mixed_precision.set_dtype_policy("float32")
    tf.config.run_functions_eagerly(False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.getLogger().handlers.clear()


def examine(run: Run, folder: Path, observed: Observed) -> None:
    """Add what the run left behind."""
    observed.reads = seen.reads
    observed.gpu = bool(tf.config.get_visible_devices("GPU"))
    observed.updates = count_updates()
    observed.loss_scaled = seen.loss_scaled
    observed.fetches = seen.fetches
    observed.fetches_in_marker = seen.fetches_in_marker
    for optimizer in seen.optimizers:
        wrapper = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        observed.scales_loss |= wrapper or optimizer.loss_scale_factor is not None
    model, weights = find_cnn()
    if model:
        observed.weight_types = sorted({weight.dtype for weight in weights.values()})
        arrays = {name: np.asarray(weight).astype(np.float32) for name, weight in weights.items()}
        np.savez(folder / f"{run.name}.npz", **arrays)
        observed.accuracy = compute_accuracy(model, run.data)
        observed.logits_type = model(tf.zeros([1, 28, 28, 1])).dtype.name
    if run.watched:
        observed.graphs = describe_graphs()
    if "--logdir" in run.argv:
        observed.recorded = read_profile(folder / "logs")


def main(plan_file: Path) -> None:
    global seen
    plan = read_record(plan_file, Plan)
    watch_models()
    allow_late_settings()
    if any(run.watched for run in plan.runs):
        fix_initial_weights()
        switch_dropout()
        watch_reads()
        watch_functions()
        watch_markers()
    for run in plan.runs:
        seen = Seen(run.data, run.dropout)
        observed = run_script(plan.script, run.argv)
        clean_up()
        if observed.status == 0:
            examine(run, plan_file.parent, observed)
        save_record(plan_file.parent / f"{run.name}.json", observed)
        print(f"\n{SAVED} {run.name}", flush=True)
        if observed.status != 0:
            break
    os._exit(0)  # without waiting for threads that the script left


if __name__ == "__main__":
    # Under its own name: a script's `__main__` must not replace this one's globals.
    from tfworkshop.exercises import observe

    observe.main(Path(sys.argv[1]))
