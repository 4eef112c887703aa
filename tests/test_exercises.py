"""Exercises and their check: right solutions pass, however written; wrong, slow and fake ones fail.

Each is a small patch of the previous stage's real file. tests/forked.py runs them all, two at a
time, as an attendee would run them, and as many of the runs of a check as the patch can change.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from tests.conftest import stage_environment
from tfworkshop import __main__ as tools_main
from tfworkshop import commands
from tfworkshop.exercises import check, timing, trial, watched
from tfworkshop.exercises.attempt import NOT_YET, PASSED, RIGHT, Attempt, read_kept
from tfworkshop.exercises.task import EXERCISES, digest, find_stage, parts, previous
from tfworkshop.stages import ROOT, lines_changed

NUMBERS = [stage.number for stage in EXERCISES]
Patch = tuple[str, str]


@dataclass(frozen=True)
class Case:
    """A solution, as patches of the previous script or as text; and what check says to it."""

    number: str
    name: str
    said: str = ""  # nothing: it passes
    patches: tuple[Patch, ...] = ()
    whole: str | None = None
    options: tuple[str, ...] = ("--quick",)
    runs: str = ""  # that it can change (trial.plan_runs): in the others ours stands in

    def __str__(self) -> str:
        return f"{self.number}-{self.name}"

    def text(self) -> str:
        if self.whole is not None:
            return self.whole
        text = previous(find_stage(self.number)).script.read_text()
        for old, new in self.patches:
            assert text.count(old) == 1, f"{self}: {text.count(old)} times: {old}"
            text = text.replace(old, new)
        return text


def own(number: str) -> str:
    return find_stage(number).script.read_text()


def between(number: str, start: str, end: str) -> str:
    """A piece of our own script of this stage."""
    text = own(number)
    begin = text.index(start)
    return text[begin : text.index(end, begin)]


# --- pieces of the stages that patches replace ---

STEP_CALL = "loss = float(train_step(model, optimizer, images, labels))"
LOOP = "    for step in range(args.steps):\n"
APPLY = "    optimizer.apply_gradients(zip(gradients, model.trainable_variables))\n"
IMPORT = "import argparse\n"
PROFILED_STEP = "@profile\ndef train_step("

# --- 01 ---

HANDED_ON = (
    ("def fetch_batch(args, epoch, i_batch):", "def fetch_batch(args, arrays, epoch, i_batch):"),
    ("    x_train, _, y_train, _ = get_dataset(args.data)\n", "    x_train, y_train = arrays\n"),
    ("= fetch_batch(args, epoch, i_batch)", "= fetch_batch(args, arrays, epoch, i_batch)"),
    ("def train_loop(args, model, optimizer,", "def train_loop(args, arrays, model, optimizer,"),
    ("    train_loop(args, model,", "    train_loop(args, (x_train, y_train), model,"),
)
CACHED = (
    (IMPORT, f"import functools\n{IMPORT}"),
    ("def get_dataset(", "@functools.lru_cache(maxsize=None)\ndef get_dataset("),
)
ZIP_KEPT_OPEN = (
    (IMPORT, f"import functools\n{IMPORT}"),
    ("def read_mnist(", "open_file = functools.lru_cache(np.load)\n\n\ndef read_mnist("),
    ("file = np.load(path if", "file = open_file(path if"),
)

IN_01 = [
    Case("01", "own", whole=own("01")),
    Case("01", "arrays-handed-on", patches=HANDED_ON, runs="step watch"),
    Case("01", "zip-kept-open", "arrays were read", ZIP_KEPT_OPEN, runs="step watch"),
    Case("01", "updated-twice", "2.00x as far", (*CACHED, (APPLY, APPLY + APPLY))),
    Case(
        "01",
        "evaluation-faked",
        "reports a test accuracy of 99.0 %",
        (*CACHED, ("return float(np.mean(np.concatenate(digits) == y_test))", "return 0.99")),
    ),
    Case("01", "only-logs", "did not move", (*CACHED, (APPLY, ""))),
]

# --- 02 ---

GRAPH = (PROFILED_STEP, "@tf.function\ndef train_step(")
CLOSURE = (
    (
        LOOP,
        """    @tf.function
    def one_step(images, labels):
        return train_step(model, optimizer, images, labels)

"""
        + LOOP,
    ),
    (STEP_CALL, "loss = float(one_step(images, labels))"),
    (PROFILED_STEP, "def train_step("),
    ("@profile\ndef compute_gradients", "def compute_gradients"),
    ("@profile\ndef forward_pass", "def forward_pass"),
)
NO_WAIT = (
    GRAPH,
    (STEP_CALL, "loss = train_step(model, optimizer, images, labels)"),
    (
        "log_step(args, history, step, loss, time.perf_counter() - start)",
        "step_time = time.perf_counter() - start\n"
        "        log_step(args, history, step, float(loss), step_time)",
    ),
    (
        "    args = parse_args()\n",
        "    args = parse_args()\n    tf.config.experimental.set_synchronous_execution(False)\n",
    ),
)

IN_02 = [
    Case(
        "02",
        "every-other-step",
        "called 8 times for 16 steps",
        (
            GRAPH,
            (
                STEP_CALL,
                f"""step_made = train_step if step % 2 else train_step.python_function
        {STEP_CALL.replace("train_step", "step_made")}""",
            ),
        ),
        runs="watch",
    ),
    Case("02", "own", whole=own("02")),
    Case("02", "closure", patches=CLOSURE, runs="step watch"),
    Case(
        "02",
        "forward-only",
        "only the forward pass",
        (("@profile\ndef forward_pass", "@tf.function\ndef forward_pass"),),
        runs="watch",
    ),
    Case(
        "02",
        "without-update",
        "not the update",
        (("@profile\ndef compute_gradients", "@tf.function\ndef compute_gradients"),),
        runs="watch",
    ),
    Case(
        "02",
        "python-number",
        "traced 3 times in 16 steps",
        (
            GRAPH,
            (
                "def train_step(model, optimizer, images, labels)",
                "def train_step(model, optimizer, images, labels, third)",
            ),
            (STEP_CALL, STEP_CALL.replace("labels", "labels, step % 3")),
        ),
        runs="watch",
    ),
    Case(
        "02",
        "no-dropout",
        "Dropout has no effect",
        (GRAPH, ("model(images, training=True)", "model(images, training=False)")),
        runs="steps",
    ),
    Case(
        "02",
        "weaker-dropout",
        "dropout rates are 0.1 and 0.25",
        (GRAPH, ("Dropout(0.5)", "Dropout(0.1)")),
        runs="steps",
    ),
    Case(
        "02",
        "evaluated-with-dropout",
        "without dropout",
        (GRAPH, ("(x_test[i : i + 100])", "(x_test[i : i + 100], training=True)")),
        runs="steps",
    ),
    Case(
        "02",
        "half-the-steps",
        "the optimizer made 3 updates",
        (
            GRAPH,
            (
                STEP_CALL,
                "loss = loss if step % 2 else float(train_step(model, optimizer, images, labels))",
            ),
        ),
        runs="steps",
    ),
]

# --- 03 ---

COMPILED = ("def compute_gradients", "@tf.function(jit_compile=True)\ndef compute_gradients")
BESIDE = (  # a program of XLA runs, and trains nothing
    "def main():\n",
    """@tf.function(jit_compile=True)
def beside(images, kernel):
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        loss = tf.reduce_sum(tf.nn.conv2d(images, kernel, 1, "VALID"))
    return tape.gradient(loss, kernel)


def main():
    beside(tf.ones([1, 28, 28, 1]), tf.ones([3, 3, 1, 32]))
""",
)
IN_03 = [
    Case("03", "own", whole=own("03")),
    Case(
        "03",
        "a-second-function",
        patches=(
            (
                "@tf.function\ndef train_step",
                "xla_gradients = tf.function(compute_gradients, jit_compile=True, autograph=False)"
                "\n\n\n@tf.function\ndef train_step",
            ),
            ("loss, gradients = compute_gradients(", "loss, gradients = xla_gradients("),
        ),
        runs="step watch",
    ),
    Case(
        "03",
        "whole-step",
        "The update is compiled too",
        (("@tf.function\ndef train_step", "@tf.function(jit_compile=True)\ndef train_step"),),
        runs="watch",
    ),
    Case(
        "03",
        "forward-pass-only",
        "Forward pass and gradients were compiled separately",
        (("def forward_pass", "@tf.function(jit_compile=True)\ndef forward_pass"),),
        runs="watch",
    ),
    Case(
        "03", "beside-the-step", "No convolution's gradient was compiled", (BESIDE,), runs="watch"
    ),
    Case(
        "03",
        "compiled-and-thrown-away",
        "Some convolutions of the training step were compiled by XLA, some were not",
        (
            (
                "    loss, gradients = compute_gradients(model, images, labels)\n",
                "    tf.function(compute_gradients, jit_compile=True)(model, images, labels)\n"
                "    loss, gradients = compute_gradients(model, images, labels)\n",
            ),
        ),
        runs="watch",
    ),
    Case(
        "03",
        "labels-turned",
        "The first step's loss is",
        (
            COMPILED,
            ("compute_loss(labels,", "compute_loss(9 - labels,"),
        ),
    ),
]

# --- 04 ---

OPTIONS = between("04", "    gpus = tf.config.list", '    parser.add_argument("--results"')
RESULTS_OPTION = '    parser.add_argument("--results",'
SWITCH = (  # another way than ours
    ("WARMUP = 10", 'XLA_ON = "on"\nWARMUP = 10'),
    ("def train_step(model, optimizer, images, labels):", "def train_step(*parts, xla):"),
    (
        "    loss, gradients = compute_gradients(model, images, labels)\n",
        "    model, optimizer, images, labels = parts\n"
        "    compute = compute_gradients if xla else compute_gradients.python_function\n"
        "    loss, gradients = compute(model, images, labels)\n",
    ),
    (RESULTS_OPTION, OPTIONS + RESULTS_OPTION),
)


def window(
    fetch: str = "inside",
    marker: bool = True,
    last: str = "last",
    recorded: str = "first <= step <= last",
) -> tuple[Patch, ...]:
    """A right solution written in another way than ours, with what can be wrong about it."""
    before = "        images, labels = fetch_batch(batches)\n"
    trace = (
        "tf.profiler.experimental.Trace('train', step_num=step, _r=1)"
        if marker
        else "contextlib.nullcontext()"
    )
    step = "        if args.logdir and step == first:\n"
    step += "            tf.profiler.experimental.start(str(args.logdir))\n"
    step += before if fetch == "outside" else ""
    step += f"        with {trace}:\n"
    step += f"    {before}" if fetch == "inside" else ""
    step += f"            {STEP_CALL.replace('labels', 'labels, xla=args.xla == XLA_ON')}\n"
    end = f"        kind = 'profiled' if args.logdir and {recorded} else 'timed'\n"
    end += "        log_step(args, history, step, loss, time.perf_counter() - start, kind)\n"
    end += f"        if args.logdir and step == {last}:\n"
    end += "            tf.profiler.experimental.stop()\n"
    return (
        *SWITCH,
        (LOOP, f"    first, last = args.profile_steps\n{LOOP}"),
        (f"{before}        {STEP_CALL}  # float() waits for the device\n", step),
        ("        log_step(args, history, step, loss, time.perf_counter() - start)\n", end),
    )


STOPPED = ("            tf.profiler.experimental.stop()\n", "            pass\n")
DECORATED = "@tf.function(jit_compile=True)\n"
IN_04 = [
    Case("04", "own", whole=own("04")),
    Case("04", "plain-ifs", patches=window(), runs="step steps watch"),
    Case("04", "no-markers", "no step markers", window(marker=False), runs="watch"),
    Case("04", "not-the-roots", "no step times", (*window(), (", _r=1", "")), runs="watch"),
    Case("04", "never-stopped", "nothing was written", (*window(), STOPPED), runs="watch"),
    Case(
        "04",
        "one-too-many",
        "markers for steps 11, 12, 13, 14, 15",
        window(last="last + 1"),
        runs="watch",
    ),
    Case("04", "fetched-outside", "outside the step marker", window(fetch="outside"), runs="watch"),
    Case("04", "recorded-steps-count", "must not count", window(recorded="False"), runs="watch"),
    Case(
        "04",
        "xla-always-on",
        "With --xla off: XLA compiled",
        (*window(), (" if xla else compute_gradients.python_function", "")),
        runs="steps",
    ),
    Case(
        "04",
        "xla-always-off",
        "With --xla on: No convolution's gradient was compiled",
        (*window(), (DECORATED, "@tf.function\n")),
        runs="step",
    ),
    Case(
        "04",
        "default-turned",
        "Without --xla, on a ",
        (*window(), ('"on" if gpus else "off"', '"off" if gpus else "on"')),
        runs="watch",
    ),
]

# --- 05 ---

LAST_LAYER = ("keras.layers.Dense(10)", 'keras.layers.Dense(10, dtype="float32")')
MODEL = "    model = MNISTClassifier()\n"
SET_POLICY = "    keras.mixed_precision.set_dtype_policy(args.precision)\n"
ADAM = "keras.optimizers.Adam(args.lr * hvd.size())"
LAYERS = (  # each layer's own policy, and the optimizer's own scaling: another way than ours
    (MODEL, MODEL.replace("()", "(args.precision)")),
    ("    def __init__(self):\n", "    def __init__(self, kind):\n"),
    ("Conv2D(32, 3,", "Conv2D(32, 3, dtype=kind,"),
    ("Conv2D(64, 3,", "Conv2D(64, 3, dtype=kind,"),
    ("MaxPooling2D(2)", "MaxPooling2D(2, dtype=kind)"),
    ("Dropout(0.25)", "Dropout(0.25, dtype=kind)"),
    ("Dense(128,", "Dense(128, dtype=kind,"),
    ("Dropout(0.5)", "Dropout(0.5, dtype=kind)"),
    (
        f"    optimizer = {ADAM}",
        '    scale = 1024.0 if args.precision == "mixed_float16" else None\n'
        f"    optimizer = {ADAM[:-1]}, loss_scale_factor=scale)",
    ),
)
MIXED = {
    "option": (
        "def parse_args():\n",
        between("05", "def best_precision", "def parse_args"),
    ),
    "asked": (
        '    parser.add_argument("--xla"',
        between("05", "    kinds = ", '    parser.add_argument("--xla"'),
    ),
    "last": LAST_LAYER,
    "policy": (MODEL, SET_POLICY),
    "scaled": (
        "    optimizer.build(",
        '    if args.precision == "mixed_float16":\n'
        "        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)\n",
    ),
    "loss": (
        "    return loss, tape.gradient(loss,",
        "        scaled = optimizer.scale_loss(loss)\n    return loss, tape.gradient(scaled,",
    ),
    "argument": ("def compute_gradients(model,", "def compute_gradients(model, optimizer,"),
    "passed": ("compute(model, images", "compute(model, optimizer, images"),
}
KEPT = ("option", "asked", "policy", "scaled")  # these stand before what they name


def mixed(*left_out: str, **changed: tuple[str, str]) -> tuple[Patch, ...]:
    """A right solution without some of its parts, or with a change to them."""
    made = []
    for name, (old, new) in MIXED.items():
        if name in changed:
            assert changed[name][0] in new, f"{name}: {changed[name][0]}"
            new = new.replace(*changed[name])
        if name not in left_out:
            made.append((old, new + old if name in KEPT else new))
    return tuple(made)


IN_05 = [
    Case("05", "own", whole=own("05")),
    Case(
        "05",
        "policies-of-layers",
        patches=(*mixed("policy", "scaled"), *LAYERS),
        runs="step few watch",
    ),
    Case(
        "05",
        "policy-too-late",
        "With --precision mixed_bfloat16 the convolutions of the training step ran in float32",
        (*mixed("policy"), ("    model(x_test", f"{SET_POLICY}    model(x_test")),
        runs="step",
    ),
    Case(
        "05",
        "weights-in-16-bit",
        "must stay float32",
        mixed(policy=("args.precision", 'args.precision.replace("mixed_", "")')),
    ),
    Case("05", "logits-in-16-bit", "logits are bfloat16", mixed("last"), runs="step"),
    Case("05", "float16-not-scaled", "without loss scaling", mixed("scaled"), runs="few"),
    Case("05", "scale-loss-forgotten", "scale_loss was never called", mixed("loss"), runs="few"),
    Case(
        "05",
        "bfloat16-scaled",
        "needs no loss scaling",
        mixed(scaled=('== "mixed_float16"', '!= "float32"')),
        runs="step",
    ),
    Case(
        "05",
        "one-kind-only",
        "With --precision mixed_float16 the convolutions of the training step ran in bfloat16",
        mixed(policy=("args.precision", 'args.precision.replace("_float", "_bfloat")')),
        runs="few",
    ),
    Case(
        "05",
        "default-turned",
        "Without --precision the convolutions ran in",
        mixed(
            asked=(
                "default=best_precision(gpus)",
                'default="mixed_bfloat16" if best_precision(gpus) == "float32" else "float32"',
            )
        ),
        runs="watch",
    ),
]

# --- 06 ---

CORE = {
    "data": (
        between("05", "def make_batches", "class MNISTClassifier"),
        between("06", "def shuffle", "class MNISTClassifier"),
    ),
    "there": (
        "    batches = make_batches(args, x_train, y_train)\n",
        "    batches = [tf.constant(part) for part in (x_train, y_train)]\n",
    ),
    "steps": (
        "def train_loop(",
        "@tf.function\n" + between("06", "def train_steps", "def train_loop") + "def train_loop(",
    ),
    "loop": (
        between("05", LOOP.replace("    for", "        for"), "def evaluate("),
        """        while len(history) < args.steps:
            step = len(history)
            epoch, i_batch = divmod(step, args.steps_per_epoch)
            ends = (WARMUP, step - i_batch + args.steps_per_epoch, args.steps)
            count = min(args.steps_per_call, *(end - step for end in ends if end > step))
            start = time.perf_counter()
            if i_batch == 0:
                order = shuffle(args, batches, epoch)
            span = [*tf.constant([i_batch, count]), args.xla == "on"]
            losses = train_steps(model, optimizer, batches, order, *span).numpy().tolist()
            step_time = (time.perf_counter() - start) / count
            for i, loss in enumerate(losses):
                log_step(args, history, step + i, loss, step_time)


""",
    ),
    "option": (
        '    parser.add_argument("--logdir"',
        """    parser.add_argument("--steps-per-call", type=int, default=10)
    parser.add_argument("--logdir\"""",
    ),
}


def core(**changed: tuple[str, str]) -> tuple[Patch, ...]:
    """The exercise's solution, with a change to some of its parts."""
    made = dict(CORE)
    for name, (old, new) in changed.items():
        assert old in made[name][1], f"{name}: {old}"
        made[name] = (made[name][0], made[name][1].replace(old, new))
    return tuple(made.values())


WHILE = (
    between("06", "    for i in range(count)", "\n\n\n"),
    """    def body(i, losses):
        images, labels = fetch_batch(data, order, first + i)
        return i + 1, losses.write(i, train_step(model, optimizer, images, labels, xla))

    return tf.while_loop(lambda i, losses: i < count, body, (0, losses))[1].stack()""",
)
FROM_HOST = (
    "train_steps(model, optimizer, batches,",
    "train_steps(model, optimizer, [part.numpy() for part in batches],",
)
BY_PYTHON = (
    "        images, labels = fetch_batch(data, order, first + i)\n",
    """        images, labels = fetch_batch(data, order, first + i)
        there = tf.numpy_function(lambda array: array, [images], tf.float32)
        images = tf.ensure_shape(there, images.shape)
""",
)

IN_06 = [
    Case("06", "own", whole=own("06")),
    Case("06", "a-while-loop", patches=core(steps=WHILE), runs="steps epochs watch"),
    Case(
        "06",
        "one-a-call",
        "a call should run several",
        core(loop=("args.steps_per_call", "1")),
        runs="watch",
    ),
    Case(
        "06",
        "option-unused",
        "more steps than requested",
        core(loop=("args.steps_per_call", "args.steps")),
        runs="watch",
    ),
    Case("06", "from-the-host", "came from the host", core(loop=FROM_HOST), runs="watch"),
    Case(
        "06", "by-python", "call Python from within the graph", core(steps=BY_PYTHON), runs="watch"
    ),
    Case(
        "06",
        "one-batch-a-call",
        "An epoch does not use each image once",
        core(steps=("order, first + i)", "order, first)")),
        runs="epochs",
    ),
    Case(
        "06",
        "one-order",
        "in the same order",
        core(loop=("batches, epoch)", "batches, 0)")),
        runs="epochs",
    ),
    Case(
        "06",
        "from-an-iterator",
        "tf.data iterator",
        (
            (
                CORE["steps"][0],
                CORE["steps"][1].replace("fetch_batch(data, order, first + i)", "next(data)"),
            ),
            (CORE["loop"][0], CORE["loop"][1].replace("shuffle(args, batches, epoch)", "0")),
            CORE["option"],
        ),
        runs="watch",
    ),
    Case(
        "06",
        "trained-once-a-call",
        "the optimizer made",
        core(
            steps=(
                "losses = losses.write(i, train_step(model, optimizer, images, labels, xla))",
                """loss = forward_pass(model, images, labels)
        if i == 0:
            train_step(model, optimizer, images, labels, xla)
        losses = losses.write(i, loss)""",
            )
        ),
        runs="watch",
    ),
]

# --- scripts that misbehave ---

MAIN = "    args = parse_args()\n"


def at_start(line: str) -> tuple[Patch, ...]:
    return (*CACHED, (MAIN, f"{MAIN}    {line}\n"))


def at_end(line: str) -> tuple[Patch, ...]:
    end = "    sys.exit(130 if args.interrupted else 0)"
    return (*CACHED, (end, f"    {line}\n{end}"))


ODD = [
    Case(
        "02",
        "fails-in-the-graph",
        "It stops with NameError: name 'los' is not defined",
        (GRAPH, ("    return compute_loss(labels,", "    return los(labels,")),
    ),
    Case(
        "02",
        "loss-left-a-tensor",
        "A loss is still a tensor",
        (GRAPH, (STEP_CALL, "loss = train_step(model, optimizer, images, labels)")),
    ),
    Case(
        "01",
        "batches-run-out",
        "The batches ran out",
        whole=own("01").replace("dataset.repeat().prefetch", "dataset.prefetch"),
    ),
    Case(
        "01",
        "fails-in-a-layer",
        'It stops with ValueError: Input 0 of layer "conv2d',
        (("self.conv_1(images)", "self.conv_1(images[0])"),),
    ),
    Case("01", "syntax-error", "Syntax error in line 1: ", whole="def train(:\n"),
    Case("01", "not-text", "Python cannot read it", whole="x = 1\0\n"),
    Case("01", "empty", "ends before it trains", whole=""),
    Case("01", "exception", "ZeroDivisionError: division by zero", at_start("1 / 0")),
    Case(
        "01",
        "endless",
        "did not end within 10 s",
        at_start("while True: time.sleep(0.1)"),
        options=("--quick", "--limit", "10"),
    ),
    Case("01", "exits-at-once", "ended by itself, with status 0", at_start("os._exit(0)")),
    Case("01", "killed", "killed by SIGKILL", at_start("os.kill(os.getpid(), signal.SIGKILL)")),
    Case(
        "01",
        "megabytes",
        "printed more than 5 MB",
        at_start("[print('x' * 1000) for _ in range(10**8)]"),
    ),
    Case("01", "deletes-its-results", "no results file", at_end("args.results.unlink()")),
    Case(
        "01",
        "logs-nothing",
        "logs 0 lines for 1 steps",
        at_start("logging.disable(logging.CRITICAL)"),
    ),
    Case(
        "01",
        "closes-its-output",
        "logs 0 lines for 1 steps",
        at_start("os.close(1); os.open(os.devnull, os.O_WRONLY)"),
    ),
    Case("01", "forks", "call log_step() once for each step", at_start("os.fork()")),
    Case(
        "01",
        "leaves-and-deletes-its-folder",
        "",
        at_end("import shutil; shutil.rmtree(Path.cwd()); os.chdir('/')"),
        runs="step steps",
    ),
]

# --- timed ---

ONCE = ("--repeats", "1")
TIMED = [
    Case("02", "clock-does-not-wait", "Your clock misses time", NO_WAIT, options=ONCE, runs="time"),
    Case("02", "timed", "", (GRAPH,), options=ONCE, runs="time"),
]


# --- running them ---


def call(words: str, my: Path, name: str = "said", runs: list[str] | None = None) -> dict:
    threads = {} if runs == ["time"] else {"TF_NUM_INTRAOP_THREADS": "1"}  # two jobs, two cores
    env = stage_environment(WORKSHOP_MY=str(my), **threads)
    out, err = (str(my / f"{name}.{kind}") for kind in ("out", "err"))
    return {"words": words.split(), "env": env, "out": out, "err": err, "runs": runs}


def job_of(case: Case, my: Path) -> list[dict]:
    file = my / case.number / "train_MNIST.py"
    file.parent.mkdir(parents=True)
    file.write_text(case.text())
    words = f"check {case.number} {' '.join(case.options)}"
    return [call(words, my, runs=case.runs.split())]


def walk_of(number: str, my: Path) -> list[dict]:
    """What the READMEs say to type, before anything is edited."""
    my.mkdir()
    lines = (f"exercise {number}", f"check {number}", f"check {number} --hint", "check")
    runs = {"01": ["step", "watch"], "02": ["watch"], "03": ["watch"]}.get(number)
    return [call(line, my, str(i), runs) for i, line in enumerate(lines)]


@pytest.fixture(scope="session")
def ran(mnist: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Runs the selected cases, and gives what each call of one came to."""
    names = {item.name.partition("[")[2].rstrip("]") for item in request.session.items}
    folder = tmp_path_factory.mktemp("my")
    first = sorted(CASES, key=lambda case: case.name != "own")  # the others use what these find
    jobs = {str(c): job_of(c, folder / str(c)) for c in first if str(c) in names}
    jobs |= {n: walk_of(n, folder / n) for n in NUMBERS if n in names}
    file = folder / "jobs.json"
    file.write_text(json.dumps(list(jobs.values())))
    scratch = folder / "tmp"
    scratch.mkdir()
    env = {**stage_environment(), **trial.environment(), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "tests.forked", str(file)]
    subprocess.run(command, cwd=ROOT, env=env, check=True, timeout=3600)

    def ended(name: object) -> list[subprocess.CompletedProcess[str]]:
        return [
            subprocess.CompletedProcess(
                one["words"],
                int(Path(one["out"]).with_suffix(".status").read_text()),
                Path(one["out"]).read_text(),
                Path(one["err"]).read_text(),
            )
            for one in jobs[str(name)]
        ]

    ended.left = [path.name for path in scratch.iterdir()]
    return ended


CASES = [*IN_01, *IN_02, *IN_03, *IN_04, *IN_05, *IN_06, *ODD, *TIMED]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_check_says(case: Case, ran) -> None:
    (ended,) = ran(case)
    told = " ".join(ended.stdout.split())
    assert "Traceback" not in ended.stdout + ended.stderr, ended.stderr
    assert not ended.stderr, ended.stderr
    if not case.said:
        assert ended.returncode == 0, told
        assert f"Exercise {case.number} " in told
    else:
        assert ended.returncode == 1, told
        assert case.said in told, told
        assert f"A hint: ./workshop check {case.number} --hint" in told
    assert max(map(len, ended.stdout.splitlines())) <= 100


def test_checks_leave_nothing_behind(ran) -> None:
    assert not ran.left


def workshop(*words: str, my: Path) -> subprocess.CompletedProcess[str]:
    """./workshop in this process, for what starts no script."""
    out, err = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict(os.environ, WORKSHOP_MY=str(my)),
    ):
        try:
            status = tools_main.main(list(words))
        except SystemExit as end:
            status = end.code
    signal.signal(signal.SIGTERM, handler)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


UNEDITED = {
    "01": "the data file was opened 17 times",
    "02": "No graph ran",
    "03": "No convolution's gradient was compiled by XLA",
    "04": "unrecognized arguments: --xla on",
    "05": "unrecognized arguments: --precision mixed_bfloat16",
    "06": "unrecognized arguments: --steps-per-call 3",
}


# --- ./workshop exercise ---


@pytest.mark.parametrize("number", NUMBERS)
def test_the_walk_of_an_exercise(number: str, ran) -> None:
    walked = ran(number)
    assert [ended.stderr for ended in walked] == [""] * 4
    assert [ended.returncode for ended in walked] == [0, 1, 0, 0]
    started, checked, hinted, card = (" ".join(ended.stdout.split()) for ended in walked)
    assert " a copy of 0" in started
    assert "Not yet: " in checked and UNEDITED[number] in checked, checked
    assert f"A hint: ./workshop check {number} --hint" in checked
    assert "Hint 1 of " in hinted
    assert re.search(rf"{number} (16 )?\D+ not yet", card), card
    assert "0 of 6 passed. Next: " in card, card


def test_exercise_copies_the_previous_script_with_the_task_on_top(tmp_path: Path) -> None:
    for stage in EXERCISES:
        ended = workshop("exercise", stage.number.lstrip("0"), my=tmp_path)
        assert ended.returncode == 0, ended.stderr
        task, _ = parts(stage)
        text = (tmp_path / stage.number / "train_MNIST.py").read_text()
        assert text.endswith(previous(stage).script.read_text())
        assert text.startswith(f"# Exercise {stage.number}")
        assert all(line in ended.stdout for line in task.splitlines()[1:])
        assert f"./workshop check {stage.number}" in ended.stdout
        for line in [*ended.stdout.splitlines(), *text.splitlines()]:
            assert len(line) <= 100 or str(tmp_path) in line, line
    assert (tmp_path / "data").is_symlink()
    assert (tmp_path / "data").resolve() == (ROOT / "data").resolve()
    assert not (tmp_path / "data").readlink().is_absolute()


def test_exercise_runs_where_it_is(small: Path, tmp_path: Path) -> None:
    assert workshop("exercise", "02", my=tmp_path).returncode == 0
    (tmp_path / "data").unlink()  # a link to our own
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist.npz").symlink_to(small)
    ended = subprocess.run(
        [sys.executable, "train_MNIST.py", "--steps", "2"],
        cwd=tmp_path / "02",
        env=stage_environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "(0, 1), Loss: " in ended.stdout


def test_exercise_never_overwrites(tmp_path: Path) -> None:
    file = tmp_path / "02" / "train_MNIST.py"
    for content, options, aside in (
        ("mine", [], None),
        ("mine", ["--fresh"], "train_MNIST.1.py"),
        ("mine too", ["--fresh"], "train_MNIST.2.py"),
    ):
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        ended = workshop("exercise", "02_tf_function", *options, my=tmp_path)
        assert ended.returncode == 0 and "What to change" in ended.stdout
        if aside is None:
            assert file.read_text() == content and "was not changed" in ended.stdout
        else:
            assert (file.parent / aside).read_text() == content and aside in ended.stdout
            assert "Exercise 02" in file.read_text()
    assert (file.parent / "train_MNIST.1.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exercise", "00"], "00 has no exercise"),
        (["exercise", "7"], "no exercise 07"),
        (["exercise", "fast"], "no exercise fast"),
        (["check", "0"], "00 has no exercise"),
        (["check", "03"], "Type: ./workshop exercise 03"),
        (["check", "--hint"], "--hint needs the number"),
        (["check", "02", "--repeats", "0"], "0 is no whole number"),
    ],
)
def test_bad_words_get_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    ended = workshop(*words, my=tmp_path)
    assert ended.returncode in (1, 2)
    assert said in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr and not ended.stdout
    assert not list(tmp_path.iterdir())


# --- the tasks ---


def names_in(text: str) -> list[str]:
    """What stands in backticks, without arguments."""
    return [name.split("(")[0].lstrip("@") for name in re.findall(r"`([^`]+)`", text)]


@pytest.mark.parametrize("number", NUMBERS)
def test_what_a_task_names_is_there(number: str) -> None:
    import keras
    import tensorflow as tf

    stage = find_stage(number)
    before, after = previous(stage).script.read_text(), stage.script.read_text()
    task, hints = parts(stage)
    assert len(hints) >= 3 and "{" not in task
    assert len(names_in(task)) >= 2
    for where, text in ((before, task), (before + after, " ".join(hints))):
        for name in names_in(text):
            first, *rest = name.split(".")
            if name.startswith("./workshop "):
                assert name.split()[1] in commands.NAMES, name
            elif first in ("tf", "keras"):
                found: object = {"tf": tf, "keras": keras}[first]
                for part in rest:
                    found = getattr(found, part)
            else:
                assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", where), name


def test_a_task_says_how_many_lines() -> None:
    for stage in EXERCISES:
        said = re.search(r"about (\d+) new lines", parts(stage)[0])
        assert said and abs(int(said[1]) - lines_changed(stage)) <= 2, stage.folder


def test_hints_come_one_at_a_time(tmp_path: Path) -> None:
    _, hints = parts(find_stage("03"))
    for i, hint in enumerate(hints):
        ended = workshop("check", "03", "--hint", my=tmp_path)
        assert ended.returncode == 0
        assert f"Hint {i + 1} of {len(hints)}" in ended.stdout
        assert [h for h in hints if h.splitlines()[0] in ended.stdout] == [hint]
    ended = workshop("check", "03", "--hint", my=tmp_path)
    assert "No more hints" in ended.stdout
    assert all(hint.splitlines()[0] in ended.stdout for hint in hints)


# --- results ---


GOOD = """{"final_loss": 0.5, "test_accuracy": 0.9, "img_per_s": 900.0, "steps_timed": 2,
"warmup_steps": 10}"""


@pytest.mark.parametrize(
    ("there", "made_of_it", "said"),
    [
        (GOOD, "fast", "not JSON"),
        (GOOD, "[1]", "lack all"),
        ('"steps_timed"', '"timed"', "lack steps_timed"),
        ("0.5", "NaN", "final_loss is nan"),
        ("0.9", '"good"', "test_accuracy: good. That is not a number"),
        ("10}", "null}", "warmup_steps: None. That is not a count"),
        ("900.0", "Infinity", "img_per_s: inf. That is not a speed"),
    ],
)
def test_odd_results_get_one_line(there: str, made_of_it: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text(GOOD)
    assert trial.read_results(file, trained=True)["steps_timed"] == 2
    assert there in GOOD
    file.write_text(GOOD.replace(there, made_of_it))
    with pytest.raises(trial.NotYet, match=re.escape(said)):
        trial.read_results(file, trained=True)


def test_results_that_are_no_file_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(trial.NotYet, match="creates a folder"):
        trial.read_results(tmp_path, trained=True)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(trial.NotYet, match="not text"):
        trial.read_results(tmp_path / "bytes", trained=True)


# --- the progress table ---


def keep(file: Path, status: str, speeds: dict[str, float]) -> None:
    attempt = Attempt(file, quick=False, repeats=1, limit=1)
    attempt.status, attempt.speeds = status, speeds
    attempt.keep(digest(file))


def test_the_progress_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKSHOP_MY", str(tmp_path))
    told = {"yours": 600.0, "before": 200.0, "ours": 500.0}
    for number, status, change in (
        ("01", PASSED, False),
        ("02", PASSED, True),
        ("03", NOT_YET, False),
        ("04", RIGHT, False),
        ("05", None, False),
    ):
        file = tmp_path / number / "train_MNIST.py"
        file.parent.mkdir()
        file.write_text("pass\n")
        if status:
            keep(file, status, told if status != NOT_YET else {})
        if change:
            file.write_text("pass  # changed\n")
    (tmp_path / "05" / "check.json").write_text("no JSON")
    ended = workshop("check", my=tmp_path)
    assert ended.returncode == 0 and not ended.stderr
    rows = {line.split()[0]: line for line in ended.stdout.splitlines() if line.strip()}
    for number, said in (
        ("01", "passed"),
        ("02", "changed since it passed"),
        ("03", "not yet"),
        ("04", RIGHT),
        ("05", "started"),
        ("06", "not started"),
    ):
        assert said in rows[number], rows[number]
    assert all(word in rows["01"] for word in ("600", "3.00x", "1.20x"))
    assert "1 of 6 passed. Next: ./workshop check 02" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 100


def test_a_quick_check_forgets_no_speed(tmp_path: Path) -> None:
    file = tmp_path / "train_MNIST.py"
    file.write_text("pass\n")
    keep(file, PASSED, {"yours": 5.0})
    keep(file, RIGHT, {})
    kept = read_kept(file)
    assert kept["status"] == PASSED and kept["speeds"] == {"yours": 5.0}


# --- the clock ---


def test_the_wall_clock_reads_steps_and_bursts() -> None:
    steady = [0.1 * i for i in range(40)]
    assert timing.wall_speed(steady) == pytest.approx(640)
    bursts = [1.0 * (i // 10) + 0.0001 * (i % 10) for i in range(40)]  # ten steps a call
    assert timing.wall_speed(bursts) == pytest.approx(640, rel=0.01)
    long = [1.0 * (i // 15) for i in range(45)]  # a call goes past the warm-up
    assert timing.wall_speed(long) == pytest.approx(64 * 15)


def test_a_verdict_only_where_it_is_clear() -> None:
    def entry(*speeds: float) -> timing.Entry:
        return timing.Entry("x", Path("x"), speeds=list(speeds))

    assert timing.verdict(entry(3, 4), entry(1, 2)) == "faster"
    assert timing.verdict(entry(1, 2), entry(3, 4)) == "slower"
    assert timing.verdict(entry(1, 4), entry(2, 3)) == "unclear"
    assert timing.far_behind(entry(1, 2), entry(4, 5))
    assert not timing.far_behind(entry(1, 3), entry(4, 5))  # one repeat is near enough


@pytest.mark.parametrize(
    ("number", "speeds", "said"),
    [
        ("02", (400, 500, 900), "It is slower than 01_line_profiler: 0.80x."),
        ("02", (500, 500, 500), "No clear difference in speed: the repeats overlap."),
        ("02", (550, 500, 900), "You can gain more: ours is 1.64x as fast."),
        ("04", (400, 500, 900), "something in it costs time: ours is 2.25x as fast."),
        ("04", (400, 500, 500), "Slower, 0.80x. This exercise is about making the change"),
    ],
)
def test_what_its_speed_means(number, speeds, said, tmp_path: Path, mnist, monkeypatch) -> None:
    """Yours, the stage before, ours: the cases above time real ones."""

    def timed(entries, *_):
        for entry, speed in zip(entries, speeds):
            entry.speeds, entry.claims, entry.accuracies = [speed], [speed], [0.5]

    monkeypatch.setattr(check, "judge_training", lambda *_: False)
    monkeypatch.setattr(timing, "time_in_turns", timed)
    workshop("exercise", number, my=tmp_path)
    ended = workshop("check", number, my=tmp_path)
    told = " ".join(ended.stdout.split())
    assert said in told and ended.returncode == (f"Exercise {number} passed." not in told), told


# --- processes ---


def python(code: str, tmp_path: Path, seconds: float = 20) -> watched.Ended:
    command = [sys.executable, "-c", code]
    *_, ended = watched.follow(command, tmp_path, dict(os.environ), seconds)
    return ended


def test_a_watched_program_cannot_hang_us(tmp_path: Path) -> None:
    began = time.monotonic()
    assert python("import time; time.sleep(60)", tmp_path, 1).timed_out
    closed = "import os, time; os.close(1); os.close(2); time.sleep(60)"
    assert python(closed, tmp_path, 1).timed_out
    left = "import subprocess; print('hi'); subprocess.Popen(['sleep', '60'])"
    ended = python(left, tmp_path)
    assert ended.status == 0 and ended.lines[0][1] == "hi"
    assert python("while True: print('x' * 10000)", tmp_path).flooded
    assert python("while True: print('x' * 10000, end='')", tmp_path).flooded
    assert time.monotonic() - began < 20


def test_ctrl_c_ends_the_script_too(mnist: Path, tmp_path: Path) -> None:
    case = next(case for case in ODD if case.name == "endless")
    file = tmp_path / "my" / case.number / "train_MNIST.py"
    file.parent.mkdir(parents=True)
    started = tmp_path / "started"
    file.write_text(
        case.text().replace("while True:", f"Path('{started}').touch()\n    while True:")
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "tfworkshop", "check", "01", "--quick"],
        cwd=ROOT,
        env=stage_environment(WORKSHOP_MY=str(tmp_path / "my"), TMPDIR=str(scratch)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 120
    while not started.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130 and errors.strip() == "workshop: interrupted"
    assert not [path for path in scratch.iterdir() if not path.name.startswith("ompi.")]  # MPI's
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(str(scratch).encode() in words for words in running)
