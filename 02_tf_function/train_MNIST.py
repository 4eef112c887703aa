"""Stage 01 with the training step compiled to a graph by tf.function.

python train_MNIST.py --steps 100                    one device
horovodrun -np 4 python train_MNIST.py --steps 100   four devices
"""

import argparse
import json
import logging
import os
import platform
import re
import signal
import sys
import tempfile
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C while TensorFlow loads: just end
import numpy as np

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: keeps the log readable
import keras
import tensorflow as tf

try:
    import horovod.tensorflow as hvd  # Horovod: one process does without it
except ImportError:
    hvd = SimpleNamespace(init=int, rank=int, local_rank=int, size=lambda: 1)  # int() is 0

STAGE = "02_tf_function"
XLA = False
WARMUP = 10  # steps kept out of the throughput: tracing, compiling, filling caches
DATA = Path(__file__).resolve().parent.parent / "data" / "mnist.npz"


def stop(message):
    """End with one clear line."""
    rank = f" (rank {hvd.rank()})" if hvd.size() > 1 else ""  # Horovod: say who stopped
    sys.exit(f"{STAGE}{rank}: {message}")


# --- data ---


def get_dataset(path):
    """Read and check all of MNIST: float32 images from 0 to 1, integer labels."""
    try:
        with np.load(path) as file:
            x_train, y_train = file["x_train"], file["y_train"]
            x_test, y_test = file["x_test"], file["y_test"]
    except FileNotFoundError:
        stop(f"no data at {path}: get it with ./workshop data, or name a file with --data")
    except Exception as error:  # not a zip, cut short, an array missing
        stop(f"{path} is not a whole mnist.npz ({error}): get it again with ./workshop data")
    for x, y in ((x_train, y_train), (x_test, y_test)):
        right = x.dtype == y.dtype == np.uint8 and x.shape == (*y.shape, 28, 28) and y.ndim == 1
        if not right or y.size == 0:
            stop(f"{path} is not MNIST: images {x.dtype}{x.shape}, labels {y.dtype}{y.shape}")
        if y.max() > 9:
            stop(f"{path} is not MNIST: it has labels up to {y.max()}, digits end at 9")
    x_train, x_test = (x[..., np.newaxis].astype(np.float32) / 255 for x in (x_train, x_test))
    return x_train, x_test, y_train.astype(np.int32), y_test.astype(np.int32)


def make_batches(args, x_train, y_train):
    """An endless stream of batches, shuffled anew each epoch and made while the device works."""
    # Horovod: each rank draws from its own share of the images
    x_train, y_train = x_train[hvd.rank() :: hvd.size()], y_train[hvd.rank() :: hvd.size()]
    dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
    dataset = dataset.shuffle(len(x_train), seed=args.seed, reshuffle_each_iteration=True)
    dataset = dataset.batch(args.batch_size, drop_remainder=True).take(args.steps_per_epoch)
    return iter(dataset.repeat().prefetch(tf.data.AUTOTUNE))


def fetch_batch(batches):
    return next(batches)


# --- model ---


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

    def call(self, images, training=False):
        x = self.pool(self.conv_2(self.conv_1(images)))
        x = self.flatten(self.dropout_1(x, training=training))
        x = self.dropout_2(self.dense_1(x), training=training)
        return self.dense_2(x)


def compute_loss(y_true, y_pred):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_true, logits=y_pred)
    return tf.reduce_mean(losses)


# --- step ---


def forward_pass(model, images, labels):
    return compute_loss(labels, model(images, training=True))


def compute_gradients(model, images, labels):
    with tf.GradientTape() as tape:
        loss = forward_pass(model, images, labels)
    return loss, tape.gradient(loss, model.trainable_variables)


def average_over_ranks(loss, gradients):
    if hvd.size() > 1:  # Horovod: one exchange for all tensors, so every rank sees the same loss
        loss, *gradients = hvd.grouped_allreduce([loss, *gradients])
    return loss, gradients


@tf.function
def train_step(model, optimizer, images, labels):
    loss, gradients = compute_gradients(model, images, labels)
    loss, gradients = average_over_ranks(loss, gradients)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


# --- loop ---


def train_loop(args, model, optimizer, batches, history):
    for step in range(args.steps):
        start = time.perf_counter()
        images, labels = fetch_batch(batches)
        loss = float(train_step(model, optimizer, images, labels))  # float() waits for the device
        step_time = time.perf_counter() - start
        history.losses.append(loss)
        history.times.append(step_time)
        log_step(args, step, loss, step_time)


def log_step(args, step, loss, step_time):
    if not np.isfinite(loss):
        stop(f"the loss is {loss} at step {step}: try a smaller --lr than {args.lr}")
    if step % args.log_every == 0:
        throughput = args.batch_size * hvd.size() / step_time  # Horovod: all ranks' images count
        logging.info(
            f"{divmod(step, args.steps_per_epoch)}, Loss: {loss:.3f}, "
            f"step_time: {step_time:.3f}, throughput: {throughput:.3f} img/s."
        )
    if args.interrupted and hvd.rank() == 0:  # Horovod: when rank 0 leaves, the others follow
        raise KeyboardInterrupt


def evaluate(model, x_test, y_test):
    """The share of test images that the model gets right."""
    right = 0
    for i in range(0, len(x_test), 1000):
        logits = model(x_test[i : i + 1000], training=False)
        right += np.count_nonzero(np.argmax(logits, axis=1) == y_test[i : i + 1000])
    return right / len(x_test)


def train_network(args):
    x_train, x_test, y_train, y_test = get_dataset(args.data)
    args.steps_per_epoch = len(x_train) // (args.batch_size * hvd.size())  # Horovod: shared out
    if args.steps_per_epoch == 0:
        stop(f"--batch-size {args.batch_size} is more than a rank's share of {len(x_train)} images")
    args.steps = min(args.steps or sys.maxsize, args.epochs * args.steps_per_epoch)
    args.warmup = min(WARMUP, (args.steps + 1) // 2)
    with np.load(args.data) as file:
        args.data_kind = "synthetic" if "synthetic" in file else "mnist"
    if args.data_kind == "synthetic":
        logging.warning("synthetic data, not MNIST: the accuracy says nothing about digits")
    if hvd.size() > 1:  # Horovod: all ranks must train on the same data
        sums = hvd.allgather_object(zlib.crc32(x_train) ^ zlib.crc32(y_train))
        odd = [rank for rank, value in enumerate(sums) if value != sums[0]]
        if odd:
            stop(f"the data of rank {odd} is not that of rank 0: give all the same --data")

    model = MNISTClassifier()
    model(x_test[:1])  # the first call creates the weights
    optimizer = keras.optimizers.Adam(args.lr * hvd.size())  # Horovod: larger batch, larger step
    optimizer.build(model.trainable_variables)
    if hvd.size() > 1:  # Horovod: all start from rank 0's weights, now that they exist
        hvd.broadcast_variables([v.value for v in model.weights + optimizer.variables], root_rank=0)

    batches = make_batches(args, x_train, y_train)
    history = SimpleNamespace(losses=[], times=[], test_accuracy=None)
    try:
        train_loop(args, model, optimizer, batches, history)
        if hvd.rank() == 0:  # Horovod: the weights are the same everywhere
            history.test_accuracy = evaluate(model, x_test, y_test)
    except KeyboardInterrupt:  # a normal way to stop
        pass
    return history


# --- main ---


def summarize(args, history):
    """Print what the run came to; with --results, keep it as JSON."""
    warmup, timed = history.times[: args.warmup], history.times[args.warmup :]
    median, p95 = np.percentile(timed, [50, 95]).tolist() if timed else (None, None)
    global_batch = args.batch_size * hvd.size()  # Horovod: all ranks' images count
    results = {
        "stage": STAGE,
        "command": " ".join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "device": args.device,
        "ranks": hvd.size(),
        "batch_size": args.batch_size,
        "global_batch": global_batch,
        "precision": keras.mixed_precision.dtype_policy().name,
        "xla": XLA,
        "steps_timed": len(timed),
        "warmup_steps": len(warmup),
        "compile_s": median and round(max(0, sum(warmup) - len(warmup) * median), 3),
        "step_ms_median": median and round(1000 * median, 3),
        "step_ms_p95": median and round(1000 * p95, 3),
        "img_per_s": median and round(global_batch / median, 1),
        "final_loss": history.losses[-1] if history.losses else None,
        "test_accuracy": history.test_accuracy,
        "data": args.data_kind,
        "seed": args.seed,
        "versions": {module.__name__: module.__version__ for module in (tf, keras, np)},
        "interrupted": args.interrupted,
    }
    print("\n".join(f"{name:<15} {value}" for name, value in results.items()), flush=True)
    if args.results:  # written aside, then renamed: the file is whole or not there
        part = args.results.with_name(f"{args.results.name}.{os.getpid()}")
        try:
            part.write_text(json.dumps(results, indent=2) + "\n")
            part.replace(args.results)
        except OSError as error:
            part.unlink(missing_ok=True)
            stop(f"cannot write {args.results}: {error.strerror}")


def choose_device():
    """This rank's GPU if the machine has any, else the CPU."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        # Horovod: one GPU a rank, unless the launcher lets this rank see one only
        mine = hvd.local_rank() if "," in os.environ.get("CUDA_VISIBLE_DEVICES", ",") else 0
        if mine >= len(gpus):
            stop(f"no GPU left for local rank {mine}: this node has {len(gpus)}, start fewer ranks")
        tf.config.set_visible_devices(gpus[mine], "GPU")
        tf.config.experimental.set_memory_growth(gpus[mine], True)
        return tf.config.experimental.get_device_details(gpus[mine])["device_name"]
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return f"CPU, {os.cpu_count()} cores, {(names or [platform.machine()])[0]}"


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = stop
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", "--batch_size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--steps", type=int, help="stop after this many steps in all")
    parser.add_argument("--data", type=Path, default=os.environ.get("MNIST_NPZ") or DATA)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="write the summary to this JSON file")
    args = parser.parse_args()
    for name in ("epochs", "batch_size", "lr", "steps", "log_every", "seed"):
        value, limit = getattr(args, name), float("inf") if name == "lr" else 2**31
        if value is not None and not 0 < value < limit:
            bound = f"less than {limit}" if value > 0 else "greater than 0"
            stop(f"--{name.replace('_', '-')} must be {bound}, not {value}")
    if args.results:
        make_folder(args.results.parent)
        if args.results.exists() and not args.results.is_file():  # a folder, or /dev/null
            stop(f"--results {args.results} is no file: name one")
    return args


def make_folder(path):
    """Find out now, not after the training, if nothing can be written there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        stop(f"cannot write to {path}: {error.strerror}")


def main():
    hvd.init()
    args = parse_args()
    # Horovod: processes that it did not join would each train alone
    launchers = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    started = max(int(os.environ.get(name, 1)) for name in launchers)
    if started > hvd.size():
        stop(f"{started} processes started, Horovod sees {hvd.size()}: use horovodrun (see README)")
    level = logging.INFO if hvd.rank() == 0 else logging.ERROR  # Horovod: one rank logs
    style = "%(asctime)s - %(levelname)s - %(message)s"
    logging.basicConfig(level=level, format=style, stream=sys.stdout, force=True)
    args.device = choose_device()
    args.interrupted = False

    def interrupt(number, _):  # heeded after the step; a second one ends the process at once
        args.interrupted = True
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)  # how a batch system says Ctrl+C
    keras.utils.set_random_seed(args.seed + hvd.rank())  # Horovod: each rank its own dropout
    try:
        history = train_network(args)
    except tf.errors.UnknownError as error:  # Horovod: an exchange ends so when a rank is gone
        if "Horovod" not in str(error):
            raise
        stop("another rank stopped")
    if hvd.rank() == 0:  # Horovod: one rank reports
        summarize(args, history)
    sys.exit(130 if args.interrupted else 0)


if __name__ == "__main__":
    main()
