"""What does not need TensorFlow: environment, packages, container, data, folders, network."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import site
import socket
import sys
import tempfile
import urllib.parse
import urllib.request
from importlib import metadata
from pathlib import Path

from tfworkshop import data
from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.environment import horovod_build, python_install, start, venv
from tfworkshop.files import NoAnswer, results_path, shown, within
from tfworkshop.machine import TENSORFLOW_VERSION, choose_tensorflow, in_container
from tfworkshop.problem import Problem
from tfworkshop.stages import ROOT

DRIVER_VERSION = Path("/proc/driver/nvidia/version")
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
PCI_DEVICES = Path("/sys/bus/pci/devices")
CPU_INFO = Path("/proc/cpuinfo")
DOCKER = Path("/.dockerenv")
OUTSIDE = urllib.parse.urlsplit(data.MIRROR_URL).hostname or ""
CONNECT_S = 3.0
GB = 1e9
PIN = re.compile(r"^([\w.-]+)==([^\s;#]+)(?:; python_version < \"3\.(\d+)\")?")
PYTHON = ".".join(map(str, sys.version_info[:3]))
# In a container with its own Python, these decide whether things are compatible.
MUST_FIT = ("tensorflow", "keras", "protobuf", "tensorboard", "tensorboard-plugin-profile")


# --- the environment ---


def remake() -> str:
    """What to type for a new environment."""
    if start.use_own_python() and in_container():
        return "build the image again (container/README.md); until then WORKSHOP_PYTHON_ENV=venv"
    if start.use_own_python():
        return f"{sys.executable} -m pip install '{choose_tensorflow(None)}' -r requirements.txt"
    return f"rm -r {shown(venv.venv_folder())} && ./workshop setup"


def install(*names: str) -> str:
    """What to type for these packages in their pinned versions."""
    versions = {**pins(), "tensorflow": TENSORFLOW_VERSION}
    words = [f"{name}=={versions[name]}" for name in names]
    return f"{shown(sys.executable)} -m pip install --no-deps {' '.join(words)}"


def pins() -> dict[str, str]:
    """What requirements.txt pins for this Python, by name."""
    found = map(PIN.match, (ROOT / venv.REQUIREMENTS["run"]).read_text().splitlines())
    return {
        match[1].lower().replace("_", "-"): match[2]
        for match in found
        if match and (not match[3] or sys.version_info < (3, int(match[3])))
    }


def installed(name: str) -> str | None:
    """The version of a package; TensorFlow has more than one."""
    others = ["tensorflow-cpu", "tensorflow-intel"] if name == "tensorflow" else []
    for package in (name, *others):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None


def is_there() -> bool:
    """Whether this process runs in the environment that ./workshop would use."""
    return start.use_own_python() or Path(sys.prefix).resolve() == venv.venv_folder().resolve()


def check_environment() -> Finding:
    check, folder = "environment", venv.venv_folder()
    if start.use_own_python():
        return ok(check, f"this Python, {PYTHON}: {sys.executable}")
    if not is_there():
        what = f"there is none at {shown(folder)}, so TensorFlow was not checked"
        fix = "./workshop setup (where there is a network; it takes about a minute)"
        return fail(check, what, fix)
    stamp = venv.read_stamp(folder)
    try:
        wanted = choose_tensorflow(stamp.get("tensorflow"))
        todo = venv.plan(folder, ["run"], wanted)
    except Problem as problem:  # WORKSHOP_TENSORFLOW is wrong
        return fail(check, str(problem), "unset WORKSHOP_TENSORFLOW")
    if todo == "ready":
        return ok(check, f"{shown(folder)}, Python {PYTHON}")
    if not stamp.get("complete"):
        return fail(check, f"{shown(folder)} is not completely installed", "./workshop setup")
    if stamp.get("tensorflow") != wanted:
        why = f"has {stamp.get('tensorflow')}; this machine needs {wanted}"
    elif todo == "update":
        why = "was created for another requirements.txt"
    else:
        why = f"was created for Python {stamp.get('python')}, not {PYTHON}"
    return warn(check, f"{shown(folder)} {why}", "./workshop setup")


def check_python() -> Finding:
    """Which Python ./workshop would use for the environment."""
    named = os.environ.get("WORKSHOP_PYTHON")
    here = ".".join(map(str, sys.version_info[:2]))
    try:
        found = python_install.named_python(named) if named else None
    except Problem as problem:
        return fail("python", str(problem), "unset WORKSHOP_PYTHON")
    if not found and python_install.fits(sys.version_info):
        return ok("python", f"{PYTHON}, {sys.executable}")
    found = found or python_install.find_python()
    if found:
        return ok("python", f"this is {here}; TensorFlow will use {found}")
    what = f"this is {here}; TensorFlow {TENSORFLOW_VERSION} needs {python_install.WANTED}"
    fix = f"./workshop setup (it gets Python {python_install.GET}, where there is a network)"
    return warn("python", what, fix)


def check_packages() -> Finding:
    """Exactly the pins in our own venv; in a container the same releases of what must match."""
    own = start.use_own_python()
    wanted = {"tensorflow": TENSORFLOW_VERSION, **pins()}
    if own:
        names = [*start.IMPORTS["run"].replace("_", "-").split(), "protobuf"]
        wanted = {name: version for name, version in wanted.items() if name in names}
    have = {name: installed(name) for name in wanted}
    missing = [name for name, version in have.items() if version is None]
    other = [
        name for name, version in have.items() if version and not fits(name, version, wanted, own)
    ]
    if not missing and not other:
        fit = f"all {len(wanted)} {'fit' if own else 'match'} requirements.txt"
        return ok("packages", f"TensorFlow {have['tensorflow']}; {fit}")
    texts = [f"{name} is missing" for name in missing]
    texts += [f"{name} is {have[name]}, not {wanted[name]}" for name in other]
    what = ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")
    return (fail if missing else warn)("packages", what, fix_packages(missing + other))


def fits(name: str, version: str, wanted: dict[str, str], own: bool) -> bool:
    if not own:
        return version == wanted[name]
    return name not in MUST_FIT or version.split(".")[:2] == wanted[name].split(".")[:2]


def fix_packages(names: list[str]) -> str:
    if any(map(from_home, names)):
        home = f"packages in your home folder, {site.getusersitepackages()}, come first"
        return f"export PYTHONNOUSERSITE=1 ({home})"
    in_image = start.use_own_python() and in_container()  # there pip cannot write
    return remake() if in_image or len(names) > 4 or "tensorflow" in names else install(*names)


def from_home(name: str) -> bool:
    """Apptainer mounts the home folder, and with it what `pip install --user` left there."""
    try:
        place = Path(str(metadata.distribution(name).locate_file("")))
    except metadata.PackageNotFoundError:
        return False
    return bool(site.ENABLE_USER_SITE) and place.is_relative_to(site.getusersitepackages())


# --- the machine ---


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
