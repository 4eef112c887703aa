"""Stage 00 with its IO fixed: the data is read once, and batches are made ahead of time.

Speed: 397 img/s, 2.9x stage 00 (CPU, 2 cores, AMD EPYC, batch 64, 100 steps); A100s: README.md.

    kernprof -l train_MNIST_iofix.py --steps 50    # line by line
    python train_MNIST_iofix.py --steps 50         # plain, nothing profiled
"""

import argparse
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

# Keras and TensorFlow read these when they are imported.
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: keeps the log readable

import keras
import numpy as np
import tensorflow as tf

try:
    import horovod.tensorflow as hvd
except ImportError:
    hvd = None  # one process needs no Horovod: SingleProcess, at the end, takes its place

try:
    from line_profiler import profile
except ImportError:

    def profile(function):
        return function


STAGE = "01_line_profiler"
WARMUP = 10  # steps that are not timed: tracing, compiling, filling caches


@profile
def get_dataset(path):
    """All of MNIST: images from 0 to 1, labels from 0 to 9."""
    x_train, y_train, x_test, y_test = read_mnist(path)
    x_train = x_train[..., np.newaxis].astype(np.float32) / 255  # (60000, 28, 28, 1)
    x_test = x_test[..., np.newaxis].astype(np.float32) / 255
    return x_train, y_train.astype(np.int64), x_test, y_test.astype(np.int64)


def make_batches(args, x_train, y_train):
    """An endless stream of batches, reshuffled each epoch and made while the device works."""
    # Horovod: each rank draws from its own share of the images.
    x_train = x_train[hvd.rank() :: hvd.size()]
    y_train = y_train[hvd.rank() :: hvd.size()]
    with tf.device("CPU"):  # the images stay in the host's memory; batches go to the device
        dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    dataset = dataset.shuffle(len(x_train), seed=args.seed)
    dataset = dataset.batch(args.batch_size, drop_remainder=True)
    dataset = dataset.take(args.steps_per_epoch)
    dataset = dataset.repeat()  # shuffled anew each time
    dataset = dataset.prefetch(tf.data.AUTOTUNE)
    return iter(dataset)


@profile
def fetch_batch(batches):
    return next(batches)  # (batch, 28, 28, 1), (batch,)


class MNISTClassifier(keras.Model):
    """Two convolutions, two dense layers, 1.2 million weights."""

    def __init__(self):
        super().__init__()
        self.conv_1 = keras.layers.Conv2D(32, 3, activation="relu")
        self.conv_2 = keras.layers.Conv2D(64, 3, activation="relu")
        self.pool = keras.layers.MaxPooling2D(2)
        self.dropout_1 = keras.layers.Dropout(0.25)
        self.flatten = keras.layers.Flatten()
        self.dense_1 = keras.layers.Dense(128, activation="relu")
        self.dropout_2 = keras.layers.Dropout(0.5)
        self.dense_2 = keras.layers.Dense(10)

    def call(self, images, training=False):  # (batch, 28, 28, 1)
        x = self.conv_1(images)  # (batch, 26, 26, 32)
        x = self.conv_2(x)  # (batch, 24, 24, 64)
        x = self.pool(x)  # (batch, 12, 12, 64)
        x = self.dropout_1(x, training=training)
        x = self.flatten(x)  # (batch, 9216)
        x = self.dense_1(x)  # (batch, 128)
        x = self.dropout_2(x, training=training)
        return self.dense_2(x)  # (batch, 10)


def compute_loss(y_true, y_pred):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)  # (batch,)
    return tf.reduce_mean(losses)


@profile
def forward_pass(model, images, labels):
    logits = model(images, training=True)
    return compute_loss(labels, logits)


@profile
def compute_gradients(model, images, labels):
    with tf.GradientTape() as tape:
        loss = forward_pass(model, images, labels)
    return loss, tape.gradient(loss, model.trainable_variables)


@profile
def train_step(model, optimizer, images, labels):
    loss, gradients = compute_gradients(model, images, labels)
    if hvd.size() > 1:  # Horovod: average the loss and all gradients in one exchange
        loss, *gradients = hvd.grouped_allreduce([loss, *gradients])
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@profile
def train_loop(args, model, optimizer, batches, history):
    for step in range(args.steps):
        start = time.perf_counter()
        images, labels = fetch_batch(batches)
        loss = float(train_step(model, optimizer, images, labels))  # float() waits for the device
        step_time = time.perf_counter() - start
        log_step(args, history, step, loss, step_time)


def evaluate(model, x_test, y_test):
    """The share of test images that are classified correctly."""
    correct = 0
    for i in range(0, len(x_test), 100):
        logits = model(x_test[i : i + 100])
        digits = np.argmax(logits, axis=1)
        correct += np.sum(digits == y_test[i : i + 100])
    return float(correct / len(x_test))


@profile
def train_network(args, history):
    """Train, and return the test accuracy."""
    x_train, y_train, x_test, y_test = get_dataset(args.data)
    plan_steps(args, len(x_train))
    model = MNISTClassifier()
    model(x_test[:1])  # the first call creates the weights
    optimizer = keras.optimizers.Adam(args.lr * hvd.size())  # Horovod: larger batch, larger step
    optimizer.build(model.trainable_variables)
    if hvd.size() > 1:  # Horovod: all ranks start from rank 0's weights, now that they exist
        variables = [variable.value for variable in model.weights + optimizer.variables]
        hvd.broadcast_variables(variables, root_rank=0)
    batches = make_batches(args, x_train, y_train)
    train_loop(args, model, optimizer, batches, history)
    return evaluate(model, x_test, y_test)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=positive_int, default=10)
    parser.add_argument("--batch-size", "--batch_size", type=positive_int, default=64)
    parser.add_argument("--lr", type=positive_float, default=0.001)
    parser.add_argument("--steps", type=positive_int, help="stop after this many steps in all")
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--log-every", type=positive_int, default=1, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=json_path, help="write the summary to this JSON file")
    return parser.parse_args()


# --- the rest is the same in every stage: skip it on a first reading ---


class SingleProcess:
    """Stands in for Horovod where it is not installed: one process, rank 0 of 1."""

    def init(self):
        pass

    def rank(self):
        return 0

    def local_rank(self):
        return 0

    def size(self):
        return 1


if hvd is None:
    hvd = SingleProcess()


def fail(message):
    """End with one line instead of a traceback."""
    if hvd.size() > 1:  # Horovod: say which process it is
        message = f"rank {hvd.rank()}: {message}"
    sys.exit(f"{STAGE}: {message}")


def positive_int(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def positive_float(text):
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be greater than 0, not {number}")
    return number


def json_path(text):
    """Only a .json file: a mistyped --results must not replace anything else."""
    if not text.endswith(".json"):
        raise argparse.ArgumentTypeError(f"must end in .json, not {text}")
    return Path(text)


def default_data():
    repository = Path(__file__).resolve().parents[1]
    return os.environ.get("MNIST_NPZ") or repository / "data" / "mnist.npz"


def make_folder(path):
    """Before the training: finding out afterwards would cost its results."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"cannot create the folder {path}: {error.strerror}")
    if not os.access(path, os.W_OK):
        fail(f"cannot write to the folder {path}")


def read_mnist(path):
    """The four arrays of mnist.npz, as bytes: images (n, 28, 28) and labels (n,)."""
    if not path.exists():
        fail(f"there is no {path}. ./workshop data gets it; --data names another file")
    try:
        with np.load(path) as file:
            x_train, y_train = file["x_train"], file["y_train"]
            x_test, y_test = file["x_test"], file["y_test"]
    except Exception as error:  # not an npz file, cut short, an array is missing
        fail(f"cannot read {path} ({error}). ./workshop data gets a good one")
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        if images.dtype != np.uint8 or images.shape != (len(labels), 28, 28):
            fail(f"{path} is not MNIST: its images are {images.dtype} {images.shape}")
        if labels.max() > 9:
            fail(f"{path} is not MNIST: it has a label {labels.max()}")
    return x_train, y_train, x_test, y_test


def is_synthetic(path):
    """Whether ./workshop data generated this file because MNIST could not be downloaded."""
    with np.load(path) as file:
        return "synthetic" in file


def plan_steps(args, images):
    """Set steps_per_epoch, and steps if it was not given."""
    args.steps_per_epoch = images // (args.batch_size * hvd.size())  # Horovod: shared out
    if args.steps_per_epoch == 0:
        fail(f"--batch-size {args.batch_size} is more than a process's share of {images} images")
    all_steps = args.epochs * args.steps_per_epoch
    args.steps = min(args.steps or all_steps, all_steps)


def log_step(args, history, step, loss, step_time, kind="timed"):
    """Append (kind, seconds, loss) to the history; the kinds are warmup, timed and profiled."""
    if step < WARMUP:
        kind = "warmup"
    history.append((kind, step_time, loss))
    if not np.isfinite(loss):
        fail(f"the loss is {loss} at step {step}: try a smaller --lr than {args.lr}")
    if step % args.log_every == 0:
        epoch, i_batch = divmod(step, args.steps_per_epoch)
        throughput = args.batch_size * hvd.size() / step_time  # Horovod: all ranks' images count
        logging.info(
            f"({epoch}, {i_batch}), Loss: {loss:.3f}, step_time: {step_time:.3f}, "
            f"throughput: {throughput:.3f} img/s."
        )
    if args.interrupted:
        raise KeyboardInterrupt


def stop_between_steps(args):
    """Ctrl+C, and SIGTERM from a batch system, end the training after the current step.

    An exception in the middle of one could crash TensorFlow.
    """

    def handle(signal_number, frame):
        args.interrupted = hvd.rank() == 0  # Horovod: when rank 0 stops, the others do too

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)


def choose_device():
    """The name of this process's device."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return f"CPU, {os.cpu_count()} cores"
    # Horovod: one GPU for each rank of this node.
    if len(gpus) == 1 and "CUDA_VISIBLE_DEVICES" in os.environ:
        gpu = gpus[0]  # Horovod: the launcher shows each rank only its own
    elif hvd.local_rank() < len(gpus):
        gpu = gpus[hvd.local_rank()]  # Horovod: each rank sees all of them
    else:
        fail(f"no GPU is left: this node shows {len(gpus)}, and local ranks count from 0")
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    return tf.config.experimental.get_device_details(gpu)["device_name"]


def check_launcher():
    """Horovod: stop if several processes were started that it has not joined."""
    for name in ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        started = int(os.environ.get(name, "1"))
        if started > hvd.size():  # Horovod: each of them would train alone
            joined = f"Horovod has joined {hvd.size()} of {started} processes ({name})"
            fail(f"{joined}: is it installed? Start them with horovodrun")


def summarize(args, history, device, test_accuracy):
    """The options and the results of this run, as they are printed and saved."""
    warmup = [seconds for kind, seconds, _ in history if kind == "warmup"]
    timed = [seconds for kind, seconds, _ in history if kind == "timed"]
    results = {
        "stage": STAGE,
        **vars(args),
        "data": "synthetic" if is_synthetic(args.data) else "mnist",
        "device": device,
        "ranks": hvd.size(),  # Horovod: the number of processes
        "versions": {module.__name__: module.__version__ for module in (tf, keras, np)},
        "warmup_steps": len(warmup),
        "steps_timed": len(timed),
        "compile_s": None,
        "step_ms_median": None,
        "img_per_s": None,
        "final_loss": history[-1][2] if history else None,
        "test_accuracy": test_accuracy,
    }
    if timed:
        median = float(np.median(timed))
        results["compile_s"] = round(max(0, sum(warmup) - len(warmup) * median), 3)
        results["step_ms_median"] = round(1000 * median, 3)
        results["img_per_s"] = round(hvd.size() * args.batch_size / median, 1)  # Horovod: of all
    return results


def write_results(path, results):
    """The whole file or none: written under another name, then renamed."""
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.write_text(json.dumps(results, indent=2, default=str) + "\n")
        partial.replace(path)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}")


def main():
    args = parse_args()
    args.interrupted = False
    hvd.init()  # Horovod: finds the other processes
    check_launcher()
    logging.basicConfig(
        level=logging.INFO if hvd.rank() == 0 else logging.ERROR,  # Horovod: one rank logs
        format="%(asctime)s - %(levelname)s - %(message)s",
        stream=sys.stdout,
    )
    if args.results:
        make_folder(args.results.parent)
    device = choose_device()
    keras.utils.set_random_seed(args.seed + hvd.rank())  # Horovod: each rank its own dropout
    stop_between_steps(args)

    history = []
    test_accuracy = None
    try:
        test_accuracy = train_network(args, history)
    except KeyboardInterrupt:  # a normal way to stop
        logging.info("interrupted; this is the summary so far")
    except tf.errors.OpError as error:
        if "Horovod has been shut down" in str(error):  # Horovod: the other rank says why
            fail("another rank stopped")
        raise
    if hvd.rank() == 0:  # Horovod: one rank reports
        results = summarize(args, history, device, test_accuracy)
        for name, value in results.items():
            print(f"{name:<15} {value}")
        if args.results:
            write_results(args.results, results)
    sys.exit(130 if args.interrupted else 0)


if __name__ == "__main__":
    main()
