"""The venv (.venv, or $WORKSHOP_VENV) from the pinned requirements.

A stamp in it says what it holds, so that the next start costs nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

from tfworkshop.environment import package_index, python_install
from tfworkshop.environment.logged import failure, locked, run_logged
from tfworkshop.files import kept_json, save
from tfworkshop.machine import FLAVOURS, choose_tensorflow
from tfworkshop.problem import Problem
from tfworkshop.progress import say
from tfworkshop.stages import ROOT

REQUIREMENTS = {"run": "requirements.txt", "test": "requirements-test.txt"}
PIP_VERSION = "24.3.1"  # for a Python without pip, or with one too old for today's wheels
PIP_DIGEST = "3790624780082365f47549d032f3770eeb2b1e8bd1f7b2e02dace1afa361b4ed"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


def venv_folder() -> Path:
    return Path(os.environ.get("WORKSHOP_VENV") or ROOT / ".venv").expanduser().absolute()


def python_of(folder: Path) -> str:
    return str(folder / "bin" / "python")


def changing(folder: Path) -> AbstractContextManager[None]:
    return locked(folder, "creating the environment", "WORKSHOP_VENV=$HOME/workshop-venv")


def version_of(python: str) -> str:
    """As in "3.11"; empty where it does not run."""
    found = python_install.ask(python, "-I")  # as it is, whatever PYTHONHOME says
    return python_install.dotted(found[0]) if found else ""


def log_of(folder: Path) -> Path:
    """Next to the venv, so that it survives a venv that failed."""
    return folder.with_name(folder.name + "-install.log")


def read_stamp(folder: Path) -> dict:
    """What the environment holds; empty when there is none."""
    stamp = kept_json(folder / "workshop.json")
    return stamp if isinstance(stamp.get("layers", {}), dict) else {}


def write_stamp(folder: Path, stamp: dict) -> None:
    text = json.dumps(stamp, indent=1) + "\n"
    save(folder / "workshop.json", lambda part: part.write_text(text))


def digests(layers: list[str]) -> dict[str, str]:
    files = {layer: ROOT / REQUIREMENTS[layer] for layer in layers}
    return {layer: hashlib.sha256(file.read_bytes()).hexdigest() for layer, file in files.items()}


def python_fits(folder: Path, stamp: dict) -> bool:
    """Keep a venv of another Python version as long as it works, unless one was requested."""
    if stamp.get("python") == PYTHON:
        return os.access(python_of(folder), os.X_OK)
    asked = os.environ.get("WORKSHOP_PYTHON")
    return not asked and version_of(python_of(folder)) == stamp.get("python")


def plan(folder: Path, layers: list[str], tensorflow: str) -> str:
    """'ready', 'update' (pip again, in place) or 'remake' (from scratch)."""
    stamp = read_stamp(folder)
    good = stamp.get("complete") and stamp.get("tensorflow") == tensorflow
    if not good or not python_fits(folder, stamp):
        return "remake"
    return "ready" if digests(layers).items() <= stamp.get("layers", {}).items() else "update"


def lacks(folder: Path, layers: list[str]) -> bool:
    """Whether somebody has removed a package since: the stamp does not know."""
    text = "".join((ROOT / REQUIREMENTS[layer]).read_text() for layer in layers)
    names = re.findall(r"^([\w.-]+)==[^\s;]+$", text, re.M)  # those that every Python needs
    names.append(re.split(r"[\[=]", str(read_stamp(folder).get("tensorflow")))[0])
    found = folder.glob("lib/python3*/site-packages/*.dist-info")
    have = {normal(path.stem.rpartition("-")[0]) for path in found}
    return not set(map(normal, names)) <= have


def normal(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip_doing(line: str) -> str | None:
    if line.startswith("Installing collected packages"):
        return "unpacking"
    found = re.match(r"\s*(Collecting|Downloading|Using cached) ([^-=<>;\s]+)", line)
    return " ".join(found.groups()) if found else None


def pip_install(folder: Path, arguments: list[str], title: str) -> None:
    log = log_of(folder)
    # -I and PIP_USER=0: neither PYTHONPATH nor a user's pip settings may divert packages.
    pip = [python_of(folder), "-I", "-m", "pip", "install", "--disable-pip-version-check"]
    pip += ["--no-input", "--progress-bar", "off", "--only-binary", ":all:", *arguments]
    if run_logged(pip, log, title, pip_doing, env={**os.environ, "PIP_USER": "0"}) != 0:
        raise failure("pip could not install the environment", log)


def install(folder: Path, layers: list[str], tensorflow: str) -> None:
    """pip into an existing venv; until it is done the stamp says incomplete."""
    before = read_stamp(folder)
    layers = [layer for layer in REQUIREMENTS if layer in {*layers, *before.get("layers", {})}]
    files = [argument for layer in layers for argument in ("-r", str(ROOT / REQUIREMENTS[layer]))]
    write_stamp(folder, {**before, "complete": False})
    try:
        pip_install(folder, [tensorflow, *files], "Installing")
    except Problem:
        write_stamp(folder, before)
        raise
    held = {"python": PYTHON, **before, "tensorflow": tensorflow, "layers": digests(layers)}
    write_stamp(folder, {**held, "complete": True})


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def make_venv(folder: Path) -> None:
    folder.mkdir()
    write_stamp(folder, {"complete": False})  # first: an interrupted one is recognized as ours
    # Not sys.executable: that may be the python of the very venv that is being remade.
    base = getattr(sys, "_base_executable", sys.executable)
    with_pip = has_module("ensurepip")  # Debian has it in a package of its own
    command, log = [base, "-I", "-m", "venv", str(folder)], log_of(folder)
    command += [] if with_pip else ["--without-pip"]
    if run_logged(command, log, "Creating the venv", lambda line: None) != 0:
        raise failure(f"{base} cannot create a venv", log)
    if not with_pip:
        add_pip(folder)


def add_pip(folder: Path) -> None:
    """pip from the index; its wheel can install itself."""
    log, file = log_of(folder), f"pip-{PIP_VERSION}-py3-none-any.whl"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = str(package_index.fetch("pip", file, PIP_DIGEST, Path(scratch)))
        command = [python_of(folder), f"{wheel}/pip", "install", "--no-index", "--no-deps", wheel]
        if run_logged(command, log, "Installing pip", pip_doing) != 0:
            raise failure("pip could not install itself", log)


def is_ours(folder: Path) -> bool:
    return folder.is_dir() and ((folder / "workshop.json").exists() or not any(folder.iterdir()))


def remake(folder: Path, layers: list[str], tensorflow: str) -> None:
    """A new venv; the old one is put back if that fails (no network, say) and it worked."""
    aside = folder.with_name(folder.name + ".old")
    for place in (folder, aside):
        if os.path.lexists(place) and not is_ours(place):
            raise Problem(
                f"{place} was not created by ./workshop. Move it away, or name another folder: "
                "WORKSHOP_VENV=$HOME/workshop-venv ./workshop ..."
            )
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    try:
        make_venv(folder)
        if PYTHON == "3.9":
            pip_install(folder, [f"pip=={PIP_VERSION}"], "Updating pip")
        install(folder, layers, tensorflow)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if read_stamp(aside).get("complete"):
            aside.rename(folder)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def ensure_venv(layers: list[str]) -> Path:
    """The folder of a venv that holds the layers, created or updated if needed."""
    folder = venv_folder()
    tensorflow = choose_tensorflow(read_stamp(folder).get("tensorflow"))
    todo = plan(folder, layers, tensorflow)
    if todo == "ready":
        return folder
    if todo == "remake" and not python_install.fits(sys.version_info):
        python = python_install.fitting_python()
        os.execv(python, [python, str(ROOT / "workshop"), *sys.argv[1:]])
    with changing(folder):
        todo = plan(folder, layers, tensorflow)  # again: another ./workshop may have made it
        if todo == "ready":
            return folder
        started = time.monotonic()
        why = FLAVOURS[tensorflow.split("==")[0]]
        verb = "Creating" if todo == "remake" else "Updating"
        python = PYTHON if todo == "remake" else read_stamp(folder)["python"]
        say(f"{verb} the environment {folder} (Python {python}, {tensorflow}: {why}).")
        (remake if todo == "remake" else install)(folder, layers, tensorflow)
        say(f"The environment is ready, after {time.monotonic() - started:.0f} s.")
    return folder
