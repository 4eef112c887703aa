"""Collect a profile in three more ways, with the training of train_MNIST.py in this folder.

python collect.py context    Profile(...) around some steps of your own loop
python collect.py callback   Keras's TensorBoard callback, for model.fit
python collect.py server     a training that can be sampled while it runs: leave it running, and
python collect.py sample     from another terminal, sample it
"""

import argparse
import itertools
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import train_MNIST as stage  # first: it sets the environment that TensorFlow reads
from train_MNIST import keras, tf

DATA = os.environ.get("MNIST_NPZ") or Path(__file__).resolve().parents[1] / "data/mnist.npz"
XLA = bool(tf.config.list_physical_devices("GPU"))  # as train_MNIST.py does
FIRST, LAST = 10, 19  # the steps to profile: after tracing and compiling, ten are plenty


def stop(message):
    """End with one clear line."""
    sys.exit(f"{Path(sys.argv[0]).name}: {message}")


def make_folder(path):
    """Before the training, so that a folder that is not writable is noticed in time."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        stop(f"cannot write to {path}: {error.strerror}")


# --- the ways ---


def profile_with_context(args):
    """For your own loop. The profile is written when the block ends, even by an exception."""
    one_step = prepare(args)
    for step in range(FIRST):
        one_step(step)
    with tf.profiler.experimental.Profile(str(args.logdir)):
        for step in range(FIRST, LAST + 1):
            one_step(step)


class TensorBoardWithSteps(keras.callbacks.TensorBoard):
    """Keras's callback with the step markers that Keras 3 leaves out: without them, no step time.

    The marker is inside the recording, and around all that fit() does for a batch: Keras fetches
    the batch inside its train function, so waiting for input is part of the step.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.numbers = itertools.count(1)  # as profile_batch counts: over all epochs

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)  # starts the recording
        number = next(self.numbers)
        self.marker = tf.profiler.experimental.Trace("train", step_num=number, _r=1)
        self.marker.__enter__()

    def on_train_batch_end(self, batch, logs=None):
        self.marker.__exit__(None, None, None)
        super().on_train_batch_end(batch, logs)  # ends the recording


def profile_with_callback(args):
    """For model.fit. Batches count from 1; the first one compiles, so the window starts at 2."""
    images, _, labels, _ = stage.get_dataset(args.data)
    model = stage.MNISTClassifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=XLA)
    callback = TensorBoardWithSteps(str(args.logdir), profile_batch=(2, 20))
    size = 30 * args.batch_size
    model.fit(images[:size], labels[:size], args.batch_size, callbacks=[callback], verbose=2)


def train_with_server(args):
    """For a program that runs for a long time. The server costs nothing until it is sampled."""
    if answers("localhost", args.port):  # TensorFlow would share the port silently
        stop(f"port {args.port} is in use: choose another with --port")
    tf.profiler.experimental.server.start(args.port)
    one_step = prepare(args)
    for step in range(args.steps):
        loss = one_step(step)
        if step == FIRST:
            print(f"training; now: python collect.py sample --port {args.port}", flush=True)
    print(f"{args.steps} steps, loss {loss:.3f}")


def sample(args):
    """The sampled program writes the file, from where it runs: the path must be absolute."""
    if not answers(args.host, args.port):
        stop(f"no answer from {args.host}:{args.port}: start python collect.py server there")
    make_folder(args.logdir)
    address, logdir = f"grpc://{args.host}:{args.port}", args.logdir.resolve()
    try:
        tf.profiler.experimental.client.trace(address, str(logdir), args.ms)
    except tf.errors.UnavailableError:
        stop(f"{args.host}:{args.port} sent no profile: is it a profiler server?")


def answers(host, port):
    """Whether something listens there."""
    with socket.socket() as probe:
        probe.settimeout(5)
        try:
            probe.connect((host, port))
        except OSError:  # refused, no such host, no answer
            return False
    return True


# --- the training ---


def prepare(args):
    """This stage's training; returns a function that runs one marked step."""
    images, _, labels, _ = stage.get_dataset(args.data)
    model = stage.MNISTClassifier()
    model(images[:1])  # the first call creates the weights
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    args.steps_per_epoch = len(images) // args.batch_size
    batches = stage.make_batches(args, images, labels)

    def one_step(step):
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            return float(stage.train_step(model, optimizer, *stage.fetch_batch(batches), XLA))

    return one_step


# --- main ---

WAYS = {
    "context": profile_with_context,
    "callback": profile_with_callback,
    "server": train_with_server,
    "sample": sample,
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = stop
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--logdir", type=Path, default="logs", help="where the profile goes")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--steps", type=int, default=1000, help="server: how long to train")
    parser.add_argument("--port", type=int, default=6009, help="server and sample")
    parser.add_argument("--host", default="localhost", help="sample: the node of the training")
    parser.add_argument("--ms", type=int, default=2000, help="sample: for how long")
    args = parser.parse_args()
    args.seed = 1
    for name in ("batch_size", "steps", "port", "ms"):
        if not 0 < getattr(args, name) < 2**16:
            stop(f"--{name.replace('_', '-')} must be between 1 and 65535")
    if args.way in ("context", "callback"):
        make_folder(args.logdir)
    return args


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl+C: just exit
    stage.hvd.init()
    if stage.hvd.size() > 1:
        stop("this is for one process; with many, use train_MNIST.py, which profiles rank 0")
    args = parse_args()
    keras.utils.set_random_seed(args.seed)
    WAYS[args.way](args)
    if args.way != "server":
        print(f"profile recorded; to see it: ../workshop report {args.logdir}")


if __name__ == "__main__":
    main()
