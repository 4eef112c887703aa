"""What test_horovod.py runs in each rank: a stage, and what only the rank itself can see of it.

ranks.py watch FOLDER SCRIPT OPTIONS...   digests of the weights: made, broadcast, trained
ranks.py probe FOLDER SHARDS ONE_BATCH    which images every stage draws, and where it trains to
ranks.py poison SCRIPT OPTIONS...         the last rank's images turn into NaN at step 3
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import numpy as np
from conftest import ROOT, SCRIPTS, load_script, run_main, script_id, stages

RANK = int(os.environ.get("HOROVOD_RANK", 0))
SIZE = int(os.environ.get("HOROVOD_SIZE", 1))


def keep(folder: str, seen: object) -> None:
    Path(folder, f"rank{RANK}.pickle").write_bytes(pickle.dumps(seen))


def split(path: str) -> tuple[str, str]:
    script = Path(path).relative_to(ROOT)
    return str(script.parent), script.name


def digest(variables: list[Any]) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in variables)).hexdigest()


def watch(folder: str, path: str, *options: str) -> None:
    """Run the stage as it is; note the weights and the optimizer state around the broadcast."""
    module = load_script(split(path))
    broadcast, seen = module.hvd.broadcast_variables, {}

    def watched(variables: list[Any], root_rank: int) -> None:
        seen.update(count=len(variables), made=digest(variables), variables=variables)
        broadcast(variables, root_rank=root_rank)
        seen.update(broadcast=digest(variables))

    module.hvd.broadcast_variables = watched
    sys.argv = [path, *options]
    try:
        module.main()
    finally:
        seen.update(trained=digest(seen.pop("variables")), cores=os.sched_getaffinity(0))
        keep(folder, seen)


def indices(images: Any, labels: Any) -> list[int]:
    """The images' places in the file, which their first two pixels spell."""
    pixels = np.rint(np.asarray(images)[:, 0, :2, 0] * 255).astype(int)
    found = pixels[:, 0] * 256 + pixels[:, 1]
    assert (found % 10 == np.asarray(labels)).all(), "an image has another's label"
    return found.tolist()


def drawn(module: ModuleType, *options: object) -> list[list[int]]:
    """The images of every step, drawn by the stage's own loop; nothing is trained."""
    seen: list[list[int]] = []

    def step(model: Any, optimizer: Any, images: Any, labels: Any) -> float:
        seen.append(indices(images, labels))
        return 0.0

    def steps(model: Any, optimizer: Any, data: Any, order: Any, *span: Any) -> Any:
        first, count, _ = span
        for i in range(first, first + count):
            seen.append(indices(*module.fetch_batch(data, order, i)))
        return module.tf.zeros(count)

    name = "train_steps" if hasattr(module, "train_steps") else "train_step"
    original = getattr(module, name)
    setattr(module, name, steps if name == "train_steps" else step)
    ended = run_main(module, *options)
    setattr(module, name, original)
    assert ended.status == 0, ended
    return seen


def trained(module: ModuleType, *options: object) -> dict[str, Any]:
    """The weights and the optimizer state before and after training, and the losses."""
    seen: dict[str, Any] = {}
    original: Callable[..., None] = module.train_loop

    def loop(args: Any, model: Any, optimizer: Any, *rest: Any) -> None:
        variables = model.weights + optimizer.variables
        before = [v.numpy() for v in variables]
        seen.update(names=[v.path for v in variables], before=digest(variables))
        original(args, model, optimizer, *rest)
        after = [v.numpy() for v in variables]
        moved = [np.abs(new - old).max() for new, old in zip(after, before)]
        seen.update(after=after, digest=digest(variables), moved=moved, losses=rest[-1].losses)

    module.train_loop = loop
    ended = run_main(module, *options)
    module.train_loop = original
    assert ended.status == 0, ended
    return seen


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


def probe(folder: str, shards: str, one_batch: str) -> None:
    """Every stage in one go: the start of a process costs more than a few steps."""
    seen = {}
    for script in SCRIPTS:
        module = load_script(script)
        module.MNISTClassifier = smoothed(module)
        more: list[object] = ["--logdir", folder, "--profile-steps", 1, 1]
        more = more if script in stages("04", "05") else []
        more += ["--precision", "float32"] if script in stages("05") else []
        few = ["--data", shards, "--batch-size", 8, "--epochs", 3, *more]
        whole = ["--data", one_batch, "--batch-size", 64 // SIZE, "--epochs", 5, *more]
        seen[script_id(script)] = {
            "drawn": drawn(module, *few) if SIZE > 1 else None,
            "trained": trained(module, *whole, "--lr", 0.001 / SIZE),
        }
    keep(folder, seen)


def poison(path: str, *options: str) -> None:
    module = load_script(split(path))
    fetch_batch, calls = module.fetch_batch, []

    def poisoned(*args: Any) -> tuple[Any, Any]:
        images, labels = fetch_batch(*args)
        calls.append(None)
        return images * (np.nan if RANK == SIZE - 1 and len(calls) == 4 else 1), labels

    module.fetch_batch = poisoned
    sys.argv = [path, *options]
    module.main()


if __name__ == "__main__":
    {"watch": watch, "probe": probe, "poison": poison}[sys.argv[1]](*sys.argv[2:])
