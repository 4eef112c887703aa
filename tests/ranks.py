"""What test_horovod.py runs in each rank: every stage in one go, for a process's start costs more
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
from conftest import LAST, SCRIPTS, Ended, load_script, run_main, script_id, stages

RANK = int(os.environ.get("HOROVOD_RANK", 0))
SIZE = int(os.environ.get("HOROVOD_SIZE", 1))
GLOBAL_BATCH = 64
warnings.filterwarnings("ignore", r"`build\(\)` was called on layer 'smooth")  # of Smooth, below


def digest(variables: list[Any]) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in variables)).hexdigest()


def indices(images: Any, labels: Any) -> list[int]:
    """The images' places in the file, which their first two pixels spell."""
    pixels = np.rint(np.asarray(images)[:, 0, :2, 0] * 255).astype(int)
    found = pixels[:, 0] * 256 + pixels[:, 1]
    assert (found % 10 == np.asarray(labels)).all(), "an image has another's label"
    return found.tolist()


def drawn(module: ModuleType, *options: object) -> list[list[int]]:
    """The images of every step, drawn by the stage's own loop; nothing is trained."""
    seen: list[list[int]] = []

    def step(model: Any, optimizer: Any, images: Any, labels: Any, *xla: bool) -> float:
        seen.append(indices(images, labels))
        return 0.0

    def steps(model: Any, optimizer: Any, data: Any, order: Any, *span: Any) -> Any:
        first, count, _ = span
        for i in range(first, first + count):
            seen.append(indices(*module.fetch_batch(data, order, i)))
        return module.tf.zeros(count)

    function = module.tf.function  # Keras uses it too

    def plain(python_function: Any = None, **options: Any) -> Any:
        return steps if python_function is steps else function(python_function, **options)

    name, stand_in = "train_step", step
    if hasattr(module, "train_steps"):
        name, stand_in = "train_steps", steps
    with mock.patch.object(module, name, stand_in), mock.patch.object(module.tf, "function", plain):
        ended = run_main(module, *options)
    assert ended.status == 0, ended
    return seen


def trained(module: ModuleType, *options: object) -> dict[str, Any]:
    """The weights and the optimizer's state on the way through the stage, and its losses."""
    seen: dict[str, Any] = {}
    broadcast, train_loop = module.hvd.broadcast_variables, module.train_loop

    def watched(variables: list[Any], root_rank: int) -> None:
        seen.update(count=len(variables), made=digest(variables))
        broadcast(variables, root_rank=root_rank)

    def loop(args: Any, model: Any, optimizer: Any, *rest: Any) -> None:
        variables = model.weights + optimizer.variables
        before = [v.numpy() for v in variables]
        seen.update(names=[v.path for v in variables], before=digest(variables))
        train_loop(args, model, optimizer, *rest)
        after = [v.numpy() for v in variables]
        moved = [np.abs(new - old).max() for new, old in zip(after, before)]
        losses = [loss for _, _, loss in rest[-1]]
        seen.update(after=after, digest=digest(variables), moved=moved, losses=losses)

    watching = mock.patch.object(module.hvd, "broadcast_variables", watched)
    with watching, mock.patch.object(module, "train_loop", loop):
        ended = run_main(module, *options)
    assert ended.status == 0, ended
    return {**seen, "ended": ended}


def smoothed(module: ModuleType) -> type:
    """The stage's model without dropout, whose random bits ranks cannot share, and without the
    kinks of relu and max-pooling, where a number's last bit can send a gradient elsewhere."""
    layers = module.keras.layers

    class Smooth(module.MNISTClassifier):
        def __init__(self) -> None:
            super().__init__()
            self.dropout_1.rate = self.dropout_2.rate = 0
            self.pool = layers.AveragePooling2D(2)
            for layer in (self.conv_1, self.conv_2, self.dense_1):
                layer.activation = module.tf.nn.softplus

    return Smooth


def probe(script: tuple[str, str], folder: Path, **extra: object) -> dict[str, Any]:
    """Five steps on one global batch, shared out or not: ranks must train as one process does."""
    module = load_script(script)
    module.MNISTClassifier = smoothed(module)
    more: list[object] = []
    if script in stages("04", "05", "06"):
        more += ["--logdir", folder / script_id(script), "--profile-steps", 2, 3]
    more += ["--profile-ranks", "all"] if script in stages("05") else []
    more += ["--precision", "float32"] if script in stages("05", "06") else []
    module.hvd.init()
    if SIZE > 1:
        few = ["--data", folder / "shards.npz", "--batch-size", 8, "--epochs", 3]
        extra["drawn"] = drawn(module, *few)
        module.hvd.start_timeline(str(folder / f"{script_id(script)}.timeline"))
    whole = ["--data", folder / "one_batch.npz", "--batch-size", GLOBAL_BATCH // SIZE]
    whole += ["--epochs", 5, "--lr", 0.001 / SIZE, "--results", folder / "r.json", *more]
    seen = {**trained(module, *whole), **extra}
    if SIZE > 1:
        module.hvd.stop_timeline()
    if RANK == 0:
        seen["results"] = (folder / "r.json").read_text()
    return seen


def compiled(script: tuple[str, str], folder: Path) -> dict[str, Any]:
    """06 as it is, many steps in a call, with --xla call: what it compiles, and where it ends."""
    module, asked = load_script(script), []
    function = module.tf.function

    def asking(python_function: Any = None, **options: Any) -> Any:
        if python_function:
            asked.append((python_function.__name__, options.get("jit_compile")))
        return function(python_function, **options)

    options = ["--data", folder / "small.npz", "--batch-size", 16, "--steps", 9, "--xla", "call"]
    options += ["--steps-per-call", 3, "--logdir", folder / "call", "--profile-steps", 1, 2]
    with mock.patch.object(module.tf, "function", asking):
        return {**trained(module, *options), "asked": asked}


def poisoned(folder: Path) -> Ended:
    """In stage 00: the fused kernels of a graph turn a NaN into 0 at the first relu."""
    module, calls = load_script(SCRIPTS[0]), []
    fetch_batch = module.fetch_batch

    def poison(*args: Any) -> tuple[Any, Any]:
        images, labels = fetch_batch(*args)
        calls.append(None)
        return images * (np.nan if RANK == SIZE - 1 and len(calls) == 4 else 1), labels

    module.fetch_batch = poison
    return run_main(module, "--data", folder / "small.npz", "--results", folder / "nan.json")


def other_data(folder: Path) -> Ended:
    data = folder / ("other.npz" if RANK else "small.npz")
    return run_main(load_script(LAST), "--data", data, "--results", folder / "other.json")


def main(folder: Path) -> None:
    seen: dict[str, Any] = {script_id(script): probe(script, folder) for script in SCRIPTS}
    seen |= {"call": compiled(LAST, folder), "nan": poisoned(folder), "other": other_data(folder)}
    before = time.process_time()
    time.sleep(0.5)
    seen["idle"] = time.process_time() - before
    (folder / f"rank{RANK}.pickle").write_bytes(pickle.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
