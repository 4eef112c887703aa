"""The fastest training on this device: it measures a few ways to train, then takes the best.

python train_MNIST.py --steps 100                    one device
horovodrun -np 4 python train_MNIST.py --steps 100   four devices
"""

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import platform
import re
import signal
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import NamedTuple

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C while TensorFlow loads: just end
if __name__ == "__mp_main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # in the child that times the ways
import numpy as np

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only: keeps the log readable
# Some virtual machines announce AMX but trap it; AVX-512 is the safe choice for 16 bit.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
import keras
import tensorflow as tf

try:
    import horovod.tensorflow as hvd  # Horovod: one process does without it
except ImportError:
    hvd = SimpleNamespace(init=int, rank=int, local_rank=int, size=lambda: 1)  # int() is 0

STAGE = "06_optimized"
WARMUP = 10  # steps kept out of the throughput: tracing, compiling, filling caches
DATA = Path(__file__).resolve().parent.parent / "data" / "mnist.npz"
CACHE = Path(os.environ.get("WORKSHOP_CACHE") or DATA.parent.parent / ".cache")
CHOICES = CACHE / "06_choices.json"
TUNING_S = 25  # all the time that choosing may take
SHORT = 50  # fewer steps than this are not worth choosing for


def stop(message):
    """End with one clear line."""
    rank = f" (rank {hvd.rank()})" if hvd.size() > 1 else ""  # Horovod: say who stopped
    sys.exit(f"{STAGE}{rank}: {message}")


# --- data ---


def get_dataset(path):
    """Read and check all of MNIST, left as it is stored: one byte a pixel."""
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
    return x_train[..., np.newaxis], x_test[..., np.newaxis], y_train, y_test


def shuffle(args, images, epoch):
    """This epoch's order of the images, a row of indices for each batch."""
    order = tf.random.experimental.stateless_shuffle(
        tf.range(len(images), dtype=tf.int64), seed=[args.seed, epoch]
    )
    wanted = args.steps_per_epoch * args.batch_size
    return tf.reshape(order[:wanted], [args.steps_per_epoch, args.batch_size])


def put_on_device(x_train, y_train):
    """Eight pixels in a word: a GPU has a kernel to gather words, but none to gather bytes."""
    # Horovod: each rank keeps its own share of the images
    x, y = (np.ascontiguousarray(part[hvd.rank() :: hvd.size()]) for part in (x_train, y_train))
    return tf.constant(x.reshape(len(x), -1).view(np.int64)), tf.constant(y.astype(np.int32))


def fetch_batch(data, order, i_batch):
    words, labels = (tf.gather(part, order[i_batch]) for part in data)
    return normalize(tf.reshape(tf.bitcast(words, tf.uint8), [-1, 28, 28, 1])), labels


def normalize(images):
    return tf.cast(images, tf.float32) / 255


# --- model ---


class ByteDropout(keras.layers.Dropout):
    """Dropout that spends 8 random bits on a value, not 32; rates are exact in 256ths."""

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        words = tf.random.stateless_uniform([tf.size(inputs) // 4], seed, None, None, tf.int32)
        draws = tf.reshape(tf.bitcast(words, tf.uint8), tf.shape(inputs))
        kept = inputs * tf.cast(1 / (1 - self.rate), inputs.dtype)
        return tf.where(draws >= int(256 * self.rate), kept, tf.zeros_like(kept))


class MNISTClassifier(keras.Model):
    """Two convolutions, two dense layers, 1.2 million weights."""

    def __init__(self):
        super().__init__()
        self.conv_1 = keras.layers.Conv2D(32, 3, activation="relu")
        self.conv_2 = keras.layers.Conv2D(64, 3)
        self.pool = keras.layers.MaxPooling2D(2)
        self.dropout_1 = ByteDropout(0.25)
        self.flatten = keras.layers.Flatten()
        self.dense_1 = keras.layers.Dense(128, activation="relu")
        self.dropout_2 = ByteDropout(0.5)
        self.dense_2 = keras.layers.Dense(10, dtype="float32")  # a softmax needs the digits

    def call(self, images, training=False):
        x = self.pool(self.conv_2(self.conv_1(images)))
        x = tf.nn.relu(x)  # after the pool: the same numbers, from a quarter of the values
        x = self.flatten(self.dropout_1(x, training=training))
        x = self.dropout_2(self.dense_1(x), training=training)
        return self.dense_2(x)


class FusedAdam(keras.optimizers.Adam):
    """Adam with one kernel for each weight, instead of a dozen small operations."""

    def _backend_update_step(self, gradients, variables, rate):
        step, rate = tf.cast(self.iterations + 1, tf.float32), tf.cast(rate, tf.float32)
        powers = self.beta_1**step, self.beta_2**step
        for gradient, variable in zip(gradients, variables):
            i = self._get_variable_index(variable)
            tf.raw_ops.ResourceApplyAdam(
                var=variable.value.handle,
                m=self._momentums[i].value.handle,
                v=self._velocities[i].value.handle,
                beta1_power=powers[0],
                beta2_power=powers[1],
                lr=rate,
                beta1=self.beta_1,
                beta2=self.beta_2,
                epsilon=self.epsilon,
                grad=gradient,
            )


def compute_loss(y_true, y_pred):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_true, logits=y_pred)
    return tf.reduce_mean(losses)


# --- step ---


def forward_pass(model, images, labels):
    return compute_loss(labels, model(images, training=True))


def compute_gradients(model, optimizer, images, labels):
    with tf.GradientTape() as tape:
        loss = forward_pass(model, images, labels)
        scaled_loss = optimizer.scale_loss(loss)  # lifts small gradients into float16's range
    return loss, tape.gradient(scaled_loss, model.trainable_variables)


compute_gradients_xla = tf.function(compute_gradients, jit_compile=True)


def average_over_ranks(loss, gradients):
    if hvd.size() > 1:  # Horovod: as one tensor, which needs no copy into its buffer and out again
        parts = [loss, *gradients]
        whole = hvd.allreduce(tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0))
        whole = tf.split(whole, [part.shape.num_elements() for part in parts])
        loss, *gradients = (tf.reshape(new, old.shape) for new, old in zip(whole, parts))
    return loss, gradients


def train_step(model, optimizer, data, order, i_batch, xla):
    images, labels = fetch_batch(data, order, i_batch)
    compute = compute_gradients_xla if xla else compute_gradients
    loss, gradients = compute(model, optimizer, images, labels)
    loss, gradients = average_over_ranks(loss, gradients)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def train_steps(model, optimizer, data, order, first, count, xla):
    """Many steps in one call: Python is asked once, not once a step."""
    losses = tf.TensorArray(tf.float32, count)
    for i in tf.range(count):
        losses = losses.write(i, train_step(model, optimizer, data, order, first + i, xla))
    return losses.stack()


@tf.function
def profiled_step(model, optimizer, data, order, first, count, xla):
    """One step without the loop, in which the profiler cannot tell one step from the next."""
    return train_step(model, optimizer, data, order, first, xla)[tf.newaxis]


# --- choosing: time a few ways to train, take the fastest ---


class Way(NamedTuple):
    xla: bool
    precision: str
    steps_per_call: int
    op_threads: int = 0  # that may work on one operation; 0: one for each core

    def __str__(self):
        told = f"xla {'on' if self.xla else 'off'}, {self.precision}, {self.steps_per_call} a call"
        return told + (f", {self.op_threads} thread an op" if self.op_threads else "")


def candidates(args):
    """The ways that make sense on this device, the safest first; what was asked for stays."""
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        ability = details.get("compute_capability", (0, 0))  # 7: tensor cores, 8: bfloat16 too
        kinds = ["mixed_bfloat16"] * (ability >= (8, 0)) + ["mixed_float16"] * (ability >= (7, 0))
        ways = [(xla, kind, 50) for kind in kinds for xla in (True, False)]
        ways = [(False, "float32", 50), *ways, (True, "float32", 50)]
    else:
        ways = [(False, "float32", 10), (False, "float32", 1)]
        ways += [(True, "float32", 10), (False, "mixed_bfloat16", 10)]
        if args.batch_size < 16 and hvd.size() == 1:  # Horovod: ranks share out the cores already
            ways += [(False, "float32", 10, 1)]  # too small to share: the cores take one op each
    asked = ({"on": True, "off": False}.get(args.xla, "auto"), args.precision, args.steps_per_call)
    ways = [[*(o if a == "auto" else a for o, a in zip(way, asked)), *way[3:]] for way in ways]
    return list(dict.fromkeys(Way(*way) for way in ways))


def choose(args):
    """The fastest way to train here, and the speeds that say so; timed once, then kept."""
    ways = candidates(args)
    if len(ways) == 1 or args.steps < SHORT or hvd.rank() > 0:  # Horovod: rank 0 chooses for all
        return ways[0], None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("TF_NUM_INTRAOP_THREADS", cores)
    key = f"{args.device}, {threads} threads, TensorFlow {tf.__version__}, batch {args.batch_size}"
    key += (
        f", script {zlib.crc32(Path(__file__).read_bytes()):08x}, ways {'; '.join(map(str, ways))}"
    )
    known = {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # none yet, or not ours
        known = dict(json.loads(CHOICES.read_text()))
    speeds = None if args.retune else known.get(key)
    if not isinstance(speeds, dict) or set(speeds) != set(map(str, ways)):
        speeds = try_out(args, ways)
        if args.interrupted or not any(speeds.values()):
            return ways[0], None
        with contextlib.suppress(OSError):  # a read-only folder: next time it is timed again
            CHOICES.parent.mkdir(parents=True, exist_ok=True)
            write_whole(CHOICES, {**known, key: speeds})
    good = [way for way in ways if speeds[str(way)] >= 0.97 * max(speeds.values())]
    logging.info(f"training with {good[0]}")  # the safest of those as fast as the fastest
    return good[0], speeds


def try_out(args, ways):
    """Images per second of each way; 0 for one that failed, or came too late."""
    logging.info(f"timing {len(ways)} ways to train on this device, {TUNING_S} s at most:")
    speeds, left = {str(way): 0 for way in ways}, list(ways)
    deadline = time.monotonic() + 4 * TUNING_S  # so much more for TensorFlow to load
    while left and time.monotonic() < deadline and not args.interrupted:
        # In a process of its own: a way that crashes or never ends then only loses.
        now = [way for way in left if way.op_threads == left[0].op_threads]
        receiver, sender = multiprocessing.Pipe(duplex=False)
        spawn = multiprocessing.get_context("spawn")
        child = spawn.Process(target=time_ways, args=(args, now, sender), daemon=True)
        child.start()
        sender.close()
        with contextlib.suppress(EOFError):  # the child is done, or dead
            while time.monotonic() < deadline and not args.interrupted:
                if receiver.poll(0.1):
                    way, speed = receiver.recv()
                    if way is None:  # it has loaded TensorFlow
                        deadline = min(deadline, time.monotonic() + TUNING_S)
                    else:
                        speeds[str(way)] = speed
                        left = [other for other in left if other != way]
        child.kill()
        child.join(5)
        fatal = [way for way in now if way in left][:1]  # not heard of: what the child died of
        left = [way for way in left if way not in fatal]
    for way, speed in speeds.items():
        told = f"{speed:10,.0f} img/s" if speed else "    failed or too slow"
        logging.info(f"  {way:<48}{told}")
    return speeds


def time_ways(args, ways, sender):
    """The child: compile each way, time them in turns, and send what is known so far."""
    global hvd
    hvd = SimpleNamespace(rank=int, local_rank=int, size=lambda: 1)  # Horovod: rank 0 tries alone
    threading.Thread(target=end_with_parent, daemon=True).start()
    tf.config.threading.set_intra_op_parallelism_threads(ways[0].op_threads)
    choose_device()
    x_train, _, y_train, _ = get_dataset(args.data)
    data, order = put_on_device(x_train, y_train), shuffle(args, x_train, epoch=0)
    sender.send((None, 0))
    ready, times = {}, {}
    for turn in range(4):
        for way in ways:
            if turn == 0:
                try:
                    ready[way] = make_model(args, way.precision)
                    time_way(args, way, ready[way], data, order)  # tracing and compiling
                    times[way] = [time_way(args, way, ready[way], data, order)]
                except Exception:  # it cannot be compiled, or has no room: it loses
                    sender.send((way, 0))
            elif way in times and min(times[way]) < 1.5 * min(map(min, times.values())):
                times[way].append(time_way(args, way, ready[way], data, order))
            if way in times:
                sender.send((way, round(args.batch_size / median(times[way]), 1)))


def end_with_parent():
    """If the training is killed, its child does not go on to hold the device."""
    multiprocessing.parent_process().join()
    os._exit(1)


def time_way(args, way, trained, data, order):
    """Seconds a step, from calls of about as many steps as the training would make."""
    steps, start = 0, time.perf_counter()
    count = 1
    while True:
        count = min(count, way.steps_per_call, len(order))
        train_steps(*trained, data, order, *tf.constant([0, count]), way.xla).numpy()
        steps, spent = steps + count, time.perf_counter() - start
        if spent > 0.5:
            return spent / steps
        count *= 2


# --- loop ---


def train_loop(args, model, optimizer, data, history):
    first, last = args.profile_steps if args.logdir else (args.steps + 1, args.steps + 1)
    if args.logdir and first >= args.steps:
        stop(f"training ends after {args.steps} steps: there is no step {first} to profile")
    with contextlib.ExitStack() as window:  # closes on the way out, so Ctrl+C loses no profile
        while len(history.losses) < args.steps:
            step = len(history.losses)
            epoch, i_batch = divmod(step, args.steps_per_epoch)
            if step == first and hvd.rank() == 0:  # Horovod: one rank's profile tells enough
                tf.profiler.experimental.start(str(args.logdir))
                window.callback(tf.profiler.experimental.stop)
            # A step marker is for a call of one step; the one before the window traces it.
            alone = first - 1 <= step <= last
            count = 1 if alone else args.way.steps_per_call
            ends = (args.warmup, first - 1, last + 1, args.steps)  # a call goes past none of these
            left = (end - step for end in ends if end > step)
            count = min(count, args.steps_per_epoch - i_batch, *left)
            start = time.perf_counter()
            with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
                if i_batch == 0:
                    order = shuffle(args, data[0], epoch)
                steps = profiled_step if alone else train_steps
                span = tf.constant([i_batch, count])
                losses = steps(model, optimizer, data, order, *span, args.way.xla)
                losses = losses.numpy().tolist()  # waits for the device, once a call
            step_time = (time.perf_counter() - start) / count
            history.losses += losses
            if not first <= step <= last:  # recording slows a step: those do not count
                history.times += [step_time] * count
            if step == last:
                window.close()
            for i, loss in enumerate(losses):
                log_step(args, step + i, loss, step_time)


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
        logits = model(normalize(x_test[i : i + 1000]), training=False)
        right += np.count_nonzero(np.argmax(logits, axis=1) == y_test[i : i + 1000])
    return right / len(x_test)


def make_model(args, precision):
    keras.mixed_precision.set_dtype_policy(precision)
    model = MNISTClassifier()
    model(tf.zeros([1, 28, 28, 1]))  # the first call creates the weights
    # Ever smaller steps end in a better place. Horovod: larger batch, larger step
    rate = keras.optimizers.schedules.PolynomialDecay(args.lr * hvd.size(), args.steps, 0.0)
    optimizer = FusedAdam(rate)
    if model.compute_dtype == "float16":  # bfloat16 has float32's range and needs no scaling
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return model, optimizer


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

    args.way, args.tried = choose(args)
    if hvd.size() > 1:  # Horovod: all train the way rank 0 found
        args.way = hvd.broadcast_object(args.way, root_rank=0)
    if args.way.op_threads:  # before the first operation
        tf.config.threading.set_intra_op_parallelism_threads(args.way.op_threads)
    model, optimizer = make_model(args, args.way.precision)
    if hvd.size() > 1:  # Horovod: all start from rank 0's weights, now that they exist
        hvd.broadcast_variables([v.value for v in model.weights + optimizer.variables], root_rank=0)

    data = put_on_device(x_train, y_train)
    history = SimpleNamespace(losses=[], times=[], test_accuracy=None)
    try:
        train_loop(args, model, optimizer, data, history)
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
        "xla": args.way.xla,
        "steps_per_call": args.way.steps_per_call,
        "op_threads": args.way.op_threads,
        "tried": args.tried,
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
        try:
            write_whole(args.results, results)
        except OSError as error:
            stop(f"cannot write {args.results}: {error.strerror}")


def write_whole(path, content):
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(content, indent=2) + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
    keep_to_own_cores()
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return f"CPU, {os.cpu_count()} cores, {(names or [platform.machine()])[0]}"


def keep_to_own_cores():
    """Ranks that share a node's cores take a part each, and TensorFlow as many threads."""
    if hvd.size() > 1 and hasattr(os, "sched_setaffinity"):  # Horovod: they would get in the way
        cores = sorted(os.sched_getaffinity(0))
        share, rank = len(cores) // hvd.local_size(), hvd.local_rank()
        if share and len(cores) == os.cpu_count():  # or else the launcher has bound this rank
            os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


def number(text):
    return text if text == "auto" else int(text)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = stop
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", "--batch_size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.003, help="at the start; it falls to 0")
    parser.add_argument("--steps", type=int, help="stop after this many steps in all")
    parser.add_argument("--data", type=Path, default=os.environ.get("MNIST_NPZ") or DATA)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    precisions = ["auto", "float32", "mixed_float16", "mixed_bfloat16"]
    parser.add_argument("--xla", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--precision", choices=precisions, default="auto")
    parser.add_argument("--steps-per-call", type=number, default="auto", metavar="N")
    parser.add_argument("--retune", action="store_true", help="time the candidates again")
    parser.add_argument("--logdir", type=Path, help="profile a window of steps into this folder")
    window = {"nargs": 2, "metavar": ("FIRST", "LAST"), "help": "the steps to profile"}
    parser.add_argument("--profile-steps", type=int, default=[10, 20], **window)
    parser.add_argument("--results", type=Path, help="write the summary to this JSON file")
    args = parser.parse_args()
    for name in ("epochs", "batch_size", "lr", "steps", "log_every", "seed", "steps_per_call"):
        value, limit = getattr(args, name), float("inf") if name == "lr" else 2**31
        if value not in (None, "auto") and not 0 < value < limit:
            bound = f"less than {limit}" if value > 0 else "greater than 0"
            stop(f"--{name.replace('_', '-')} must be {bound}, not {value}")
    if not 0 <= args.profile_steps[0] <= args.profile_steps[1]:
        stop("--profile-steps takes FIRST and LAST, with 0 <= FIRST <= LAST")
    if args.logdir:
        make_folder(args.logdir)
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
    if not tf.config.list_physical_devices("GPU"):
        # Horovod: its own thread asks every 5 ms, not every 1, and leaves the cores to the training
        os.environ.setdefault("HOROVOD_CYCLE_TIME", "5")
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
