"""Runs a training script as its user would, and records what it really did.

python -m tfworkshop.exercises.observe PLAN.json, in a separate process: the script may do anything
to it. The plan is a list of runs, all in this one process, to import TensorFlow only once.
The outcome of a run is in files beside the plan; a run without files did not end.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import functools
import gc
import json
import linecache
import logging
import os
import re
import runpy
import signal
import sys
import traceback
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from tfworkshop.exercises.cnn import SHAPES, first_weights, shape_key

FORWARD, BACKWARD = "Conv2D", "Conv2DBackpropFilter"
LOSSES = ("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits", "LogSoftmax")
UPDATES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceApply")
LARGE = 1 << 13  # bytes: an input of a step below this is a number or an index, not images
OUTPUT = os.dup(1)  # kept: a script may close its own


class Seen:
    """What was seen in one run."""

    def __init__(self, data: str, dropout: bool) -> None:
        self.data = os.path.realpath(data)
        self.dropout = dropout
        self.opens = self.reads = 0
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.rates: list[float] = []
        self.functions: dict[int, ConcreteFunction] = {}
        self.calls: collections.Counter[int] = collections.Counter()
        self.fed: collections.Counter[int] = collections.Counter()  # bytes
        self.known: dict[int, Any] = {}  # large inputs: the same one again is not a new feed
        self.in_marker = 0
        self.fetches = self.fetches_in_marker = 0
        self.scaled = False  # a loss, by LossScaleOptimizer


seen = Seen("", True)


# --- patches ---


def wrap(owner: Any, name: str, around: Any) -> None:
    """Replace owner.name by around(original, ...)."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def keep_made() -> None:
    """Keep every model and optimizer alive, to examine them when the script is done."""

    def new_model(original: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        model = original(cls, *args, **kwargs)
        seen.models.append(model)
        return model

    def new_optimizer(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        seen.optimizers.append(self)

    def scale_loss(original: Any, self: Any, loss: Any) -> Any:
        seen.scaled = True
        return original(self, loss)

    wrap(keras.Model, "__new__", new_model)
    wrap(keras.optimizers.Optimizer, "__init__", new_optimizer)
    wrap(keras.optimizers.LossScaleOptimizer, "scale_loss", scale_loss)


def fix_weights() -> None:
    """Initial weights that depend only on the shape, not on what was drawn before."""
    from keras.src.initializers import random_initializers

    def draw(self: Any, shape: Any, dtype: Any = None) -> Any:
        dtype = keras.backend.standardize_dtype(dtype or "float32")
        return tf.constant(first_weights(shape), dtype)

    for name in ("RandomNormal", "TruncatedNormal", "RandomUniform", "VarianceScaling"):
        getattr(random_initializers, name).__call__ = draw


def switch_dropout() -> None:
    """seen.dropout decides whether anything is dropped."""

    def init(original: Any, self: Any, rate: float, *args: Any, **kwargs: Any) -> None:
        original(self, rate, *args, **kwargs)
        seen.rates.append(float(rate))
        if not seen.dropout:
            self.rate = 0  # afterwards, so that a subclass finds all its attributes

    def drop(original: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        return original(x, *args, **kwargs) if seen.dropout else tf.convert_to_tensor(x)

    wrap(keras.layers.Dropout, "__init__", init)
    wrap(tf.nn, "dropout", drop)
    wrap(tf.nn.experimental, "stateless_dropout", drop)


def watch_reads() -> None:
    def audit(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], (str, bytes)):
            path = os.fsdecode(args[0])
            if path.endswith(".npz") and os.path.realpath(path) == seen.data:
                seen.opens += 1

    def member(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.filename is None or os.path.realpath(self.filename) == seen.data:
            seen.reads += 1
        return original(self, *args, **kwargs)

    sys.addaudithook(audit)
    wrap(zipfile.ZipFile, "open", member)


def watch_functions() -> None:
    """Every graph that Python starts, and the large tensors that are new to it."""

    def call(original: Any, self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        if context.executing_eagerly():
            key = id(self)
            seen.functions[key] = self
            seen.calls[key] += 1
            for tensor in [*tensor_inputs, *captured_inputs]:
                size = getattr(tensor, "shape", None)
                size = size.num_elements() if size is not None and size.rank is not None else 0
                if (size or 0) * tensor.dtype.size > LARGE and id(tensor) not in seen.known:
                    seen.known[id(tensor)] = tensor
                    seen.fed[key] += size * tensor.dtype.size if seen.calls[key] > 1 else 0
        return original(self, tensor_inputs, captured_inputs)

    wrap(ConcreteFunction, "_call_flat", call)


def watch_markers() -> None:
    def enter(original: Any, self: Any) -> Any:
        seen.in_marker += 1
        return original(self)

    def leave(original: Any, self: Any, *error: Any) -> Any:
        seen.in_marker -= 1
        return original(self, *error)

    def fetch(original: Any, self: Any) -> Any:
        seen.fetches += 1
        seen.fetches_in_marker += seen.in_marker > 0
        return original(self)

    wrap(tf.profiler.experimental.Trace, "__enter__", enter)
    wrap(tf.profiler.experimental.Trace, "__exit__", leave)
    wrap(OwnedIterator, "__next__", fetch)


def allow_again() -> None:
    """Ignore settings that must come first in a process: a second run here is too late for them."""

    def lenient(original: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except RuntimeError:
            return None

    wrap(tf.config, "set_visible_devices", lenient)
    wrap(tf.config, "set_logical_device_configuration", lenient)
    wrap(tf.config.experimental, "set_memory_growth", lenient)


# --- what a graph holds ---


def anatomy(function: ConcreteFunction) -> dict:
    """The operations that matter in a graph and in all that it calls."""
    graph = function.graph.as_graph_def()
    library = {f.signature.name: f for f in graph.library.function}
    programs: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])  # "": not XLA's
    updates: collections.Counter[bool] = collections.Counter()  # by XLA or not
    conv_types, loss_types, ops, done = set(), set(), set(), set()
    compiled = function.function_def.attr["_XlaMustCompile"].b
    todo = [(graph.node, function.name if compiled else "")]
    while todo:
        nodes, program = todo.pop()
        for node in nodes:
            ops.add(node.op)
            kind = tf.dtypes.as_dtype(node.attr["T"].type).name if node.attr["T"].type else ""
            if node.op in (FORWARD, BACKWARD):
                programs[program][node.op == BACKWARD] += 1
                conv_types.add(kind)
            elif node.op in LOSSES:
                loss_types.add(kind)
            elif node.op.startswith(UPDATES):  # only float ones: not the seeds, not the step
                dtype = (node.attr["dtype"] if "dtype" in node.attr else node.attr["T"]).type
                updates[bool(program)] += dtype == tf.float32.as_datatype_enum
            compiled = node.attr["_XlaMustCompile"].b
            for value in node.attr.values():
                for called in [value.func, *value.list.func]:
                    body = library.get(called.name)
                    if body is None:
                        continue
                    begins = compiled or body.attr["_XlaMustCompile"].b
                    inside = program or (called.name if begins else "")
                    if (called.name, inside) not in done:
                        done.add((called.name, inside))
                        todo.append((body.node_def, inside))
    forward, backward = (sum(counts[i] for counts in programs.values()) for i in (0, 1))
    return {
        "forward": forward,
        "backward": backward,
        "plain_convs": sum(programs.pop("", [])),  # not compiled by XLA
        "programs": list(programs.values()),  # of XLA: the convolutions in each, as above
        "updates": sum(updates.values()),
        "updates_xla": updates[True],
        "iterator": any(op.startswith("IteratorGetNext") for op in ops),
        "python": any("PyFunc" in op for op in ops),
        "conv_types": sorted(conv_types),
        "loss_types": sorted(loss_types),
    }


def graphs() -> list[dict]:
    """For each graph with a convolution that ran: name, calls, what it contains."""
    found = []
    for key, function in seen.functions.items():
        try:
            parts = anatomy(function)
        except Exception:  # some other kind of graph
            continue
        if parts["forward"] or parts["backward"]:
            name = function.graph.name.replace("__inference_", "")
            found.append({"name": name, "calls": seen.calls[key], "fed": seen.fed[key], **parts})
    return found


# --- the model, examined afterwards ---


def weights_of(model: Any) -> dict[tuple, np.ndarray] | None:
    """The CNN's tensors by shape, or None for another model."""
    try:
        values = {tuple(w.shape): w for w in model.weights if "seed" not in w.name}
        if set(values) != set(SHAPES) or len(model.trainable_weights) != len(SHAPES):
            return None
        return {shape: np.array(values[shape]) for shape in SHAPES}
    except Exception:  # not built, or odd
        return None


def trained_model() -> tuple[Any, dict[tuple, np.ndarray] | None]:
    """The last model that was trained; a script may have created others."""
    ours = [(model, values) for model in seen.models if (values := weights_of(model))]
    moved = [(m, v) for m, v in ours if np.any(v[(10,)])]  # biases start at 0
    return (moved or ours or [(None, None)])[-1]


def names_of(model: Any) -> dict[str, str]:
    """What to call a tensor: the model's own name for its layer, and kernel or bias."""
    return {
        shape_key(weight.shape): f"{attribute}/{weight.name}"
        for attribute, layer in vars(model).items()
        if isinstance(layer, keras.layers.Layer)
        for weight in layer.weights
    }


def accuracy(values: dict[tuple, np.ndarray], data: str) -> float:
    """The CNN computed with these weights, without any of the script's own code."""
    conv_1, bias_1, conv_2, bias_2, dense_1, bias_3, dense_2, bias_4 = (values[s] for s in SHAPES)
    with np.load(data) as file:
        images, labels = file["x_test"], file["y_test"]
    x = tf.constant(images[..., np.newaxis], tf.float32) / 255
    x = tf.nn.relu(tf.nn.conv2d(x, conv_1, 1, "VALID") + bias_1)
    x = tf.nn.relu(tf.nn.conv2d(x, conv_2, 1, "VALID") + bias_2)
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "VALID"), [len(x), -1])
    x = tf.nn.relu(x @ dense_1 + bias_3) @ dense_2 + bias_4
    return np.count_nonzero(np.argmax(x, axis=1) == labels) / len(labels)


def iterations() -> int | None:
    """How many updates the busiest optimizer made."""
    counts = []
    for optimizer in seen.optimizers:
        with contextlib.suppress(Exception):  # never built
            counts.append(int(optimizer.iterations.numpy()))
    return max(counts, default=None)


def markers(logdir: Path) -> dict:
    """The steps that a profile has markers for, or why it cannot be read."""
    from tfworkshop.report import command as report
    from tfworkshop.report import profile

    if not any(logdir.rglob(f"*{profile.ENDING}")):
        why = "nothing was written to --logdir. Is the profiler started and stopped?"
        return {"unreadable": why}
    try:
        found, hosts = report.load(logdir)
    except Exception as error:
        return {"unreadable": str(error).replace(str(logdir), "--logdir")}
    marked = [marker.number for host in hosts for marker in host.markers()]
    return {"steps": sorted(marked), "times": found.steps.count}


# --- a run ---


def clean_up() -> None:
    """As in a new process, as far as possible."""
    faulthandler.cancel_dump_traceback_later()
    with contextlib.suppress(Exception):
        tf.profiler.experimental.stop(save=False)
    keras.backend.clear_session()
    keras.mixed_precision.set_dtype_policy("float32")
    tf.config.run_functions_eagerly(False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    logging.getLogger().handlers.clear()
    with contextlib.suppress(OSError):
        os.dup2(OUTPUT, 1)
    if sys.stdout.closed:
        sys.stdout = open(1, "w", closefd=False)


def where(error: BaseException, script: str) -> dict:
    """The last line of the script itself that an exception came through.

    From a tf.function or a layer it has its own traceback as text: the cause is in that text.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == script]
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split("Arguments received by")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    inner = re.findall(rf'File "{re.escape(script)}", line (\d+)', text)
    number = int(inner[-1]) if inner else frames[-1].lineno if frames else None
    message = lines[0]
    if message.startswith("in user code"):
        message = lines[-1]
    elif message.startswith("Exception encountered when calling"):
        message = lines[min(1, len(lines) - 1)]
    return {
        "type": type(error).__name__,
        "message": message.removeprefix(f"{type(error).__name__}: ")[:300],
        "line": number,
        "text": number and linecache.getline(script, number).strip(),
    }


def execute(script: str, argv: list[str]) -> dict:
    """How the script ended: its exit status, or its exception."""
    sys.argv = [script, *argv]
    sys.path[0] = str(Path(script).parent)
    found: dict[str, Any] = {"status": 0}
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        found["status"] = end.code if isinstance(end.code, int) else int(end.code is not None)
        found["said"] = end.code if isinstance(end.code, str) else None
    except BaseException as error:  # whatever it is, it is the script's
        found = {"status": 1, "error": where(error, script)}
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    return found


def look(run: dict, folder: Path) -> dict:
    """What the run left behind."""
    model, values = trained_model()
    scalers = [getattr(o, "loss_scale_factor", None) for o in seen.optimizers]
    scalers += [isinstance(o, keras.optimizers.LossScaleOptimizer) for o in seen.optimizers]
    found: dict[str, Any] = {
        "trained": values is not None,
        "iterations": iterations(),
        "loss_scaling": any(scalers),
        "scaled": seen.scaled,
        "rates": sorted(set(seen.rates)),
        "fetches": seen.fetches,
        "fetches_in_marker": seen.fetches_in_marker,
        "gpu": bool(tf.config.get_visible_devices("GPU")),
    }
    if values is not None:
        arrays = {shape_key(shape): np.float32(value) for shape, value in values.items()}
        np.savez(folder / f"{run['name']}.npz", **arrays)
        found["weight_types"] = sorted({str(value.dtype) for value in values.values()})
        found["accuracy"] = accuracy(values, run["data"])
        found["names"] = names_of(model)
        with contextlib.suppress(Exception):  # a model that takes bytes, say
            found["logits"] = model(tf.zeros([1, 28, 28, 1]), training=False).dtype.name
    if run["observe"]:
        found["graphs"] = graphs()
    if "--logdir" in run["argv"]:
        found["markers"] = markers(folder / "logs")
    return found


def say(line: str) -> None:
    with contextlib.suppress(OSError):  # a script may have closed every file there was
        os.write(OUTPUT, f"\n{line}\n".encode())


def main(plan_path: str) -> None:
    global seen
    plan, folder, pid = json.loads(Path(plan_path).read_text()), Path(plan_path).parent, os.getpid()
    cwd = Path.cwd()
    gc.freeze()  # what TensorFlow made while it loaded stays: not to be looked through again
    keep_made()
    allow_again()
    if any(run["observe"] for run in plan["runs"]):
        fix_weights()
        switch_dropout()
        watch_reads()
        watch_functions()
        watch_markers()
    for run in plan["runs"]:
        seen = Seen(run["data"], run["dropout"])
        say(f"{plan['mark']} {run['name']}")
        found = execute(plan["script"], run["argv"])
        if os.getpid() != pid:  # a child that the script forked, and that also got here
            os._exit(0)
        say(f"{plan['mark']} end of {run['name']}")
        clean_up()
        cwd.mkdir(parents=True, exist_ok=True)  # the script may have left it, or removed it
        os.chdir(cwd)
        if found["status"] == 0:
            found |= {"opens": seen.opens, "reads": seen.reads}  # before look() reads the data too
            found |= look(run, folder)
        part = folder / f"{run['name']}.part"
        part.write_text(json.dumps(found))
        part.replace(folder / f"{run['name']}.json")
        say(f"{plan['mark']} kept {run['name']}")
        if found["status"] != 0:
            break
    os._exit(0)  # the script's threads and exit handlers no longer matter


if __name__ == "__main__":
    # Under its own name, so that the script's `__main__` does not replace this one's globals.
    from tfworkshop.exercises import observe

    observe.main(sys.argv[1])
