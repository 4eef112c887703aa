"""What test_horovod.py runs in each rank: every stage in one process, for starting one takes longer
than a few steps; and what only the rank itself can see.

ranks.py FOLDER   the data is there already; leaves FOLDER/rankN.pickle
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from tests.conftest import LAST, SCRIPTS, Ended, Script, load_script, run_main, script_id, stages

RANK = int(os.environ.get("HOROVOD_RANK", 0))
SIZE = int(os.environ.get("HOROVOD_SIZE", 1))
GLOBAL_BATCH = 64
warnings.filterwarnings("ignore", r"`build\(\)` was called on layer 'smooth")  # of Smooth, below


def digest(variables: list[Any]) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in variables)).hexdigest()


def image_numbers(images: Any, labels: Any) -> list[int]:
    """The images' places in the file, which their first pixel spells."""
    numbers = np.rint(np.asarray(images)[:, 0, 0, 0] * 255).astype(int)
    assert (numbers % 10 == np.asarray(labels)).all(), "an image has another's label"
    return numbers.tolist()


def drawn_images(module: ModuleType, *options: object) -> list[list[int]]:
    """The images of every step, drawn by the stage's own loop; nothing is trained."""
    drawn: list[list[int]] = []

    def train_step(model: Any, optimizer: Any, images: Any, labels: Any, *xla: bool) -> Any:
        drawn.append(image_numbers(images, labels))
        return module.tf.constant(0.0)

    module.tf.config.run_functions_eagerly(True)
    with mock.patch.object(module, "train_step", train_step):
        ended = run_main(module, *options)
    module.tf.config.run_functions_eagerly(False)
    assert ended.status == 0, ended
    return drawn


def trained(module: ModuleType, *options: object) -> dict[str, Any]:
    """The weights and the optimizer's state on the way through the stage, and its losses."""
    seen: dict[str, Any] = {}
    broadcast, train_loop = module.hvd.broadcast_variables, module.train_loop

    def watched_broadcast(variables: list[Any], root_rank: int) -> None:
        seen.update(count=len(variables), made=digest(variables))
        broadcast(variables, root_rank=root_rank)

    def watched_loop(args: Any, model: Any, optimizer: Any, *rest: Any) -> None:
        variables = model.weights + optimizer.variables
        before = [v.numpy() for v in variables]
        seen.update(names=[v.path for v in variables], before=digest(variables))
        train_loop(args, model, optimizer, *rest)
        after = [v.numpy() for v in variables]
        moved = [np.abs(new - old).max() for new, old in zip(after, before)]
        losses = [loss for _, _, loss in rest[-1]]
        seen.update(after=after, digest=digest(variables), moved=moved, losses=losses)

    with (
        mock.patch.object(module.hvd, "broadcast_variables", watched_broadcast),
        mock.patch.object(module, "train_loop", watched_loop),
    ):
        ended = run_main(module, *options)
    assert ended.status == 0, ended
    return {**seen, "ended": ended}


def smooth_model(module: ModuleType) -> type:
    """The stage's model without dropout, whose random bits ranks cannot share, and without the
    kinks of relu and max-pooling, where a number's last bit can send a gradient elsewhere."""

    class Smooth(module.MNISTClassifier):
        def __init__(self) -> None:
            super().__init__()
            self.dropout_1.rate = self.dropout_2.rate = 0
            self.pool = module.keras.layers.AveragePooling2D(2)
            for layer in (self.conv_1, self.conv_2, self.dense_1):
                layer.activation = module.tf.nn.softplus

    return Smooth


def probe(script: Script, folder: Path) -> dict[str, Any]:
    """Five steps on one global batch, shared out or not: ranks must train as one process does."""
    module = load_script(script)
    module.MNISTClassifier = smooth_model(module)
    module.hvd.init()
    seen: dict[str, Any] = {}
    if SIZE > 1:
        few = ["--data", folder / "shards.npz", "--batch-size", 8, "--epochs", 3]
        seen["drawn"] = drawn_images(module, *few)
        module.hvd.start_timeline(str(folder / f"{script_id(script)}.timeline"))
    options = ["--data", folder / "one_batch.npz", "--batch-size", GLOBAL_BATCH // SIZE]
    options += ["--epochs", 5, "--lr", 0.001 / SIZE, "--results", folder / "r.json"]
    if script in stages("04", "05", "06"):
        options += ["--logdir", folder / script_id(script), "--profile-steps", 2, 3]
    if script in stages("05"):
        options += ["--profile-ranks", "all"]
    if script in stages("05", "06"):
        options += ["--precision", "float32"]
    seen |= trained(module, *options)
    if SIZE > 1:
        module.hvd.stop_timeline()
    if RANK == 0:
        seen["results"] = (folder / "r.json").read_text()
    return seen


def compiled(folder: Path) -> dict[str, Any]:
    """06 as it is, many steps in a call, with --xla call."""
    options = ["--data", folder / "small.npz", "--batch-size", 16, "--steps", 9, "--xla", "call"]
    options += ["--steps-per-call", 3, "--logdir", folder / "call", "--profile-steps", 1, 2]
    return trained(load_script(LAST), *options)


def poisoned(folder: Path) -> Ended:
    """NaN on the last rank. Stage 00: a graph's fused kernels turn it into 0 at the first relu."""
    module = load_script(SCRIPTS[0])
    fetch_batch = module.fetch_batch

    def poison(args: Any, epoch: int, i_batch: int) -> tuple[Any, Any]:
        images, labels = fetch_batch(args, epoch, i_batch)
        if RANK == SIZE - 1 and i_batch == 3:
            images = images * np.nan
        return images, labels

    module.fetch_batch = poison
    return run_main(module, "--data", folder / "small.npz", "--results", folder / "nan.json")


def main(folder: Path) -> None:
    seen: dict[str, Any] = {script_id(script): probe(script, folder) for script in SCRIPTS}
    seen |= {"call": compiled(folder), "nan": poisoned(folder)}
    before = time.process_time()
    time.sleep(0.5)
    seen["idle"] = time.process_time() - before
    (folder / f"rank{RANK}.pickle").write_bytes(pickle.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
