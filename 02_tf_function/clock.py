"""A clock that does not wait for the device: the same training steps, timed twice.

python clock.py                 the step of train_MNIST.py, batch 64
python clock.py --batch-size 1024
"""

import argparse
import os
import time
from pathlib import Path

from train_MNIST import MNISTClassifier, get_dataset, hvd, keras, stop, tf, train_step

DATA = os.environ.get("MNIST_NPZ") or Path(__file__).resolve().parents[1] / "data/mnist.npz"
STEPS, ROUNDS = 10, 3


def time_steps(model, optimizer, images, labels, wait):
    """Seconds of each step, by a clock that waits for the loss or not; and those on the wall."""
    times, began = [], time.perf_counter()
    for _ in range(STEPS):
        start = time.perf_counter()
        loss = train_step(model, optimizer, images, labels)
        if wait:
            float(loss)  # cannot return before the loss exists
        times.append(time.perf_counter() - start)
    float(loss)  # all steps are done before the next clock starts
    return times, (time.perf_counter() - began) / STEPS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.error = stop
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--data", type=Path, default=DATA)
    hvd.init()
    args = parser.parse_args()
    batch_size = args.batch_size
    # A GPU always runs behind Python. This makes a CPU do so too.
    tf.config.experimental.set_synchronous_execution(False)
    x_train, _, y_train, _ = get_dataset(args.data)
    if not 0 < batch_size <= len(x_train):
        stop(f"--batch-size must be from 1 to {len(x_train)}, not {batch_size}")
    images, labels = tf.constant(x_train[:batch_size]), tf.constant(y_train[:batch_size])
    model, optimizer = MNISTClassifier(), keras.optimizers.Adam(0.001)
    model(images)
    optimizer.build(model.trainable_variables)
    float(train_step(model, optimizer, images, labels))  # tracing: not part of the timing

    rows = {"does not wait": [], "is on the wall": [], "waits": []}
    for _ in range(ROUNDS):  # in turns: a busy machine disturbs both
        times, wall = time_steps(model, optimizer, images, labels, wait=False)
        rows["does not wait"] += times
        rows["is on the wall"].append(wall)
        rows["waits"] += time_steps(model, optimizer, images, labels, wait=True)[0]
    for name, times in rows.items():
        step = sorted(times)[len(times) // 2]
        print(f"a clock that {name:<15}{1000 * step:9.2f} ms/step{batch_size / step:14,.0f} img/s")


if __name__ == "__main__":
    main()
