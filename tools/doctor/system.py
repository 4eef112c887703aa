"""What does not need TensorFlow: container, data, folders, network, the driver's parameters."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from tools import data
from tools.doctor.finding import Finding, fail, ok, warn
from tools.environment import horovod_build
from tools.files import NoAnswer, results_path, shown, within
from tools.machine import in_container
from tools.problem import Problem
from tools.stages import ROOT

DRIVER_VERSION = Path("/proc/driver/nvidia/version")
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
PCI_DEVICES = Path("/sys/bus/pci/devices")
CPU_INFO = Path("/proc/cpuinfo")
DOCKER = Path("/.dockerenv")
OUTSIDE = "storage.googleapis.com"  # Keras's mirror of MNIST, see tools/data.py
CONNECT_S = 3.0
GB = 1e9


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def driver_version() -> str | None:
    """Of the NVIDIA driver that is loaded, as the driver reports it."""
    found = re.search(r"NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", read(DRIVER_VERSION))
    return found[1] if found else None


def nvidia_on_the_bus() -> bool:
    """An NVIDIA display or compute card, driver or not."""
    return any(
        read(device / "vendor").strip() == "0x10de" and read(device / "class").startswith("0x03")
        for device in (PCI_DEVICES.iterdir() if PCI_DEVICES.is_dir() else ())
    )


def cpu_flags() -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*: (.*)$", read(CPU_INFO), re.M)
    return set(found[1].split()) if found else set()


def counters_restricted() -> bool:
    """Whether the driver lets only administrators read the GPU's performance counters."""
    return re.search(r"^RmProfilingAdminOnly: *1", read(DRIVER_PARAMETERS), re.M) is not None


def check_container() -> Finding:
    if in_container():
        name = os.environ.get("APPTAINER_NAME") or os.environ.get("SINGULARITY_NAME") or ""
        return ok("container", f"in an Apptainer container {name}".rstrip())
    if DOCKER.exists():
        return ok("container", f"Docker, or made from a Docker image ({DOCKER} exists)")
    return ok("container", "none: this is the machine itself")


def check_mnist() -> Finding:
    path = Path(os.environ.get("MNIST_NPZ") or ROOT / "data" / "mnist.npz")
    try:
        kind = data.verify(path)
    except data.DataError as error:
        what, _, fix = str(error).rpartition("; type: ")
        return fail("mnist", what, f"{fix} (where there is a network)")
    if kind == "synthetic":
        fix = "./workshop data (where there is a network)"
        return warn("mnist", f"{shown(path)} is a synthetic stand-in, not MNIST", fix)
    return ok("mnist", f"{shown(path)}, every byte of its images and labels verified")


def check_compiler() -> Finding:
    """What Horovod would be built with; nothing else needs a compiler."""
    check, (oldest, newest) = "compiler", horovod_build.GXX
    try:
        horovod_build.check_compiler()
    except Problem as problem:
        what = str(problem).partition(". ")[0]
        return warn(check, f"{what}; one rank does not need it", "sudo apt install build-essential")
    version, name = horovod_build.compiler_version(), horovod_build.compiler()
    if version is None:
        return ok(check, f"{name}, not g++: untested with Horovod")
    if oldest <= version <= newest:
        return ok(check, f"{name} {version}, which Horovod can be built with")
    what = f"{name} {version}: Horovod's build is prepared for g++ {oldest} to {newest}"
    fix = "sudo apt install g++-12, then CXX=g++-12 ./workshop setup --horovod"
    return warn(check, what, fix)


def check_folders() -> Finding:
    """Where results and profiles go: writable, and with free space."""
    results = results_path()
    fix = "WORKSHOP_RESULTS=$HOME/results ./workshop run (any folder that you can write to)"
    for folder in (results, results / "logs"):
        place = existing(folder)
        if not place.is_dir():
            return fail("folders", f"{shown(folder)}: {shown(place)} is not a folder", fix)
        try:
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            what = f"{shown(folder)}: cannot be written ({error.strerror})"
            return fail("folders", what, fix)
    free = shutil.disk_usage(existing(results)).free
    what = f"{shown(results)} and {shown(results / 'logs')} are writable, {free / GB:.1f} GB free"
    if free < GB:
        fix = f"free some space, or use another disk: {fix}"
        return (fail if free < 0.1 * GB else warn)("folders", what, fix)
    return ok("folders", what)


def existing(folder: Path) -> Path:
    """The folder, or the one it would be created in: nothing is created by looking."""
    return next(place for place in (folder, *folder.parents) if os.path.lexists(place))


def check_network(needed: bool) -> Finding:
    """A way out matters only while something has to be fetched."""
    proxy = urllib.request.getproxies().get("https")
    where = "fetch on a login node: ./workshop setup && ./workshop data"
    if proxy:
        parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        try:
            host, port = parts.hostname, parts.port or 3128
        except ValueError:  # a port that is no number
            host, port = None, 0
        if not host:
            fix = "export https_proxy=http://HOST:PORT"
            return warn("network", f"https_proxy={proxy} names no host and port", fix)
        if answers(host, port):
            return ok("network", f"through the proxy {host}:{port}, which answers")
        fix = f"correct https_proxy (or unset it where there is a direct route), or {where}"
        return warn("network", f"the proxy {host}:{port} (https_proxy) does not answer", fix)
    if answers(OUTSIDE, 443):
        return ok("network", f"a direct route to {OUTSIDE}")
    what = f"no route to {OUTSIDE}, no https_proxy"
    if not needed:
        return ok("network", f"{what}; nothing is left to fetch")
    return warn("network", what, f"export https_proxy=http://HOST:PORT (your site's), or {where}")


def answers(host: str, port: int) -> bool:
    """Whether something listens there; a name server that hangs counts as no."""

    def connect() -> None:
        socket.create_connection((host, port), timeout=CONNECT_S).close()

    try:
        within(CONNECT_S + 1, connect)
    except (OSError, ValueError, NoAnswer):  # ValueError: no name of a host
        return False
    return True
