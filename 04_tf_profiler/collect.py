"""Collect a profile in three more ways, with the training of train_MNIST.py in this folder.

python collect.py context     # Profile(...) around some steps of your own loop
python collect.py callback    # Keras's TensorBoard callback, for model.fit
python collect.py server      # a training that can be sampled while it runs: leave it running,
python collect.py sample      # and sample it from another terminal
"""

import argparse
import socket
from pathlib import Path

import train_MNIST as stage  # first: it sets the environment that TensorFlow reads
from train_MNIST import keras, tf

stage.STAGE = Path(__file__).name  # the name before an error message

FIRST, LAST = 10, 19  # the steps to profile: after tracing and compiling, ten are plenty


# --- the ways ---


def profile_with_context(args):
    """For your own loop. The profile is written when the block ends, even by an exception."""
    train_one_step = prepare_training(args)
    for step in range(FIRST):
        train_one_step(step)
    with tf.profiler.experimental.Profile(str(args.logdir)):
        for step in range(FIRST, LAST + 1):
            train_one_step(step)


class TensorBoardWithSteps(keras.callbacks.TensorBoard):
    """Keras's callback with step markers that every tool understands.

    Keras sets none before 3.7, and later ones without _r=1, which TensorBoard passes over.

    The marker is inside the recording, and around all that fit() does for a batch: Keras fetches
    the batch inside its train function, so waiting for input is part of the step.
    """

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.batches_seen = 0  # over all epochs, as profile_batch counts

    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)  # starts the recording
        self.batches_seen += 1
        self.marker = tf.profiler.experimental.Trace("train", step_num=self.batches_seen, _r=1)
        self.marker.__enter__()

    def on_train_batch_end(self, batch, logs=None):
        self.marker.__exit__(None, None, None)
        super().on_train_batch_end(batch, logs)  # ends the recording


def profile_with_callback(args):
    """For model.fit. Batches count from 1; the first one compiles, so the window starts at 2."""
    images, labels, _, _ = stage.get_dataset(args.data)
    model = stage.MNISTClassifier()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=use_xla())
    callback = TensorBoardWithSteps(str(args.logdir), profile_batch=(2, 20))
    size = 30 * args.batch_size
    model.fit(images[:size], labels[:size], args.batch_size, callbacks=[callback], verbose=2)


def train_with_server(args):
    """For a program that runs for a long time. The server costs nothing until it is sampled."""
    if is_listening("localhost", args.port):  # TensorFlow would share the port silently
        stage.fail(f"port {args.port} is in use: choose another with --port")
    tf.profiler.experimental.server.start(args.port)
    train_one_step = prepare_training(args)
    for step in range(args.steps):
        loss = train_one_step(step)
        if step == FIRST:
            print(f"training; now: python collect.py sample --port {args.port}", flush=True)
    print(f"{args.steps} steps, loss {loss:.3f}")


def sample(args):
    """The sampled program writes the file, from where it runs: the path must be absolute."""
    if not is_listening(args.host, args.port):
        stage.fail(f"no answer from {args.host}:{args.port}: start python collect.py server there")
    address = f"grpc://{args.host}:{args.port}"
    logdir = str(args.logdir.resolve())
    try:
        tf.profiler.experimental.client.trace(address, logdir, args.ms)
    except tf.errors.UnavailableError:
        stage.fail(f"{args.host}:{args.port} sent no profile: is it a profiler server?")


def is_listening(host, port):
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((host, port)) == 0


# --- the training ---


def use_xla():
    """As train_MNIST.py chooses."""
    return bool(tf.config.list_physical_devices("GPU"))


def prepare_training(args):
    """This stage's training; returns a function that runs one marked step."""
    images, labels, _, _ = stage.get_dataset(args.data)
    model = stage.MNISTClassifier()
    model(images[:1])  # the first call creates the weights
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    args.steps_per_epoch = len(images) // args.batch_size
    batches = stage.make_batches(args, images, labels)
    xla = use_xla()

    def train_one_step(step):
        with tf.profiler.experimental.Trace("train", step_num=step, _r=1):
            images, labels = stage.fetch_batch(batches)
            return float(stage.train_step(model, optimizer, images, labels, xla))

    return train_one_step


# --- main ---

WAYS = {
    "context": profile_with_context,
    "callback": profile_with_callback,
    "server": train_with_server,
    "sample": sample,
}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--logdir", type=Path, default="logs", help="where the profile goes")
    parser.add_argument("--batch-size", type=stage.positive_int, default=64)
    parser.add_argument("--data", type=Path, default=stage.default_data())
    parser.add_argument("--steps", type=stage.positive_int, default=1000, help="server: how many")
    parser.add_argument("--port", type=stage.positive_int, default=6009, help="server and sample")
    parser.add_argument("--host", default="localhost", help="sample: the node of the training")
    parser.add_argument("--ms", type=stage.positive_int, default=2000, help="sample: for how long")
    return parser.parse_args()


def main():
    args = parse_args()
    args.seed = 1
    stage.hvd.init()
    if stage.hvd.size() > 1:
        stage.fail("this is for one process; with many, use train_MNIST.py --profile-ranks")
    stage.make_folder(args.logdir)
    keras.utils.set_random_seed(args.seed)
    try:
        WAYS[args.way](args)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if args.way != "server":
        print(f"profile recorded; to see it: ../workshop report {args.logdir}")


if __name__ == "__main__":
    main()
