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
STEPS = 20


def time_steps(model, optimizer, images, labels, wait):
    """Milliseconds per step, by a clock that waits for the loss or by one that does not."""
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        loss = train_step(model, optimizer, images, labels)
        if wait:
            float(loss)  # cannot return before the loss exists
        times.append(time.perf_counter() - start)
    float(loss)  # all steps are done before the next clock starts
    return 1000 * sorted(times)[STEPS // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()
    batch_size = args.batch_size
    hvd.init()
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

    start = time.perf_counter()
    quick = time_steps(model, optimizer, images, labels, wait=False)
    wall = 1000 * (time.perf_counter() - start) / STEPS
    true = time_steps(model, optimizer, images, labels, wait=True)
    rows = (("does not wait", quick), ("is on the wall", wall), ("waits", true))
    for name, step in rows:
        print(f"a clock that {name:<15}{step:9.2f} ms/step{1000 * batch_size / step:14,.0f} img/s")


if __name__ == "__main__":
    main()
