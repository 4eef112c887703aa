"""What this machine has (a GPU? a container?), and so which TensorFlow package it needs.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from tfworkshop.problem import Problem

TENSORFLOW_VERSION = "2.17.1"
FLAVOURS = {  # which TensorFlow package, and why
    "tensorflow[and-cuda]": "for the NVIDIA GPU of this machine",
    "tensorflow-cpu": "this machine has no NVIDIA GPU",
    "tensorflow": "the one for this platform",
}
GPUS = Path("/proc/driver/nvidia/gpus")  # one entry per NVIDIA GPU
CONTAINER = Path("/.singularity.d")  # in every Apptainer or Singularity container


def has_nvidia_gpu() -> bool:
    if GPUS.is_dir() and any(GPUS.iterdir()):
        return True
    try:  # where /proc does not show it (WSL)
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(r"^GPU \d+:", listing, re.M) is not None


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall("model name.*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return (names or [platform.machine()])[0]


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def alone() -> dict[str, str]:
    """The environment of one process: without what a launcher or a batch job has left in it."""
    left = re.compile("HOROVOD_(RANK|SIZE|LOCAL_|CROSS_|CONTROLLER|GLOO_)|OMPI_|PMI_|PALS_|SLURM_")
    kept = {name: value for name, value in os.environ.items() if not left.match(name)}
    return {**kept, "OMPI_MCA_ess_singleton_isolated": "1"}  # an Open MPI needs no daemon for one


def choose_tensorflow(installed: str | None) -> str:
    """The requirement line of TensorFlow, given what the environment already holds."""
    asked = os.environ.get("WORKSHOP_TENSORFLOW")
    if asked and asked not in FLAVOURS:
        known = ", ".join(FLAVOURS)
        raise Problem(f"WORKSHOP_TENSORFLOW={asked}: no such package. Use one of: {known}.")
    if asked:
        return f"{asked}=={TENSORFLOW_VERSION}"
    x86_linux = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    with_gpu = f"tensorflow[and-cuda]=={TENSORFLOW_VERSION}"
    if not x86_linux:
        return f"tensorflow=={TENSORFLOW_VERSION}"
    # It runs without a GPU too: a login node must not undo what a GPU node installed.
    if installed == with_gpu or has_nvidia_gpu():
        return with_gpu
    return f"tensorflow-cpu=={TENSORFLOW_VERSION}"


def in_container() -> bool:
    """In Apptainer or Singularity. Docker counts as a machine like any other."""
    names = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
    return any(map(os.environ.get, names)) or CONTAINER.exists()
