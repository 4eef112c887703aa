"""The host is out of the loop: now what the profile still shows. Fewer kernels, and faster ones:
oneDNN's on older CPUs, one for Adam, dropout on the device, relu after the pool, one exchange.
Speed: 1,057 img/s, 7.6x stage 00 (CPU, 2 cores, AMD EPYC, batch 64, 100 steps); A100s: README.md.
python train_MNIST.py --steps 100 $(python choose.py)   with this machine's fastest switches
"""

import argparse
import os
import signal
import time
from pathlib import Path

signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C while TensorFlow loads: just exit
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: keeps the log readable
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # not AMX: some machines trap it
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # its convolutions on older CPUs too
import keras
import numpy as np
import tensorflow as tf

try:
    import horovod.tensorflow as hvd
except ImportError:  # Horovod: one process works without it
    hvd = argparse.Namespace(init=int, rank=int, local_rank=int, size=lambda: 1)  # int() is 0

STAGE = "06_optimized"
WARMUP = 10  # steps that are not timed: tracing, compiling, filling caches


def get_dataset(path):
    """All of MNIST: images from 0 to 1, labels from 0 to 9."""
    x_train, x_test, y_train, y_test = read_mnist(path)  # bytes
    x_train, x_test = (x[..., np.newaxis].astype(np.float32) / 255 for x in (x_train, x_test))
    return x_train, x_test, y_train.astype(np.int64), y_test.astype(np.int64)


def shuffle(args, data, epoch):
    """This epoch's order of the images, a row of indices for each batch: (steps, batch)."""
    order = np.random.default_rng([args.seed, epoch]).permutation(len(data[0]))
    return tf.constant(order[: args.steps_per_epoch * args.batch_size].reshape(-1, args.batch_size))


def fetch_batch(data, order, i_batch):
    return [tf.gather(part, order[i_batch]) for part in data]  # (batch, 28, 28, 1), (batch,)


class DeviceDropout(keras.layers.Dropout):
    """Drawn on the device, 8 random bits per value; Keras's own gets its seed from the host."""

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        key = tf.reshape(tf.bitcast(self.seed_generator.next(), tf.uint64), [1])
        options = {"key": key, "counter": tf.zeros([2], tf.uint64), "alg": 1, "dtype": tf.int32}
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(shape=[tf.size(inputs) // 4], **options)
        bits = tf.reshape(tf.bitcast(words, tf.uint8), tf.shape(inputs))
        kept = tf.constant(1 / (1 - self.rate), inputs.dtype)
        return inputs * tf.where(bits < int(256 * self.rate), tf.zeros_like(kept), kept)


class MNISTClassifier(keras.Model):
    """Two convolutions, two dense layers, 1.2 million weights."""

    def __init__(self):
        super().__init__()
        self.conv_1 = keras.layers.Conv2D(32, 3, activation="relu")
        self.conv_2 = keras.layers.Conv2D(64, 3)  # relu after the pool: same result, less work
        self.pool = keras.layers.MaxPooling2D(2)
        self.dropout_1 = DeviceDropout(0.25)
        self.flatten = keras.layers.Flatten()
        self.dense_1 = keras.layers.Dense(128, activation="relu")
        self.dropout_2 = DeviceDropout(0.5)
        self.dense_2 = keras.layers.Dense(10, dtype="float32")  # a softmax needs the precision

    def call(self, images, training=False):  # (batch, 28, 28, 1)
        x = self.conv_2(self.conv_1(images))  # (batch, 26, 26, 32), (batch, 24, 24, 64)
        x = self.dropout_1(tf.nn.relu(self.pool(x)), training=training)  # (batch, 12, 12, 64)
        x = self.dense_1(self.flatten(x))  # (batch, 9216), (batch, 128)
        return self.dense_2(self.dropout_2(x, training=training))  # (batch, 10)


class FusedAdam(keras.optimizers.Adam):
    """Adam with one kernel for each weight, instead of a dozen small operations."""

    def _backend_update_step(self, gradients, variables, rate):
        step = tf.cast(self.iterations + 1, tf.float32)
        options = {"lr": rate, "beta1_power": self.beta_1**step, "beta2_power": self.beta_2**step}
        options |= {"beta1": self.beta_1, "beta2": self.beta_2, "epsilon": self.epsilon}
        for gradient, *state in zip(gradients, variables, self._momentums, self._velocities):
            var, m, v = (variable.value.handle for variable in state)
            tf.raw_ops.ResourceApplyAdam(var=var, m=m, v=v, grad=gradient, **options)


def compute_loss(y_true, y_pred):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred))


def forward_pass(model, images, labels):
    return compute_loss(labels, model(images, training=True))


def compute_gradients(model, optimizer, images, labels):
    with tf.GradientTape() as tape:
        loss = forward_pass(model, images, labels)
        scaled_loss = optimizer.scale_loss(loss)  # lifts small gradients into float16's range
    return loss, tape.gradient(scaled_loss, model.trainable_variables)


@tf.function
def train_step(model, optimizer, images, labels, xla):
    compute = tf.function(compute_gradients, jit_compile=xla)  # made once, while tracing
    loss, gradients = compute(model, optimizer, images, labels)
    if hvd.size() > 1:  # Horovod: as one tensor, which needs no copy into its buffer and out again
        parts = [loss, *gradients]
        joined = hvd.allreduce(tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0))
        pieces = tf.split(joined, [part.shape.num_elements() for part in parts])
        loss, *gradients = (tf.reshape(piece, part.shape) for piece, part in zip(pieces, parts))
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def train_steps(model, optimizer, data, order, first, count, xla):
    """Many steps in one call: Python makes one call, not one per step."""
    losses = tf.TensorArray(tf.float32, count)
    for i in range(count):  # a loop inside the graph where count is a tensor
        images, labels = fetch_batch(data, order, first + i)
        losses = losses.write(i, train_step(model, optimizer, images, labels, xla))
    return losses.stack()


def train_loop(args, model, optimizer, data, history):
    rank, logs, (first, last) = hvd.rank(), args.logdir, args.profile_steps  # Horovod: 0 if alone
    if logs and not 0 <= first <= last < args.steps:
        stop(f"--profile-steps {first} {last} are not among the {args.steps} steps")
    profiled = logs and args.profile_ranks in ("all", str(rank))  # Horovod: one is enough
    whole = args.xla == "call" and hvd.size() == 1  # Horovod: XLA cannot compile its exchange
    call, seen = tf.function(train_steps, jit_compile=whole), set()  # lengths of calls so far
    with contextlib.ExitStack() as window:  # closes on the way out: Ctrl+C loses no profile
        while (step := len(history)) < args.steps:
            epoch, i_batch = divmod(step, args.steps_per_epoch)
            most = 1 if logs and step <= last else args.steps_per_call  # a marker is for one step
            count = min(most, args.steps_per_epoch - i_batch, args.steps - step)
            if profiled and step == first:
                window.enter_context(tf.profiler.experimental.Profile(f"{logs}/{rank or ''}"))
            start = time.perf_counter()
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):  # a step marker
                if i_batch == 0:
                    order = shuffle(args, data, epoch)
                span = tf.constant(i_batch), 1 if count == 1 else tf.constant(count)
                losses = call(model, optimizer, data, order, *span, args.xla != "off").numpy()
            step_time = (time.perf_counter() - start) / count
            if step == last:
                window.close()
            kind = "profiled" if logs and step <= last else "timed" if count in seen else "warmup"
            seen.add(count)
            for i, loss in enumerate(losses.tolist(), step):
                log_step(args, history, i, loss, step_time, kind)


def evaluate(model, x_test, y_test):
    digits = [np.argmax(model(x_test[i : i + 100]), axis=1) for i in range(0, len(x_test), 100)]
    return float(np.mean(np.concatenate(digits) == y_test))  # the share of correct answers


def train_network(args, history):
    x_train, x_test, y_train, y_test = get_dataset(args.data)
    plan_steps(args, x_train)
    logging.info(f"{args.precision}: named by --precision, or the best this device has units for")
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)  # None: one per core
    keras.mixed_precision.set_dtype_policy(args.precision)
    model = MNISTClassifier()
    model(x_test[:1])  # the first call creates the weights
    optimizer = FusedAdam(args.lr * hvd.size())  # Horovod: larger batch, larger step
    if args.precision == "mixed_float16":  # bfloat16 has float32's range and needs no scaling
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    if hvd.size() > 1:  # Horovod: all start from rank 0's weights, now that they exist
        hvd.broadcast_variables([v.value for v in model.weights + optimizer.variables], root_rank=0)
    # Stays on the device. Horovod: each rank keeps its own share of the images
    data = [tf.constant(part[hvd.rank() :: hvd.size()]) for part in (x_train, y_train)]
    train_loop(args, model, optimizer, data, history)
    args.test_accuracy = evaluate(model, x_test, y_test)


def best_precision(gpus):
    """The 16-bit format that this device has units for, or else float32."""
    if gpus:
        major, _ = tf.config.experimental.get_device_details(gpus[0])["compute_capability"]
        return "mixed_bfloat16" if major >= 8 else "mixed_float16" if major == 7 else "float32"
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "mixed_bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def parse_args():
    data = os.environ.get("MNIST_NPZ") or Path(__file__).resolve().parents[1] / "data/mnist.npz"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = stop
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", "--batch_size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--steps", type=int, help="stop after this many steps in all")
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    gpus = tf.config.list_physical_devices("GPU")
    kinds = ["float32", "mixed_float16", "mixed_bfloat16"]
    parser.add_argument("--precision", choices=kinds, default=best_precision(gpus))
    parser.add_argument("--xla", choices=["on", "off", "call"], default="on" if gpus else "off")
    parser.add_argument("--steps-per-call", type=int, default=10)
    parser.add_argument("--threads", type=int, choices=range(1, os.cpu_count() + 1), metavar="N")
    parser.add_argument("--logdir", type=Path, help="profile some steps into this folder")
    parser.add_argument("--profile-steps", type=int, nargs=2, default=[10, 19])
    parser.add_argument("--profile-ranks", choices=["0", "all"], default="0")
    parser.add_argument("--results", type=Path, help="write the summary to this JSON file")
    return parser.parse_args()


# --- the rest is the same in every stage: skip it on a first reading ---

import contextlib
import ctypes
import faulthandler
import json
import logging
import sys
import tempfile


def stop(message):
    sys.exit(f"{STAGE}{f' (rank {hvd.rank()})' * (hvd.size() > 1)}: {message}")  # Horovod: who?


def read_mnist(path):  # as bytes: images (n, 28, 28) and labels (n,), to train and to test
    try:
        file = read_mnist.file = np.load(path if Path(path).is_file() else f"{path}/")  # no pipe
        arrays = [np.asarray(file[name]) for name in ("x_train", "x_test", "y_train", "y_test")]
    except Exception as error:  # not there, not a zip, cut short, an array missing
        stop(f"cannot read {path} ({error}): ./workshop data gets it, --data names another")
    for x, y in zip(arrays[:2], arrays[2:]):
        right = x.dtype == y.dtype == np.uint8 and x.shape == (y.size, 28, 28) and y.ndim == 1
        if not right or y.size == 0 or y.max() > 9:
            stop(f"{path} is not MNIST (labels 0 to 9): {x.dtype}{x.shape}, {y.dtype}{y.shape}")
    return arrays


def plan_steps(args, x_train):
    args.steps_per_epoch = len(x_train) // (args.batch_size * hvd.size())  # Horovod: shared out
    args.steps = min(args.steps or sys.maxsize, args.epochs * args.steps_per_epoch)
    if args.steps == 0:
        stop(f"--batch-size {args.batch_size} is more than a rank's share of {len(x_train)} images")
    digest = str([part.CRC for part in read_mnist.file.zip.infolist()])
    if hvd.size() > 1 and len(set(hvd.allgather_object(digest))) > 1:  # Horovod: one data set
        stop("the ranks have read different data: give all the same --data")
    faulthandler.cancel_dump_traceback_later()  # Horovod: all ranks are here, none is stuck


def log_step(args, history, step, loss, step_time, kind="timed"):
    history.append(("warmup" if step < WARMUP else kind, step_time, loss))
    if not np.isfinite(loss):
        stop(f"the loss is {loss} at step {step}: try a smaller --lr than {args.lr}")
    if step % args.log_every == 0:
        throughput = args.batch_size * hvd.size() / step_time  # Horovod: all ranks' images count
        times = f"step_time: {step_time:.3f}, throughput: {throughput:.3f} img/s."
        logging.info(f"{divmod(step, args.steps_per_epoch)}, Loss: {loss:.3f}, {times}")
    if args.interrupted:  # checked between steps: an exception inside TensorFlow can crash it
        raise KeyboardInterrupt


def choose_device():
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return f"CPU, {os.cpu_count()} cores"
    mine = hvd.local_rank() % len(gpus)  # Horovod: a rank may see all GPUs of its node, or its own
    if hvd.size() > 1:  # Horovod: by the driver's ID of a GPU, do two ranks share one?
        cuda, name = ctypes.CDLL("libcuda.so.1"), ctypes.create_string_buffer(16)
        known = cuda.cuInit(0) == cuda.cuDeviceGetUuid_v2(name, mine) == 0
        if hvd.allgather_object(name.raw).count(name.raw) > 1 and known:
            stop(f"another rank has the same GPU (this one sees {len(gpus)}): start fewer ranks")
    tf.config.set_visible_devices(gpus[mine], "GPU")
    tf.config.experimental.set_memory_growth(gpus[mine], True)
    return tf.config.experimental.get_device_details(gpus[mine])["device_name"]


def summarize(args, history):  # the options and the results, printed and saved as JSON
    warmup, timed = ([t for kind, t, _ in history if kind == k] for k in ("warmup", "timed"))
    median = float(np.median(timed)) if timed else None
    results = {"stage": STAGE, **vars(args), "ranks": hvd.size()}  # Horovod: the processes
    results["data"] = "synthetic" if "synthetic" in read_mnist.file else "mnist"
    results["versions"] = {module.__name__: module.__version__ for module in (tf, keras, np)}
    results |= {"warmup_steps": len(warmup), "steps_timed": len(timed)}
    results["compile_s"] = median and round(max(0, sum(warmup) - len(warmup) * median), 3)
    results["step_ms_median"] = median and round(1000 * median, 3)
    results["img_per_s"] = median and round(results["ranks"] * args.batch_size / median, 1)
    results["final_loss"] = history[-1][-1] if history else None
    with contextlib.ExitStack() as last:  # printed in any case, but last: the screen may be closed
        last.callback(print, "\n".join(f"{k:<15} {v}" for k, v in results.items()), flush=True)
        if args.results:  # written elsewhere, then renamed: never half a file; a link stays one
            with tempfile.TemporaryDirectory(dir=args.results.resolve().parent) as folder:
                (Path(folder) / "r").write_text(json.dumps(results, indent=2, default=str) + "\n")
                (Path(folder) / "r").replace(args.results.resolve())


def main():
    numbers = {k: int(v) for k, v in os.environ.items() if v.isdecimal() and len(v) < 10}
    if "HOROVOD_SIZE" in os.environ and "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in os.environ:
        sys.exit(f"{STAGE}: HOROVOD_SIZE without horovodrun: unset it")  # Horovod: left over
    hvd.init()  # Horovod: finds the other processes
    args = parse_args()
    for name, value in vars(args).items():
        if isinstance(value, (int, float)) and not 0 < value < 2**31:
            stop(f"--{name.replace('_', '-')} must be greater than 0 and below 2^31, not {value}")
    launchers = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    started = max(numbers.get(name, 1) for name in launchers)
    if started > hvd.size():  # Horovod: each of them would train alone
        stop(f"{started} processes, Horovod sees {hvd.size()}: use horovodrun (see README)")
    level = logging.INFO if hvd.rank() == 0 else logging.ERROR  # Horovod: one rank logs
    logging.raiseExceptions, style = False, "%(asctime)s - %(levelname)s - %(message)s"
    logging.basicConfig(level=level, format=style, stream=sys.stdout, force=True)
    args.interrupted, args.test_accuracy, history, file = False, None, [], args.results
    faulthandler.dump_traceback_later(numbers.get("WORKSHOP_WAIT_S") or 120, exit=True, file=2)
    try:
        if file and file.exists() and not (file.is_file() and b'{\n  "stage"' in file.read_bytes()):
            stop(f"--results {file} is there, and no results: name another file")
        for path in filter(None, [file and file.resolve().parent, vars(args).get("logdir")]):
            path.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path).write(bytes(2**22))  # find out now if there is no room
        args.device = choose_device()
        keras.utils.set_random_seed(args.seed + hvd.rank())  # Horovod: each rank its own dropout
        for number in (signal.SIGINT, signal.SIGTERM):  # Horovod: rank 0 sums up, the others follow
            signal.signal(number, lambda *_: vars(args).update(interrupted=hvd.rank() == 0))
        with contextlib.suppress(KeyboardInterrupt):  # a normal way to stop
            train_network(args, history)
        if hvd.rank() == 0:  # Horovod: one rank reports
            summarize(args, history)
    except (OSError, UnicodeError, tf.errors.OpError) as error:  # the last, if a rank is gone
        if history and not isinstance(error, (OSError, UnicodeError, tf.errors.UnknownError)):
            summarize(args, history)  # a profile, say, that cannot be written costs no results
        sys.stdout = None  # it may be what failed, and Python would try again
        stop("another rank stopped" if "Horovod" in str(error) else f"cannot go on: {error}")
    sys.exit(130 if args.interrupted else 0)


if __name__ == "__main__":
    main()
