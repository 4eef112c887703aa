"""Finds a Python that TensorFlow has wheels for; if there is none, gets one with uv."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tfworkshop.environment.logged import locked, run_logged
from tfworkshop.environment.package_index import certificates, fetch, settings
from tfworkshop.problem import Problem
from tfworkshop.progress import say

ROOT = Path(__file__).resolve().parents[2]
OLDEST, NEWEST = (3, 9), (3, 12)  # TensorFlow 2.17 has wheels for these
WANTED = f"Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
GET = f"{NEWEST[0]}.{NEWEST[1]}"
BY_HAND = (
    f"On a similar machine with a network, type: uv python install {GET} --install-dir py; "
    "copy the folder py here and type: WORKSHOP_PYTHON=py ./workshop setup"
)
LATER = range(NEWEST[1] + 1, NEWEST[1] + 8)  # good enough for what needs no TensorFlow
ASK = "import sys; print('%d %d %s' % (sys.version_info[0], sys.version_info[1], sys.executable))"

UV_VERSION = "0.13.7"
# The rest of the wheel's name, and its SHA-256. The one for musl is static: it runs everywhere.
UV_WHEELS = {
    ("Linux", "x86_64"): (
        "musllinux_1_1_x86_64",
        "8b8ac028ae4ebb2a3f9d04907c61794f2cf8d7a7002bfbb4019a3dee28351fb2",
    ),
    ("Linux", "aarch64"): (
        "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
        "a90f5d95716ab83091f0f73a8e7ec64e557abf2a28537fcd719b2ac88e6f725a",
    ),
    ("Darwin", "x86_64"): (
        "macosx_10_12_x86_64",
        "fd04bf01ba5f2829f4f94ca8f0c24a743f21e73d75045613ed6fc2fd66fc7bda",
    ),
    ("Darwin", "arm64"): (
        "macosx_11_0_arm64",
        "f91a229093163eefca89ea1b220a221d64c3beade05d03519a6584d1797a5a5f",
    ),
}


def cache_folder() -> Path:
    return Path(os.environ.get("WORKSHOP_CACHE") or ROOT / ".cache").expanduser().absolute()


def dotted(version: "tuple[int, ...]") -> str:
    return f"{version[0]}.{version[1]}"


def fits(version: "tuple[int, ...]") -> bool:
    return OLDEST <= tuple(version[:2]) <= NEWEST


def ask(python: "str | Path", *options: str) -> "tuple[tuple[int, int], str] | None":
    """(version, path) of an interpreter, or None if it does not run (a broken shim, say)."""
    command = [str(python), *options, "-c", ASK]
    try:
        answer = subprocess.check_output(command, stderr=subprocess.DEVNULL)
        major, minor, path = answer.decode().strip().split(" ", 2)
        return (int(major), int(minor)), path
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def find_python(folders: "list[Path] | None" = None, later: bool = False) -> "str | None":
    """The newest that fits: on PATH, in ~/.local/bin, or one that ./workshop has installed."""
    if folders is None:
        names = os.environ.get("PATH", os.defpath).split(os.pathsep)
        folders = [Path(name) for name in [*names, os.path.expanduser("~/.local/bin")]]  # noqa: PTH111
        folders += sorted((cache_folder() / "python").glob("*/bin"))
    for minor in [*range(NEWEST[1], OLDEST[1] - 1, -1), *(LATER if later else ())]:
        for folder in folders:
            candidate = folder / f"python3.{minor}"
            found = ask(candidate) if os.access(str(candidate), os.X_OK) else None
            if found and found[0] == (3, minor):
                return found[1]
    return None


def named_python(named: str) -> str:
    """The Python that WORKSHOP_PYTHON names: itself, or a folder as uv installs into."""
    folder = Path(named).expanduser()
    if folder.is_dir():
        inside = find_python([folder, folder / "bin", *sorted(folder.glob("*/bin"))])
        if inside:
            return inside
    found = ask(named)
    if not found:
        raise Problem(f"WORKSHOP_PYTHON={named}: no such Python. Name one of {WANTED}.")
    if not fits(found[0]):
        raise Problem(f"WORKSHOP_PYTHON={named} is {dotted(found[0])}. Name one of {WANTED}.")
    return found[1]


def starting_python(light: bool) -> str:
    """The interpreter for start.py, which 3.9 and newer can read.

    `light`: for what needs no TensorFlow; nothing is installed for that.
    """
    named = os.environ.get("WORKSHOP_PYTHON")
    if named and not light:
        return sys.executable if named == sys.executable else named_python(named)
    if sys.version_info[:2] >= OLDEST:
        return sys.executable
    if not light:
        return fitting_python()
    found = find_python(later=True)
    if not found:
        raise Problem(
            f"this needs Python {dotted(OLDEST)} or newer, found {dotted(sys.version_info)}. "
            "Type: ./workshop setup (it gets one)"
        )
    return found


def fitting_python() -> str:
    """Another interpreter for the environment than this one: one that is here, or a new one."""
    return find_python() or get_python()


def get_python() -> str:
    """Install a Python into the cache; of two processes at once, only one does it."""
    folder = cache_folder() / "python"
    with locked(folder, f"getting Python {GET}", "WORKSHOP_CACHE=$HOME/workshop-cache"):
        found = find_python()  # another ./workshop may have installed it
        if found:
            return found
        say(f"TensorFlow needs {WANTED}, found only {dotted(sys.version_info)}.")
        say(f"Getting Python {GET} with uv, once, into {folder} (about 50 MB).")
        install_python(folder)
        found = find_python(sorted(folder.glob("*/bin")))
    if not found:
        raise Problem(f"uv installed no working Python {GET} into {folder}. {BY_HAND}")
    return found


def install_python(folder: Path) -> None:
    log = folder.with_name("python-install.log")
    scratch = Path(tempfile.mkdtemp(prefix="uv-", dir=str(folder.parent)))
    try:
        uv = existing_uv() or fetch_uv(scratch)
        command, title = [uv, "python", "install", GET, "--no-cache"], f"Getting Python {GET}"
        status = run_logged(command, log, title, uv_doing, uv_environment(folder))
    finally:
        shutil.rmtree(str(scratch), ignore_errors=True)
        shutil.rmtree(str(folder / ".temp"), ignore_errors=True)  # of an interrupted uv
    if status != 0:
        raise Problem(f"uv could not get Python {GET} ({uv_reason(log)}; log: {log}). {BY_HAND}")


def existing_uv() -> "str | None":
    uv = shutil.which("uv")
    try:  # a shim may exist but not run
        subprocess.check_output([uv or "uv", "--version"], stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return None
    return uv


def fetch_uv(folder: Path) -> str:
    """uv from its wheel; this needs neither pip nor a venv."""
    machine = (platform.system(), platform.machine())
    if machine not in UV_WHEELS:
        then = f"WORKSHOP_PYTHON=/path/to/python{GET} ./workshop setup"
        raise Problem(f"no uv for {' '.join(machine)}. Install {WANTED}, then: {then}")
    tag, digest = UV_WHEELS[machine]
    try:
        wheel = fetch("uv", f"uv-{UV_VERSION}-py3-none-{tag}.whl", digest, folder)
    except Problem as problem:
        raise Problem(f"{problem}. {BY_HAND}") from None
    uv = folder / "uv"
    with zipfile.ZipFile(str(wheel)) as archive:
        uv.write_bytes(archive.read(f"uv-{UV_VERSION}.data/scripts/uv"))
    uv.chmod(0o755)
    return str(uv)


def uv_environment(folder: Path) -> "dict[str, str]":
    """uv's settings, with pip's proxy and certificates."""
    env = {"UV_SYSTEM_CERTS": "true", **os.environ}
    env.update(UV_PYTHON_INSTALL_DIR=str(folder), UV_PYTHON_INSTALL_BIN="0")
    options = settings()
    trusted = certificates(options)
    if trusted:
        env.setdefault("SSL_CERT_DIR" if Path(trusted).is_dir() else "SSL_CERT_FILE", trusted)
    if options.get("proxy"):
        env.setdefault("ALL_PROXY", options["proxy"])
    return env


def uv_doing(line: str) -> "str | None":
    found = re.match(r"\s*(Downloading|Installed) (.*)", line)
    return found.group(2) if found else None


def uv_reason(log: Path) -> str:
    """uv prints what failed first, and the innermost cause last."""
    text = log.read_text(errors="replace")
    lines = re.findall(r"^\s*(?:error|cause|Caused by): (.*)$", text, re.M)
    return ": ".join(dict.fromkeys([lines[0], lines[-1]])) if lines else "it does not say why"
