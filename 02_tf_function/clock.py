"""A clock that does not wait for the device: the same training steps, timed twice.

python clock.py                        # the step of train_MNIST.py, batch 64
python clock.py --batch-size 1024
"""

import argparse
import time
from pathlib import Path
from statistics import median

import train_MNIST as stage  # first: it sets the environment that TensorFlow reads
from train_MNIST import keras, tf

STEPS = 10
ROUNDS = 3


def time_steps(model, optimizer, images, labels, wait):
    """The seconds of each step by the clock, and the average on the wall."""
    times = []
    wall_start = time.perf_counter()
    for _ in range(STEPS):
        start = time.perf_counter()
        loss = stage.train_step(model, optimizer, images, labels)
        if wait:
            float(loss)  # cannot return before the loss exists
        times.append(time.perf_counter() - start)
    float(loss)  # all steps are done before the next clock starts
    wall = (time.perf_counter() - wall_start) / STEPS
    return times, wall


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=stage.positive_int, default=64)
    parser.add_argument("--data", type=Path, default=stage.default_data())
    return parser.parse_args()


def main():
    args = parse_args()
    stage.hvd.init()
    # A GPU always runs behind Python. This makes a CPU do so too.
    tf.config.experimental.set_synchronous_execution(False)

    x_train, y_train, _, _ = stage.get_dataset(args.data)
    if args.batch_size > len(x_train):
        stage.fail(f"--batch-size {args.batch_size} is more than the {len(x_train)} images")
    images = tf.constant(x_train[: args.batch_size])
    labels = tf.constant(y_train[: args.batch_size])
    model = stage.MNISTClassifier()
    model(images)
    optimizer = keras.optimizers.Adam(0.001)
    optimizer.build(model.trainable_variables)
    float(stage.train_step(model, optimizer, images, labels))  # tracing: not part of the timing

    not_waiting = []
    waiting = []
    walls = []
    for _ in range(ROUNDS):  # in turns: a busy machine disturbs both
        times, wall = time_steps(model, optimizer, images, labels, wait=False)
        not_waiting += times
        walls.append(wall)
        times, _ = time_steps(model, optimizer, images, labels, wait=True)
        waiting += times

    rows = [("does not wait", not_waiting), ("is on the wall", walls), ("waits", waiting)]
    for name, times in rows:
        step = median(times)
        speed = args.batch_size / step
        print(f"a clock that {name:<15}{1000 * step:9.2f} ms/step{speed:14,.0f} img/s")


if __name__ == "__main__":
    main()
