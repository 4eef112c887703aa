"""The slow trainings: patches of 04's script, made when asked for, so that they cannot drift."""

from __future__ import annotations

from pathlib import Path

from tfworkshop.exercises.task import my_folder
from tfworkshop.problem import Problem
from tfworkshop.stages import STAGES

BASE = next(stage for stage in STAGES if stage.number == "04")
Patch = tuple[str, str]

TITLE = '''"""Mystery {number}: something is wrong with this training. What? See MYSTERIES.md.

python train_MNIST.py --steps 60 --logdir logs | tee log.txt   the log, and a profile
kernprof -l train_MNIST.py --steps 30                          line by line
"""
'''
STEP = 'loss = float(train_step(model, optimizer, images, labels, args.xla == "on"))'
STEP_LINE = f"                {STEP}\n"
PLAIN_TIME = "            step_time = time.perf_counter() - start\n"
LOG_LINES = """\
            kind = "profiled" if profiled and first <= step <= last else "timed"  # recording slows
            log_step(args, history, step, loss, step_time, kind)
"""
MODEL = "    model = MNISTClassifier()\n"
BATCHED = "    dataset = dataset.batch("

PROFILED = ("get_dataset", "fetch_batch", "forward_pass", "compute_gradients", "train_loop")
# In all of them: for the line profiler, and so that no comment tells what is not there.
COMMON: tuple[Patch, ...] = (
    (
        "import tensorflow as tf\n",
        "import tensorflow as tf\nfrom line_profiler import profile\n\n"
        'tf.get_logger().setLevel("ERROR")  # errors only: keeps the log readable\n',
    ),
    ("each epoch and made while the device works.", "each epoch."),
    ("jit_compile=xla)  # made once, while tracing", "autograph=False, jit_compile=xla)"),
    (PLAIN_TIME.rstrip() + "  # float() waited for the device\n", PLAIN_TIME),
    ("@tf.function\ndef train_step", "@tf.function(autograph=False)\n@profile\ndef train_step"),
    *((f"def {name}(", f"@profile\ndef {name}(") for name in PROFILED),
)


class Mystery:
    def __init__(self, number: int, cause: str, *patches: Patch) -> None:
        self.number, self.cause, self.patches = number, cause, patches  # one of causes.CAUSES

    @property
    def script(self) -> Path:
        return my_folder() / f"mystery_{self.number}" / "train_MNIST.py"


def after_step(lines: str) -> Patch:
    return STEP_LINE, STEP_LINE + lines


MYSTERIES = (
    Mystery(
        1,
        "python",
        after_step("""\
                weights = np.concatenate([w.numpy().ravel() for w in model.trainable_weights])
                tails = np.percentile(weights, [1, 5, 25, 50, 75, 95, 99]).tolist()
"""),
    ),
    Mystery(
        2,
        "input",
        (
            '@profile\ndef get_dataset(path):\n    """All of MNIST: images from 0 to 1, ',
            '@profile\ndef get_dataset(path):\n    """All of MNIST: images from 0 to 255, ',
        ),
        (
            "    x_train, x_test = (x[..., np.newaxis].astype(np.float32) / 255 "
            "for x in (x_train, x_test))\n",
            "    x_test = x_test[..., np.newaxis].astype(np.float32) / 255\n",
        ),
        (
            "def make_batches(",
            '''\
def as_rows(images):
    """Images as text, a row of numbers each, as their file had them."""
    words = np.array([f"{value:3d}," for value in range(256)], "S4")
    return [row.tobytes().rstrip(b",") for row in words[images.reshape(len(images), -1)]]


def prepare(row, label):
    pixels = tf.io.decode_csv(row, [0.0] * 28 * 28)
    return tf.reshape(tf.stack(pixels), [28, 28, 1]) / 255, label


def make_batches(''',
        ),
        (
            "from_tensor_slices((x_train, y_train))",
            "from_tensor_slices((as_rows(x_train), y_train))",
        ),
        (BATCHED, f"    dataset = dataset.map(prepare)\n{BATCHED}"),
        (
            "return iter(dataset.repeat().prefetch(tf.data.AUTOTUNE))",
            """options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return iter(dataset.repeat().with_options(options))""",
        ),
    ),
    Mystery(
        3,
        "clock",
        (
            STEP_LINE + PLAIN_TIME,
            STEP_LINE.replace("float(", "").replace('"on"))', '"on")')
            + "    "
            + PLAIN_TIME
            + LOG_LINES.replace(" " * 12, " " * 16)
            .replace("  # recording slows", "")
            .replace("loss,", "float(loss),"),
        ),
        (f"                window.close()\n{LOG_LINES}", "                window.close()\n"),
        (
            MODEL,
            f"    tf.config.experimental.set_synchronous_execution(False)\n{MODEL}",
        ),
    ),
    Mystery(
        4,
        "retracing",
        (
            "def train_step(model, optimizer, images, labels, xla):\n",
            "def train_step(model, optimizer, images, labels, xla, rate):\n"
            "    optimizer.learning_rate.assign(rate)\n",
        ),
        (
            STEP_LINE,
            """\
                rate, xla = args.lr * hvd.size() * 0.9999**step, args.xla == "on"
                loss = float(train_step(model, optimizer, images, labels, xla, rate))
""",
        ),
    ),
    Mystery(
        5,
        "copies",
        (
            "    if hvd.size() > 1:  # Horovod: one exchange",
            "    for gradient in gradients:\n"
            "        tf.debugging.assert_less(tf.reduce_max(tf.abs(gradient)), 1e4)\n"
            "    if hvd.size() > 1:  # Horovod: one exchange",
        ),
    ),
    Mystery(
        6,
        "writing",
        after_step("""\
                np.savez("last.npz", *[v.numpy() for v in model.weights + optimizer.variables])
"""),
    ),
    Mystery(
        7,
        "straggler",
        (
            "def train_loop(args, model, optimizer, batches, history):\n",
            "def train_loop(args, model, optimizer, batches, test, history):\n",
        ),
        (
            "    train_loop(args, model, optimizer, batches, history)\n",
            "    test = x_test[:500], y_test[:500]\n"
            "    train_loop(args, model, optimizer, batches, test, history)\n",
        ),
        after_step("""\
                if 0 < hvd.rank() == hvd.size() - 1:
                    args.test_accuracy = evaluate(model, *test)
"""),
    ),
)


def find(number: str) -> Mystery:
    for mystery in MYSTERIES:
        if number.lstrip("0") == str(mystery.number):
            return mystery
    raise Problem(f"no mystery {number}. There are 1 to {len(MYSTERIES)}")


def made(mystery: Mystery) -> str:
    """04's script with its patches; each must fit in one place."""
    number = mystery.number
    text = BASE.script.read_text(encoding="utf-8")
    text = TITLE.format(number=number) + text[text.index("\nimport argparse") :]
    name = (f'STAGE = "{BASE.name}"', f'STAGE = "mystery_{number}"')
    for old, new in (name, *COMMON, *mystery.patches):
        if text.count(old) != 1:
            raise ValueError(f"mystery {number}: {text.count(old)} times in {BASE.folder}: {old}")
        text = text.replace(old, new)
    return text
