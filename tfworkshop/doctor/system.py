"""Checks that need no TensorFlow, and facts about this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import urllib.request
from importlib import metadata
from pathlib import Path

from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.environment.venv import installed_requirements
from tfworkshop.machine import in_container, pinned_versions
from tfworkshop.stages import ROOT

DRIVER_VERSION = Path("/proc/driver/nvidia/version")
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
CPU_INFO = Path("/proc/cpuinfo")
OUTSIDE = "storage.googleapis.com"  # where ./workshop data looks first
CONNECT_S = 5.0
GB = 1e9
# Packages that must be there; of some, the release (the first two numbers) must be the pinned one.
ANY_RELEASE = ("line_profiler", "matplotlib", "msgspec", "numpy", "rich")
PINNED_RELEASE = ("keras", "protobuf", "tensorboard", "tensorboard-plugin-profile", "tensorflow")
LOCKS = {"2.17": "requirements-2.17.txt"}  # by TensorFlow's release; else requirements.txt


# --- the Python environment ---


def release(version: str) -> str:
    """The first two numbers."""
    return ".".join(version.split(".")[:2])


def lock() -> str:
    """The requirements file of the TensorFlow that is installed."""
    return LOCKS.get(release(installed("tensorflow") or ""), "requirements.txt")


def repair() -> str:
    """What to type for a new environment."""
    if installed_requirements():
        return f"rm -r {sys.prefix} && ./workshop setup"
    if in_container():
        return "build the image again (container/README.md)"
    return f"{sys.executable} -m pip install -r {ROOT / lock()}"


def installed(name: str) -> str | None:
    """The version of a package; TensorFlow comes in two."""
    names = ("tensorflow", "tensorflow-cpu") if name == "tensorflow" else (name,)
    for package in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None


def check_environment() -> Finding:
    if installed("tensorflow"):
        whose = "set up by ./workshop" if installed_requirements() else "not set up by ./workshop"
        return ok("environment", f"{sys.prefix}, {whose}")
    what = f"no TensorFlow for {sys.executable}, so it was not checked"
    return fail("environment", what, "./workshop setup (needs a network; takes about a minute)")


def check_python() -> Finding:
    """Any will do: where TensorFlow has no package for it, uv fetches another."""
    return ok("python", f"{platform.python_version()}, {sys.executable}")


def check_packages() -> Finding:
    """A Python that ./workshop did not set up, as a container's, need not have every pin."""
    missing = [name for name in ANY_RELEASE + PINNED_RELEASE if not installed(name)]
    if missing:
        return fail("packages", f"missing: {', '.join(missing)}", repair())
    pins = pinned_versions(lock())
    different = []
    for name in PINNED_RELEASE:
        version = str(installed(name))
        if release(version) not in {release(pin) for pin in pins[name]}:
            different.append(f"{name} is {version}, not {' or '.join(sorted(pins[name]))}")
    if different:
        return warn("packages", ", ".join(different), repair())
    return ok("packages", f"TensorFlow {installed('tensorflow')}; all fit {lock()}")


# --- container, data, folders, network ---


def check_container() -> Finding:
    if in_container():
        return ok("container", "in an Apptainer or Singularity container")
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
    except data.DataError as error:
        return fail("mnist", str(error), fix)
    if kind == "synthetic":
        return warn("mnist", f"{path} is a synthetic stand-in, not MNIST", fix)
    return ok("mnist", f"{path}, every byte of its images and labels verified")


def check_folders() -> Finding:
    """Where results and profiles go must be writable and have free space."""
    results = Path(os.environ.get("WORKSHOP_RESULTS") or ROOT / "results").absolute()
    fix = "WORKSHOP_RESULTS=$HOME/results ./workshop run (any folder that you can write to)"
    try:
        # The doctor creates nothing: try the folder that it would be created in.
        existing = next(folder for folder in (results, *results.parents) if folder.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return fail("folders", f"cannot write to {results} ({error.strerror})", fix)
    free = shutil.disk_usage(existing).free
    what = f"{results} is writable, {free / GB:.1f} GB free"
    if free < GB:
        return warn("folders", what, f"free some space, or use another disk: {fix}")
    return ok("folders", what)


def check_network(needed: bool) -> Finding:
    """A way to the internet matters only while something has to be fetched."""
    if not needed:
        return ok("network", "not tried: nothing is left to fetch")
    proxy = urllib.request.getproxies().get("https", "")
    address = re.search(r"([\w.-]+):(\d+)/?$", proxy)
    host, port = (address[1], int(address[2])) if address else (OUTSIDE, 443)
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError:
        fix = "export https_proxy=http://HOST:PORT (your site's), or fetch on a login node:"
        fix += " ./workshop setup && ./workshop data"
        return warn("network", f"no answer from {host}:{port}; https_proxy='{proxy}'", fix)
    return ok("network", f"{host}:{port} answers")


# --- the hardware and its driver ---


def driver_version() -> str | None:
    """Of the NVIDIA driver that is loaded."""
    version = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", _read(DRIVER_VERSION))
    return version[1] if version else None


def counters_restricted() -> bool:
    """Whether the driver lets only administrators read the GPU's performance counters."""
    return "RmProfilingAdminOnly: 1" in _read(DRIVER_PARAMETERS)


def advertises_amx() -> bool:
    return "amx_bf16" in _read(CPU_INFO)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
