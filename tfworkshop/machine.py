"""What this machine has: processors, GPUs, a container. Standard library only."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from tfworkshop import processes
from tfworkshop.stages import ROOT

GPUS = Path("/proc/driver/nvidia/gpus")  # one entry per NVIDIA GPU
CONTAINER = Path("/.singularity.d")  # in every Apptainer or Singularity container
# What a launcher or a batch job leaves in the environment of a process.
LAUNCHER_VARIABLE = re.compile(
    "HOROVOD_(RANK|SIZE|LOCAL_|CROSS_|CONTROLLER|GLOO_)|OMPI_|PMI_|PALS_|SLURM_"
)


def pinned_versions(lock: str) -> dict[str, set[str]]:
    """The versions of each package in a requirements file: some depend on Python's version."""
    versions: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([\w-]+)==([^\s;]+)", (ROOT / lock).read_text(), re.M):
        versions.setdefault(package, set()).add(version)
    return versions


def has_nvidia_gpu() -> bool:
    if GPUS.is_dir() and any(GPUS.iterdir()):
        return True
    try:  # where /proc does not show it (WSL)
        listing = processes.run(["nvidia-smi", "-L"], timeout=30).stdout
    except FileNotFoundError:
        return False
    return re.search(r"^GPU \d+:", listing, re.M) is not None


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        name = re.search("model name.*: (.*)", cpuinfo.read_text())
        if name:
            return name[1]
    return platform.machine()


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def alone() -> dict[str, str]:
    """The environment for one process that no launcher has started."""
    variables = {
        name: value for name, value in os.environ.items() if not LAUNCHER_VARIABLE.match(name)
    }
    variables["OMPI_MCA_ess_singleton_isolated"] = "1"  # Open MPI needs no daemon for one process
    return variables


def in_container() -> bool:
    """In Apptainer or Singularity. Docker counts as a machine like any other."""
    variables = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
    return any(os.environ.get(name) for name in variables) or CONTAINER.exists()
