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
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.initializers import random_initializers
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from tfworkshop.exercises.cnn import SHAPES, initial_weights
from tfworkshop.exercises.records import Graph, Observed, Plan, Run
from tfworkshop.files import read_record, save_record
from tfworkshop.report import command as report
from tfworkshop.report import profile

FORWARD = "Conv2D"
BACKWARD = "Conv2DBackpropFilter"
UPDATES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply")
LARGE = 1 << 13  # bytes: a smaller input of a step is a number or an index, not images
LOG_LINE = re.compile(
    r"\(\d+, \d+\), Loss: (?P<loss>\d+\.\d+), step_time: \S+, throughput: (?P<speed>\S+) img/s"
)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # Keras colours its messages


class Seen:
    """What was seen in one run."""

    def __init__(self, data: str, dropout: bool) -> None:
        self.data = data
        self.dropout = dropout
        self.observed = Observed()
        self.models: list[Any] = []
        self.functions: dict[int, ConcreteFunction] = {}
        self.calls: collections.Counter[int] = collections.Counter()
        self.bytes_fed: collections.Counter[int] = collections.Counter()
        self.large_inputs: dict[int, Any] = {}  # the same one again is not a new feed


seen = Seen("", True)


# --- hooks ---


def before(owner: Any, name: str, hook: Callable[..., None]) -> None:
    """Call the hook at the start of each call of owner.name, with the same arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        hook(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def keep_model(model: Any, *args: Any, **kwargs: Any) -> None:
    seen.models.append(model)


def note_log(logger: logging.Logger, record: logging.LogRecord) -> None:
    match = LOG_LINE.search(record.getMessage())
    if match:
        seen.observed.times.append(time.perf_counter())
        seen.observed.losses.append(float(match["loss"]))
        seen.observed.throughputs.append(float(match["speed"]))


def note_scaling(optimizer: Any, loss: Any) -> None:
    seen.observed.loss_scaled = True


def switch_dropout(layer: Any, *args: Any, **kwargs: Any) -> None:
    if not seen.dropout:
        layer.rate = 0


def count_read(file: Any, *args: Any, **kwargs: Any) -> None:
    if file.filename == seen.data:
        seen.observed.reads += 1


def count_call(function: Any, tensor_inputs: Any, captured_inputs: Any) -> None:
    """A graph that Python starts, and the large tensors that are new to it."""
    if not tf.executing_eagerly():
        return
    key = id(function)
    seen.functions[key] = function
    seen.calls[key] += 1
    for tensor in [*tensor_inputs, *captured_inputs]:
        elements = tensor.shape.num_elements() or 0  # None: a shape that is not known
        size = elements * tensor.dtype.size
        if size > LARGE and id(tensor) not in seen.large_inputs:
            seen.large_inputs[id(tensor)] = tensor
            if seen.calls[key] > 1:
                seen.bytes_fed[key] += size


def note_marker(marker: Any, name: str, **metadata: Any) -> None:
    if metadata.get("_r"):
        seen.observed.root_markers = True


def draw_initial_weights(initializer: Any, shape: Any, dtype: Any = None) -> Any:
    dtype = keras.backend.standardize_dtype(dtype or "float32")
    return tf.constant(initial_weights(tuple(shape)), dtype)


def allow_late(owner: Any, name: str) -> None:
    """Ignore a setting that must come first in a process: in its second run it is too late."""
    original = getattr(owner, name)

    def lenient(*args: Any, **kwargs: Any) -> None:
        with contextlib.suppress(RuntimeError):
            original(*args, **kwargs)

    setattr(owner, name, lenient)


def install_hooks(watched: bool) -> None:
    before(logging.Logger, "handle", note_log)
    allow_late(tf.config, "set_visible_devices")
    allow_late(tf.config.experimental, "set_memory_growth")
    if not watched:
        return
    before(keras.Model, "__init__", keep_model)
    before(keras.optimizers.LossScaleOptimizer, "scale_loss", note_scaling)
    before(keras.layers.Dropout, "call", switch_dropout)
    before(zipfile.ZipFile, "open", count_read)
    before(ConcreteFunction, "_call_flat", count_call)
    before(tf.profiler.experimental.Trace, "__init__", note_marker)
    for name in ("RandomNormal", "TruncatedNormal", "RandomUniform", "VarianceScaling"):
        getattr(random_initializers, name).__call__ = draw_initial_weights


# --- what a graph contains ---


def describe_graph(function: ConcreteFunction) -> Graph:
    """Count the operations that matter in a graph and in all functions that it calls."""
    definition = function.graph.as_graph_def()
    library = {body.signature.name: body for body in definition.library.function}
    name = function.graph.name.removeprefix("__inference_")
    graph = Graph(name, seen.calls[id(function)], seen.bytes_fed[id(function)])
    programs: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    conv_types: set[str] = set()
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
        elif node.op.startswith(UPDATES) and updates_float(node):
            graph.updates += 1
            if program:
                graph.updates_in_xla += 1
        elif node.op.startswith("IteratorGetNext"):
            graph.has_iterator = True

    visit(definition.node, function.name if is_compiled(function.function_def) else "")
    graph.backward = sum(backward for _, backward in programs.values())
    programs.pop("", None)  # what XLA does not compile
    graph.programs = [(forward, backward) for forward, backward in programs.values()]
    graph.conv_types = sorted(conv_types)
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
    return [graph for graph in graphs if graph.backward]


# --- the model, examined afterwards ---


def find_cnn() -> tuple[Any, dict[str, Any]]:
    """The last model with the CNN's weights, and these by name."""
    for model in reversed(seen.models):
        by_shape = {tuple(weight.shape): weight for weight in model.trainable_weights}
        if set(by_shape) == set(SHAPES.values()):
            return model, {name: by_shape[shape] for name, shape in SHAPES.items()}
    return None, {}


def read_profile(logdir: Path) -> None:
    if not any(logdir.rglob(f"*{profile.ENDING}")):
        return
    seen.observed.has_profile = True
    _, hosts = report.load(logdir)
    markers = [marker for host in hosts for marker in host.markers()]
    numbers = {int(marker.name.rpartition(" ")[2]) for marker in markers}
    seen.observed.steps_in_profile = sorted(numbers)


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


def run_script(script: str, argv: list[str]) -> int:
    """Run the script as its user would, note its exception, if any, and return its exit status."""
    sys.argv = [script, *argv]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException as error:
        seen.observed.traceback = format_traceback(error, script)
    return 0


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


def examine(run: Run, folder: Path) -> None:
    """Note what the run left behind."""
    observed = seen.observed
    observed.gpu = bool(tf.config.get_visible_devices("GPU"))
    observed.graphs = describe_graphs()
    model, weights = find_cnn()
    if model:
        observed.weight_types = sorted({weight.dtype for weight in weights.values()})
        arrays = {name: np.array(weight).astype(np.float32) for name, weight in weights.items()}
        np.savez(folder / f"{run.name}.npz", allow_pickle=False, **arrays)
        with np.load(run.data) as file:
            images, labels = file["x_test"], file["y_test"]
        logits = model(images[..., np.newaxis].astype(np.float32) / 255, training=False)
        observed.logits_type = logits.dtype.name
        observed.accuracy = float(np.mean(np.argmax(logits, axis=1) == labels))
    if "--logdir" in run.argv:
        read_profile(folder / "logs")


def main(plan_file: Path) -> None:
    global seen
    plan = read_record(plan_file, Plan)
    install_hooks(plan.runs[0].watched)
    for run in plan.runs:
        seen = Seen(run.data, run.dropout)
        status = run_script(plan.script, run.argv)
        if status != 0:
            os._exit(status)
        clean_up()
        if run.watched and not seen.observed.traceback:
            examine(run, plan_file.parent)
        save_record(plan_file.parent / f"{run.name}.json", seen.observed)
        if seen.observed.traceback:
            break
    os._exit(0)  # without waiting for threads that the script left


if __name__ == "__main__":
    # Under its own name: a script's `__main__` must not replace this one's globals.
    from tfworkshop.exercises import observe

    observe.main(Path(sys.argv[1]))
