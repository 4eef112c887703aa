"""What the container definition runs while the image is built and tested; needs no GPU.

image.py missing REQUIREMENTS...   the pins of packages that this Python does not have at all
image.py check                     one line per check; exit 1 if one fails
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# These must have the version that the workshop was written for (the first two numbers). For the
# rest it is enough that ./workshop can import them.
STACK = (
    "tensorflow",
    "keras",
    "horovod",
    "numpy",
    "protobuf",
    "tensorboard",
    "tensorboard-plugin-profile",
    "line-profiler",
)
# If pip followed dependencies it would install these: another TensorFlow, another CUDA.
INTRUDERS = ("tensorflow-cpu", "nvidia-cudnn-cu12", "nvidia-cublas-cu12", "nvidia-nccl-cu12")
SETTINGS = {"WORKSHOP_PYTHON_ENV": "system", "PYTHONNOUSERSITE": "1", "TF_USE_LEGACY_KERAS": "0"}


def normal(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    found = metadata.distributions()  # a folder left by a broken installation has no name
    return {normal(d.metadata["Name"]): d.version for d in found if d.metadata["Name"]}


# --- missing ---


def applies(marker: str) -> bool:
    """Whether a pin is for this Python; the requirements files use only one kind of marker."""
    if not marker:
        return True
    found = re.fullmatch(r'python_version < "3\.(\d+)"', marker)
    if not found:
        sys.exit(f"image.py: cannot read the marker {marker!r}")
    return sys.version_info[:2] < (3, int(found[1]))


def pins(path: Path) -> dict[str, str]:
    """Package to version, as a requirements file pins them for this Python."""
    pinned = {}
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        found = re.fullmatch(r"([\w.-]+)==([^;\s]+)\s*(?:;\s*(.*))?", line)
        if not found:
            sys.exit(f"image.py: {path}: not a pin: {line}")
        if applies(found[3] or ""):
            pinned[found[1]] = found[2]
    return pinned


def missing(paths: list[Path], have: dict[str, str]) -> list[str]:
    """What to install: never another version of something that is there."""
    wanted = {name: version for path in paths for name, version in pins(path).items()}
    return [f"{name}=={version}" for name, version in wanted.items() if normal(name) not in have]


# --- check ---


@dataclass
class Found:
    """What the image contains, as far as can be seen without a GPU."""

    versions: dict[str, str]
    environment: dict[str, str]
    cuda: str | None  # the CUDA version that TensorFlow was built with
    horovod: dict[str, bool] | str  # what it was built with, or why it does not load
    mpirun: str  # first line of its version
    cannot_import: list[str]
    training: dict = field(default_factory=dict)  # results of stage 02
    training_error: str = ""


def wanted_versions() -> dict[str, str]:
    """The workshop's versions, from where it keeps them."""
    from tfworkshop.environment.horovod_build import HOROVOD_VERSION
    from tfworkshop.machine import TENSORFLOW_VERSION

    pinned = {normal(name): v for name, v in pins(ROOT / "requirements.txt").items()}
    pinned.update(tensorflow=TENSORFLOW_VERSION, horovod=HOROVOD_VERSION)
    return {name: pinned[name] for name in STACK}


def judge(found: Found) -> list[tuple[bool, str]]:
    """Each check as (good, line)."""
    lines = []
    for name, version in wanted_versions().items():
        have = found.versions.get(name, "not there")
        series = ".".join(version.split(".")[:2])
        lines.append((re.match(rf"{re.escape(series)}\b", have), f"{name} {have}, for {series}"))
    tensorflow = found.versions.get("tensorflow", "not there")
    lines.append(("+nv" in tensorflow, f"TensorFlow is NVIDIA's build: {tensorflow}"))
    extra = [name for name in INTRUDERS if name in found.versions]
    lines.append((not extra, f"no second TensorFlow or CUDA: {', '.join(extra) or 'none'}"))
    lines.append((found.cuda, f"TensorFlow is built for CUDA: {found.cuda or 'no'}"))
    built = found.horovod if isinstance(found.horovod, dict) else {}
    if not built:
        lines.append((False, f"Horovod loads with TensorFlow: {found.horovod}"))
    for part in ("TensorFlow", "MPI", "NCCL"):
        answer = "yes" if built.get(part) else "no"
        lines.append((built.get(part), f"Horovod has {part}: {answer}"))
    lines.append(("Open MPI" in found.mpirun, f"mpirun: {found.mpirun or 'not on PATH'}"))
    absent = ", ".join(found.cannot_import) or "nothing"
    lines.append((not found.cannot_import, f"./workshop lacks: {absent}"))
    for name, value in SETTINGS.items():
        have = found.environment.get(name, "not set")
        lines.append((have == value, f"{name}={have}, for {value}"))
    lines.append(trained(found))
    return [(bool(good), line) for good, line in lines]


def trained(found: Found) -> tuple[bool, str]:
    results = found.training
    if not results:
        return False, f"stage 02 trains: {found.training_error}"
    text = f"stage 02 trains on {results['data']} data: loss {results['final_loss']:.3f}"
    return results["data"] == "synthetic" and results["final_loss"] < 10, text


def look() -> Found:
    from tfworkshop.environment.start import IMPORTS, has_module

    training, error = train_stage_02()
    return Found(
        versions=installed(),
        environment=dict(os.environ),
        cuda=tensorflow_cuda(),
        horovod=horovod_build(),
        mpirun=first_line("mpirun", "--version"),
        cannot_import=[name for name in IMPORTS["run"].split() if not has_module(name)],
        training=training,
        training_error=error,
    )


def first_line(*command: str) -> str:
    if not shutil.which(command[0]):
        return ""
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return (process.stdout.strip().splitlines() or [""])[0]


def tensorflow_cuda() -> str | None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    return tf.sysconfig.get_build_info().get("cuda_version")


def horovod_build() -> dict[str, bool] | str:
    try:
        import horovod.tensorflow as hvd
    except Exception as error:  # a library can fail to load in many ways
        return f"{type(error).__name__}: {error}".splitlines()[0]
    built = {"MPI": hvd.mpi_built(), "NCCL": hvd.nccl_built(), "Gloo": hvd.gloo_built()}
    return {"TensorFlow": True, **{name: bool(value) for name, value in built.items()}}


def train_stage_02() -> tuple[dict, str]:
    """A few steps on generated data (no network): the results, or the last line of the error."""
    import numpy as np

    from tfworkshop.data import draw_synthetic

    with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
        data, results = Path(folder, "synthetic.npz"), Path(folder, "results.json")
        np.savez(data, **draw_synthetic())
        command = [sys.executable, str(ROOT / "02_tf_function" / "train_MNIST.py")]
        command += ["--steps", "5", "--batch-size", "32", "--data", str(data)]
        process = subprocess.run(
            [*command, "--results", str(results)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if process.returncode:
            return {}, (process.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        return json.loads(results.read_text()), ""


def check() -> int:
    found = look()
    lines = judge(found)
    for good, line in lines:
        print(f"{'ok  ' if good else 'FAIL'}  {line}")
    if isinstance(found.horovod, dict):  # for information only: horovodrun uses what there is
        print(f"note  Horovod has Gloo: {'yes' if found.horovod['Gloo'] else 'no'}")
    return 0 if all(good for good, _ in lines) else 1


def main(argv: list[str]) -> int:
    if argv[:1] == ["missing"] and argv[1:]:
        print("\n".join(missing([Path(name) for name in argv[1:]], installed())))
        return 0
    if argv == ["check"]:
        return check()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
