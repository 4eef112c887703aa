"""Exercises and their check: right solutions pass, however written; wrong, slow and fake ones fail.

Each is a small patch of the previous stage's real file. They run as an attendee would run them, two
at a time; a test waits for its own.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import stage_environment
from tools import check, commands, timing, trial, watched
from tools.exercise import digest, find_stage, parts, previous
from tools.stages import ROOT, STAGES, lines_changed

NUMBERS = [stage.number for stage in STAGES[1:]]
AT_ONCE = 2
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


# --- pieces of the stages that patches replace ---

STEP_CALL = "loss = float(train_step(model, optimizer, images, labels))"
LOOP = "    for step in range(args.steps):\n"
APPLY = "    optimizer.apply_gradients(zip(gradients, model.trainable_variables))\n"
IMPORT = "import argparse\n"
TRY = "    try:\n        train_loop("
ADAM = "keras.optimizers.Adam(args.lr * hvd.size())"
PROFILED_STEP = "@profile\ndef train_step("
TIMES = "        history.times.append(step_time)\n"
LOGDIR = """    parser.add_argument("--logdir", type=Path, default="logs")
    parser.add_argument("--profile-steps", type=int, nargs=2, default=[10, 20])
    parser.add_argument("--results","""

# --- 01 ---

HANDED_ON = (
    ("def fetch_batch(args, epoch, i_batch):", "def fetch_batch(args, arrays, epoch, i_batch):"),
    (
        "    x_train, _, y_train, _ = get_dataset(args.data)\n    # H",
        "    x_train, y_train = arrays\n    # H",
    ),
    ("= fetch_batch(args, epoch, i_batch)", "= fetch_batch(args, args.arrays, epoch, i_batch)"),
    (TRY, f"    args.arrays = x_train, y_train\n{TRY}"),
)
CACHED = (
    (IMPORT, f"import functools\n{IMPORT}"),
    ("def get_dataset(", "@functools.lru_cache(maxsize=None)\ndef get_dataset("),
)
ZIP_KEPT_OPEN = (
    (IMPORT, f"import functools\n{IMPORT}"),
    ("def get_dataset(", "open_file = functools.lru_cache(np.load)\n\n\ndef get_dataset("),
    (
        "        with np.load(path) as file:\n            x_train,",
        "        with contextlib.nullcontext(open_file(path)) as file:\n            x_train,",
    ),
    ("import json\n", "import contextlib\nimport json\n"),
)
SAME_BATCH = (
    "order[i_batch * args.batch_size : (i_batch + 1) * args.batch_size]",
    "np.arange(args.batch_size)",
)

IN_ORDER = (SAME_BATCH[0], f"np.arange(len(order))[{SAME_BATCH[0].removeprefix('order[')}")
EACH_ONCE = "An epoch does not show each image once"

IN_01 = [
    Case("01", "own", whole=own("01")),
    Case("01", "always-the-same-batch", EACH_ONCE, (*HANDED_ON, SAME_BATCH)),
    Case("01", "never-shuffled", "in the same order", (*HANDED_ON, IN_ORDER)),
    Case("01", "arrays-handed-on", patches=HANDED_ON),
    Case("01", "zip-kept-open", "arrays were read", ZIP_KEPT_OPEN),
    Case("01", "updated-twice", "2.00x as far", (*CACHED, (APPLY, APPLY + APPLY))),
    Case(
        "01",
        "evaluation-faked",
        "reports a test accuracy of 99.0 %",
        (*CACHED, ("return right / len(x_test)", "return 0.99")),
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
    (
        STEP_CALL
        + "  # float() waits for the device\n        step_time = time.perf_counter() - start\n",
        "loss = train_step(model, optimizer, images, labels)\n"
        "        step_time = time.perf_counter() - start\n        loss = float(loss)\n",
    ),
    (
        "    hvd.init()\n    args",
        "    hvd.init()\n    tf.config.experimental.set_synchronous_execution(False)\n    args",
    ),
)

IN_02 = [
    Case(
        "02",
        "every-other-step",
        "called 6 times for 12 steps",
        (
            GRAPH,
            (
                STEP_CALL,
                f"""step_made = train_step if step % 2 else train_step.python_function
        {STEP_CALL.replace("train_step", "step_made")}""",
            ),
        ),
    ),
    Case("02", "own", whole=own("02")),
    Case("02", "closure", patches=CLOSURE),
    Case(
        "02",
        "unused",
        "No graph ran",
        ((PROFILED_STEP, "@tf.function\ndef never(x):\n    return x\n\n\ndef train_step("),),
    ),
    Case(
        "02",
        "forward-only",
        "forward pass only",
        (("@profile\ndef forward_pass", "@tf.function\ndef forward_pass"),),
    ),
    Case(
        "02",
        "without-update",
        "not the update",
        (("@profile\ndef compute_gradients", "@tf.function\ndef compute_gradients"),),
    ),
    Case(
        "02",
        "python-number",
        "traced 12 times",
        (
            GRAPH,
            (
                "def train_step(model, optimizer, images, labels)",
                "def train_step(model, optimizer, images, labels, step)",
            ),
            (STEP_CALL, STEP_CALL.replace("labels", "labels, step")),
        ),
    ),
    Case(
        "02",
        "no-dropout",
        "Dropout is lost",
        (GRAPH, ("model(images, training=True)", "model(images, training=False)")),
    ),
    Case(
        "02",
        "weaker-dropout",
        "dropout rates are 0.1 and 0.25",
        (GRAPH, ("Dropout(0.5)", "Dropout(0.1)")),
    ),
    Case(
        "02",
        "evaluated-with-dropout",
        "without dropout",
        (GRAPH, ("training=False)\n        right", "training=True)\n        right")),
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
    ),
    Case(
        "03",
        "whole-step",
        "The update is compiled too",
        (("@tf.function\ndef train_step", "@tf.function(jit_compile=True)\ndef train_step"),),
    ),
    Case(
        "03",
        "forward-pass-only",
        "Forward pass and gradients were compiled apart",
        (("def forward_pass", "@tf.function(jit_compile=True)\ndef forward_pass"),),
    ),
    Case("03", "beside-the-step", "No convolution's gradient was compiled", (BESIDE,)),
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
    ),
    Case("03", "only-claimed", "compiled by XLA", (("XLA = False", "XLA = True"),)),
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


def window(
    fetch: str = "inside",
    marker: bool = True,
    last: str = "last",
    counts: str = "not first <= step <= last",
) -> tuple[Patch, ...]:
    """A right solution written in another way than ours, with what can be wrong about it."""
    before = "        images, labels = fetch_batch(batches)\n"
    trace = (
        "tf.profiler.experimental.Trace('train', step_num=step, _r=1)"
        if marker
        else "contextlib.nullcontext()"
    )
    step = (
        "        if step == first:\n            tf.profiler.experimental.start(str(args.logdir))\n"
    )
    step += before if fetch == "outside" else ""
    step += f"        with {trace}:\n"
    step += f"    {before}" if fetch == "inside" else ""
    step += f"            {STEP_CALL}\n"
    end = f"        if {counts}:\n            history.times.append(step_time)\n"
    end += f"        if step == {last}:\n            tf.profiler.experimental.stop()\n"
    return (
        (IMPORT, f"{IMPORT}import contextlib\n"),
        (LOOP, f"    first, last = args.profile_steps\n{LOOP}"),
        (f"{before}        {STEP_CALL}  # float() waits for the device\n", step),
        (TIMES, end),
        ('    parser.add_argument("--results",', LOGDIR),
    )


STOPPED = ("            tf.profiler.experimental.stop()\n", "            pass\n")
IN_04 = [
    Case("04", "own", whole=own("04")),
    Case("04", "plain-ifs", patches=window()),
    Case("04", "no-markers", "no step markers", window(marker=False)),
    Case("04", "not-the-roots", "no step times", (*window(), (", _r=1", ""))),
    Case("04", "never-stopped", "nothing was written", (*window(), STOPPED)),
    Case(
        "04",
        "one-too-many",
        "markers of steps 5, 6, 7, 8, 9, 10",
        window(last="min(last + 1, args.steps - 1)"),
    ),
    Case("04", "fetched-outside", "outside the step marker", window(fetch="outside")),
    Case("04", "recorded-steps-count", "must not count", window(counts="True")),
    Case("04", "never-recorded", "no profile to read", (window()[-1],)),
]

# --- 05 ---

POLICY = "    model = MNISTClassifier()\n"
LAST_LAYER = ("keras.layers.Dense(10)", 'keras.layers.Dense(10, dtype="float32")')
LAYERS = (
    ("Conv2D(32, 3,", 'Conv2D(32, 3, dtype="mixed_bfloat16",'),
    ("Conv2D(64, 3,", 'Conv2D(64, 3, dtype="mixed_bfloat16",'),
    ("MaxPooling2D(2)", 'MaxPooling2D(2, dtype="mixed_bfloat16")'),
    ("Dropout(0.25)", 'Dropout(0.25, dtype="mixed_bfloat16")'),
    ("Dense(128,", 'Dense(128, dtype="mixed_bfloat16",'),
    ("Dropout(0.5)", 'Dropout(0.5, dtype="mixed_bfloat16")'),
    LAST_LAYER,
)


def policy(name: str, after: str = "") -> Patch:
    line = f'    keras.mixed_precision.set_dtype_policy("{name}")\n'
    return (POLICY, line + POLICY + after)


IN_05 = [
    Case("05", "own", whole=own("05")),
    Case("05", "policies-of-layers", patches=LAYERS),
    Case(
        "05",
        "policy-too-late",
        "ran in float32",
        (LAST_LAYER, (TRY, policy("mixed_bfloat16")[1].replace(POLICY, TRY))),
    ),
    Case("05", "weights-in-16-bit", "must stay float32", (policy("bfloat16"), LAST_LAYER)),
    Case("05", "logits-in-16-bit", "logits are bfloat16", (policy("mixed_bfloat16"),)),
    Case("05", "float16-not-scaled", "without loss scaling", (policy("mixed_float16"), LAST_LAYER)),
]

# --- 06 ---

FLOATS = """    x_train, x_test = (x[..., np.newaxis].astype(np.float32) / 255"""
FLOATS += " for x in (x_train, x_test))\n    return x_train,"
BYTES = """    x_test = x_test[..., np.newaxis].astype(np.float32) / 255
    return x_train[..., np.newaxis],"""
DATASET = """    dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    dataset = dataset.shuffle(len(x_train), seed=args.seed, reshuffle_each_iteration=True)
    dataset = dataset.batch(args.batch_size, drop_remainder=True).take(args.steps_per_epoch)
    return iter(dataset.repeat().prefetch(tf.data.AUTOTUNE))


def fetch_batch(batches):
    return next(batches)
"""
ON_DEVICE = """    return tf.constant(x_train), tf.constant(y_train)


def shuffle(args, images, epoch):
    order = tf.random.experimental.stateless_shuffle(tf.range(len(images)), [args.seed, epoch])
    wanted = args.steps_per_epoch * args.batch_size
    return tf.reshape(order[:wanted], [args.steps_per_epoch, args.batch_size])


def fetch_batch(data, order, i_batch):
    images, labels = (tf.gather(part, order[i_batch]) for part in data)
    return tf.cast(images, tf.float32) / 255, labels
"""
TRAIN_STEPS = """@tf.function
def train_steps(model, optimizer, data, order, first, count):
    losses = tf.TensorArray(tf.float32, count)
    for i in tf.range(count):
        images, labels = fetch_batch(data, order, first + i)
        losses = losses.write(i, train_step(model, optimizer, images, labels))
    return losses.stack()


# --- loop ---
"""
LOOP_05 = previous(find_stage("06")).script.read_text()
LOOP_05 = LOOP_05[
    LOOP_05.index("        for step in range(args.steps):") : LOOP_05.index("def log_step(")
]
CALLS = """        while len(history.losses) < args.steps:
            step = len(history.losses)
            epoch, i_batch = divmod(step, args.steps_per_epoch)
            ends = (args.warmup, first, last + 1, step - i_batch + args.steps_per_epoch, args.steps)
            count = min(10, *(end - step for end in ends if end > step))
            if step == first and hvd.rank() == 0:  # Horovod: one rank's profile tells enough
                tf.profiler.experimental.start(str(args.logdir))
                window.callback(tf.profiler.experimental.stop)
            start = time.perf_counter()
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                if i_batch == 0:
                    order = shuffle(args, batches[0], epoch)
                span = tf.constant([i_batch, count])
                losses = train_steps(model, optimizer, batches, order, *span).numpy().tolist()
            step_time = (time.perf_counter() - start) / count
            history.losses += losses
            if not first <= step <= last:
                history.times += [step_time] * count
            if step + count > last:
                window.close()
            for i, loss in enumerate(losses):
                log_step(args, step + i, loss, step_time)


"""
CORE = {
    "xla": ("XLA = True", "XLA = False"),
    "bytes": (FLOATS, BYTES),
    "data": (DATASET, ON_DEVICE),
    "steps": ("# --- loop ---\n", TRAIN_STEPS),
    "loop": (LOOP_05, CALLS),
    "precision": ('        return "mixed_bfloat16"\n', '        return "float32"\n'),
}


def core(**changed: tuple[str, str]) -> tuple[Patch, ...]:
    """The exercise's solution, with a change to some of its parts."""
    made = dict(CORE)
    for name, (old, new) in changed.items():
        assert old in made[name][1], f"{name}: {old}"
        made[name] = (made[name][0], made[name][1].replace(old, new))
    return tuple(made.values())


WHILE = (
    TRAIN_STEPS[TRAIN_STEPS.index("    for i in") : TRAIN_STEPS.index("\n\n\n")],
    """    def body(i, losses):
        images, labels = fetch_batch(data, order, first + i)
        return i + 1, losses.write(i, train_step(model, optimizer, images, labels))

    return tf.while_loop(lambda i, losses: i < count, body, (0, losses))[1].stack()""",
)
FROM_HOST = (
    "train_steps(model, optimizer, batches, order, *span)",
    "train_steps(model, optimizer, tuple(part.numpy() for part in batches), order, *span)",
)
BY_PYTHON = (
    "    return tf.cast(images, tf.float32) / 255, labels",
    """    there = tf.numpy_function(lambda array: array, [images], tf.uint8)
    return tf.cast(tf.ensure_shape(there, images.shape), tf.float32) / 255, labels""",
)
ITERATED = """@tf.function
def train_steps(model, optimizer, batches, order, first, count):
    losses = tf.TensorArray(tf.float32, count)
    for i in tf.range(count):
        losses = losses.write(i, train_step(model, optimizer, *next(batches)))
    return losses.stack()


# --- loop ---
"""

IN_06 = [
    Case("06", "own", whole=own("06")),
    Case("06", "fours-in-a-while-loop", patches=core(steps=WHILE, loop=("min(10,", "min(4,"))),
    Case("06", "from-the-host", "came from the host", core(loop=FROM_HOST)),
    Case("06", "by-python", "call Python from within the graph", core(data=BY_PYTHON)),
    Case("06", "one-batch-a-call", EACH_ONCE, core(steps=("order, first + i)", "order, first)"))),
    Case("06", "one-order", "in the same order", core(loop=("[0], epoch)", "[0], 0)"))),
    Case(
        "06",
        "from-an-iterator",
        "tf.data iterator",
        (
            CORE["xla"],
            CORE["precision"],
            ("# --- loop ---\n", ITERATED),
            (LOOP_05, CALLS.replace("order = shuffle(args, batches[0], epoch)", "order = 0")),
        ),
    ),
    Case(
        "06",
        "trained-once-a-call",
        "the optimizer made",
        core(
            steps=(
                "        losses = losses.write(i, train_step(model, optimizer, images, labels))",
                """        loss = forward_pass(model, images, labels)
        if i == 0:
            train_step(model, optimizer, images, labels)
        losses = losses.write(i, loss)""",
            )
        ),
    ),
    Case(
        "06",
        "not-divided",
        "The first step's loss is",
        core(data=("tf.cast(images, tf.float32) / 255", "tf.cast(images, tf.float32)")),
    ),
]

# --- scripts that misbehave ---

MAIN = "def main():\n    hvd.init()\n"


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
        "did not end within 20 s",
        at_start("while True: time.sleep(0.1)"),
        options=("--quick", "--limit", "20"),
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
    Case("01", "forks", "logs 2 lines for 1 steps", at_start("os.fork()")),
    Case(
        "01",
        "leaves-and-deletes-its-folder",
        "",
        at_end("import shutil; shutil.rmtree(Path.cwd()); os.chdir('/')"),
    ),
]

QUICK = [*IN_01, *IN_02, *IN_03, *IN_04, *IN_05, *IN_06, *ODD]

# --- timed ---

ONCE = ("--repeats", "1")
SLEEPS = (STEP_CALL, f"time.sleep(step > 12); {STEP_CALL}")  # only where it is timed
FAR_BEHIND = "It did the thing, but something in it costs time"
LONG_SLEEPS = (
    "                span = ",
    "                time.sleep(3 * (step > 12))\n                span = ",
)
TIMED = [
    Case("01", "slow", "slower than 00_baseline", (*HANDED_ON, SLEEPS), options=ONCE),
    Case("02", "slow", "slower than 01_line_profiler", (GRAPH, SLEEPS), options=ONCE),
    Case("03", "slow", FAR_BEHIND, (COMPILED, SLEEPS), options=ONCE),
    Case("04", "slow", FAR_BEHIND, (*window(), SLEEPS), options=ONCE),
    Case(
        "05",
        "slow",
        FAR_BEHIND,
        (LAST_LAYER, policy("mixed_bfloat16"), SLEEPS),
        options=ONCE,
    ),
    Case("06", "slow", "slower than 05_reduced", core(loop=LONG_SLEEPS), options=ONCE),
    Case("02", "clock-does-not-wait", "Your clock misses time", NO_WAIT, options=ONCE),
]
QUIET = [Case("06", "core-timed", "", core(), options=ONCE)]  # the others need no quiet


@pytest.fixture(scope="session")
def running(mnist: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Starts the selected cases, a few at a time; one whose speed matters waits for its turn."""
    names = {item.name for item in request.session.items}
    folder = tmp_path_factory.mktemp("my")
    cache = {"WORKSHOP_CACHE": str(tmp_path_factory.mktemp("cache"))}
    started: dict[str, Future] = {}
    pool = ThreadPoolExecutor(AT_ONCE)
    for number in NUMBERS:
        if f"test_the_walk_of_an_exercise[{number}]" in names:
            started[number] = pool.submit(walk, number, folder / number, cache)
    for case in (*QUICK, *TIMED):
        if any(name.endswith(f"[{case}]") for name in names):
            started[str(case)] = pool.submit(run_case, case, folder / str(case), cache)

    def ended(case: Case | str):
        waiting = started.get(str(case))
        return waiting.result() if waiting else run_case(case, folder / str(case), cache)

    yield ended
    pool.shutdown(cancel_futures=True)


def workshop(*words: str, my: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools", *words],
        cwd=ROOT,
        env=stage_environment(WORKSHOP_MY=str(my), **extra),
        capture_output=True,
        text=True,
        timeout=600,
    )


UNEDITED = {
    "01": "the data file was opened 14 times",
    "02": "No graph ran",
    "03": "No convolution's gradient was compiled by XLA",
    "04": "It ends with exit status 1",
    "05": "ran in float32",
    "06": "24 calls for 24 steps",
}


def walk(number: str, my: Path, cache: dict[str, str]) -> dict[str, subprocess.CompletedProcess]:
    """What the READMEs say to type, before anything is edited."""
    lines = (f"exercise {number}", f"check {number}", f"check {number} --hint", "check")
    return {line: workshop(*line.split(), my=my, **cache) for line in lines}


def run_case(case: Case, my: Path, cache: dict[str, str]) -> subprocess.CompletedProcess[str]:
    file = my / case.number / "train_MNIST.py"
    file.parent.mkdir(parents=True)
    file.write_text(case.text())
    return workshop("check", case.number, *case.options, my=my, **cache)


def judge(case: Case, ended: subprocess.CompletedProcess[str]) -> None:
    told = " ".join(ended.stdout.split())
    assert "Traceback" not in ended.stdout + ended.stderr, ended.stderr
    assert not ended.stderr, ended.stderr
    if not case.said:
        assert ended.returncode == 0, told
        assert f"Exercise {case.number} " in told
        if case.number == "03":
            assert ("set XLA, near the top" in told) == ("XLA = False" in case.text())
    else:
        assert ended.returncode == 1, told
        assert case.said in told, told
        assert f"A hint: ./workshop check {case.number} --hint" in told
    assert max(map(len, ended.stdout.splitlines())) <= 100


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_what_check_says(case: Case, running) -> None:
    judge(case, running(case))


@pytest.mark.parametrize("case", (*TIMED, *QUIET), ids=str)
def test_what_check_says_of_speed(case: Case, running) -> None:
    judge(case, running(case))


# --- ./workshop exercise ---


@pytest.mark.parametrize("number", NUMBERS)
def test_the_walk_of_an_exercise(number: str, running) -> None:
    walked = running(number)
    assert [ended.stderr for ended in walked.values()] == [""] * 4
    assert [ended.returncode for ended in walked.values()] == [0, 1, 0, 0]
    begun, checked, hinted, card = (" ".join(ended.stdout.split()) for ended in walked.values())
    assert "Yours to change: " in begun
    assert "Not yet: " in checked and UNEDITED[number] in checked, checked
    assert f"A hint: ./workshop check {number} --hint" in checked
    assert "Hint 1 of " in hinted
    assert re.search(rf"{number} [^\d]* not yet", card) and "0 of 6 passed. Next: " in card, card


def test_exercise_copies_the_previous_script_with_the_task_on_top(tmp_path: Path) -> None:
    for stage in STAGES[1:]:
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


def test_exercise_runs_where_it_is(mnist: Path, tmp_path: Path) -> None:
    assert workshop("exercise", "02", my=tmp_path).returncode == 0
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
            assert file.read_text() == content and "was not touched" in ended.stdout
        else:
            assert (file.parent / aside).read_text() == content and aside in ended.stdout
            assert "Exercise 02" in file.read_text()
    assert (file.parent / "train_MNIST.1.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["exercise", "00"], "00 has no exercise"),
        (["exercise", "7"], "no stage 07"),
        (["exercise", "fast"], "no stage fast"),
        (["check", "0"], "00 has no exercise"),
        (["check", "03"], "Type: ./workshop exercise 03"),
        (["check", "--hint"], "--hint needs the number"),
        (["check", "02", "--repeats", "0"], "0 is less than 1"),
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
    for stage in STAGES[1:]:
        count = lines_changed(stage) if stage.number != "06" else 40
        said = re.search(r"about (\d+) new lines", parts(stage)[0])
        assert said and abs(int(said[1]) - count) <= 2, stage.folder
    old = previous(find_stage("06")).script.read_text().splitlines()
    made = difflib.ndiff(old, QUIET[0].text().splitlines())
    assert 35 <= sum(line.startswith("+ ") for line in made) <= 45


def test_hints_come_one_at_a_time(tmp_path: Path) -> None:
    _, hints = parts(find_stage("03"))
    for i, hint in enumerate(hints):
        ended = workshop("check", "03", "--hint", my=tmp_path)
        assert ended.returncode == 0
        assert f"Hint {i + 1} of {len(hints)}" in ended.stdout
        assert [h for h in hints if h.splitlines()[0] in ended.stdout] == [hint]
    ended = workshop("check", "03", "--hint", my=tmp_path)
    assert "no more hints" in ended.stdout
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
        ("0.9", '"good"', "test_accuracy: good. That is no number"),
        ("10}", "null}", "warmup_steps: None. That is no count"),
        ("900.0", "Infinity", "img_per_s: inf. That is no speed"),
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
    with pytest.raises(trial.NotYet, match="makes a folder"):
        trial.read_results(tmp_path, trained=True)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(trial.NotYet, match="not text"):
        trial.read_results(tmp_path / "bytes", trained=True)


# --- the score card ---


def test_the_score_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKSHOP_MY", str(tmp_path))
    told = {"yours": 600.0, "before": 200.0, "ours": 500.0}
    for number, passed, status, change in (
        ("01", True, "passed", False),
        ("02", True, "passed", True),
        ("03", False, "", False),
        ("04", True, check.RIGHT, False),
        ("05", None, "", False),
    ):
        file = tmp_path / number / "train_MNIST.py"
        file.parent.mkdir()
        file.write_text("pass\n")
        if passed is not None:
            outcome = check.Outcome(passed=passed, status=status, speeds=told if passed else {})
            check.keep(file, digest(file), outcome)
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
        ("04", check.RIGHT),
        ("05", "begun"),
        ("06", "not begun"),
    ):
        assert said in rows[number], rows[number]
    assert all(word in rows["01"] for word in ("600", "3.00x", "1.20x"))
    assert "1 of 6 passed. Next: ./workshop check 02" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 100


def test_a_quick_check_forgets_no_speed(tmp_path: Path) -> None:
    file = tmp_path / "train_MNIST.py"
    file.write_text("pass\n")
    sha = digest(file)
    check.keep(file, sha, check.Outcome(passed=True, status="passed", speeds={"yours": 5.0}))
    check.keep(file, sha, check.Outcome(passed=True, status=check.RIGHT))
    kept = check.read_kept(file)
    assert kept["status"] == "passed" and kept["speeds"] == {"yours": 5.0}


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
        return timing.Entry("x", Path("x"), False, speeds=list(speeds))

    assert timing.verdict(entry(3, 4), entry(1, 2)) == "faster"
    assert timing.verdict(entry(1, 2), entry(3, 4)) == "slower"
    assert timing.verdict(entry(1, 4), entry(2, 3)) == "unclear"
    assert timing.far_behind(entry(1, 2), entry(4, 5))
    assert not timing.far_behind(entry(1, 3), entry(4, 5))  # one repeat is near enough


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
        [sys.executable, "-m", "tools", "check", "01", "--quick"],
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
    assert not list(scratch.iterdir())
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(str(scratch).encode() in words for words in running)
