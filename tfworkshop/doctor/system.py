"""Checks that need no TensorFlow, and facts about the hardware."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
import threading
import urllib.parse
import urllib.request
from pathlib import Path

from tfworkshop import processes
from tfworkshop.doctor.environment import installed
from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.machine import in_container
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT

DRIVER_VERSION = Path("/proc/driver/nvidia/version")
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
PCI_DEVICES = Path("/sys/bus/pci/devices")
CPU_INFO = Path("/proc/cpuinfo")
DOCKER = Path("/.dockerenv")
OUTSIDE = "storage.googleapis.com"  # where ./workshop data looks first
CONNECT_S = 2.0
GB = 1e9


def check_container() -> Finding:
    if in_container():
        name = os.environ.get("APPTAINER_NAME") or os.environ.get("SINGULARITY_NAME") or ""
        return ok("container", f"in an Apptainer container {name}".rstrip())
    if DOCKER.exists():
        return ok("container", f"Docker, or made from a Docker image ({DOCKER} exists)")
    return ok("container", "none: this is the machine itself")


def check_mnist() -> Finding:
    path = Path(os.environ.get("MNIST_NPZ") or ROOT / "data" / "mnist.npz")
    command = "./workshop data"
    if os.environ.get("MNIST_NPZ"):
        command += f" --output {path}"
    fix = f"{command} (needs a network)"
    if not path.exists():
        return fail("mnist", f"there is no {path}", fix)
    if not installed("numpy") or not installed("msgspec"):
        return ok("mnist", f"{path} exists; it was not verified: that needs the environment")
    from tfworkshop import data

    try:
        kind = data.verify(path)
    except Problem as problem:
        return fail("mnist", str(problem).partition("; type: ")[0], fix)
    if kind == "synthetic":
        return warn("mnist", f"{path} is a synthetic stand-in, not MNIST", fix)
    return ok("mnist", f"{path}, every byte of its images and labels verified")


def check_folders() -> Finding:
    """Where results and profiles go must be writable and have free space."""
    results = Path(os.environ.get("WORKSHOP_RESULTS") or ROOT / "results").absolute()
    fix = "WORKSHOP_RESULTS=$HOME/results ./workshop run (any folder that you can write to)"
    for folder in (results, results / "logs"):
        try:
            # The doctor creates nothing: try the folder that it would be created in.
            existing = next(place for place in (folder, *folder.parents) if place.exists())
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            return fail("folders", f"cannot write to {folder} ({error.strerror})", fix)
    free = shutil.disk_usage(existing).free
    what = f"{results} is writable, {free / GB:.1f} GB free"
    if free < 0.1 * GB:
        return fail("folders", what, f"free some space, or use another disk: {fix}")
    if free < GB:
        return warn("folders", what, f"free some space, or use another disk: {fix}")
    return ok("folders", what)


def check_compiler() -> Finding:
    """What Horovod would be built with; nothing else needs a compiler."""
    compiler = os.environ.get("CXX") or "g++"
    missing = [tool for tool in (compiler, "make") if not shutil.which(tool)]
    if missing:
        what = f"not found: {' and '.join(missing)}; only Horovod (many ranks) needs it"
        return warn("compiler", what, "sudo apt install build-essential")
    return ok("compiler", f"{shutil.which(compiler)}, which Horovod can be built with")


# --- the network ---


def check_network(needed: bool) -> Finding:
    """A way to the internet matters only while something has to be fetched."""
    check = "network"
    proxy = urllib.request.getproxies().get("https")
    elsewhere = "fetch on a login node: ./workshop setup && ./workshop data"
    if proxy:
        address = re.search(r"([\w.-]+):(\d+)/?$", proxy)
        if address and _answers(address[1], int(address[2])):
            return ok(check, f"through the proxy {proxy}, which answers")
        fix = f"export https_proxy=http://HOST:PORT (or unset it, or {elsewhere})"
        return warn(check, f"the proxy {proxy} (https_proxy) does not answer", fix)
    if _answers(OUTSIDE, 443):
        return ok(check, f"a direct route to {OUTSIDE}")
    what = f"no route to {OUTSIDE}, no https_proxy"
    if not needed:
        return ok(check, f"{what}; nothing is left to fetch")
    return warn(check, what, f"export https_proxy=http://HOST:PORT (your site's), or {elsewhere}")


def _answers(host: str, port: int) -> bool:
    """Whether something listens there. A thread, because a name server may take minutes."""
    connected = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), timeout=CONNECT_S).close()
            connected.set()

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_S + 1)
    return connected.is_set()


# --- the hardware and its driver ---


def driver_version() -> str | None:
    """Of the NVIDIA driver that is loaded."""
    version = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _read(DRIVER_VERSION))
    return version[1] if version else None


def counters_restricted() -> bool:
    """Whether the driver lets only administrators read the GPU's performance counters."""
    return re.search(r"^RmProfilingAdminOnly: *1", _read(DRIVER_PARAMETERS), re.M) is not None


def has_nvidia_card() -> bool:
    """An NVIDIA display or compute card, with or without its driver."""
    return any(
        _read(device / "vendor").strip() == "0x10de" and _read(device / "class").startswith("0x03")
        for device in PCI_DEVICES.glob("*")
    )


def cpu_flags() -> set[str]:
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", _read(CPU_INFO), re.M)
    return set(flags[1].split()) if flags else set()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def find_foreign_ptxas(cuda: str) -> str | None:
    """A ptxas of another CUDA on PATH, which XLA prefers to the one that comes with TensorFlow."""
    program = shutil.which("ptxas")
    if not program:
        return None
    answer = processes.run([program, "--version"], timeout=10)
    release = re.search(r"release (\d+)\.(\d+)", answer.stdout)
    if release and release[1] == cuda.split(".")[0]:
        return None
    version = f"{release[1]}.{release[2]}" if release else "unknown"
    return f"{program} of CUDA {version} instead of TensorFlow's own, of CUDA {cuda}"
