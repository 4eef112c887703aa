"""Is there an environment, and does it hold what requirements.txt pins?"""

from __future__ import annotations

import contextlib
import os
import re
import site
import sys
from importlib import metadata
from pathlib import Path

from tools.doctor.finding import Finding, fail, ok, warn
from tools.environment import python_install, start, venv
from tools.files import shown
from tools.machine import TENSORFLOW_VERSION, choose_tensorflow, in_container
from tools.problem import Problem
from tools.stages import ROOT

PIN = re.compile(r"^([\w.-]+)==([^\s;#]+)(?:; python_version < \"3\.(\d+)\")?")
PYTHON = ".".join(map(str, sys.version_info[:3]))
# In a container with its own Python, these decide whether things are compatible.
MUST_FIT = ("tensorflow", "keras", "protobuf", "tensorboard", "tensorboard-plugin-profile")


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
