"""Checks of the Python environment: which one it is, and whether its packages are the pinned ones.

Standard library only, as everything in this package: the doctor runs where nothing is installed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.machine import in_container
from tfworkshop.stages import ROOT

PIN = re.compile(r"([\w.-]+)==([^\s;#]+)\s*(?:#.*)?")
TENSORFLOW_PACKAGES = ("tensorflow", "tensorflow-cpu", "tensorflow-intel")
# A Python that ./workshop did not set up (a container's, a site's) must have these, and the pinned
# release of most: the first two numbers.
ANY_RELEASE = ("line-profiler", "matplotlib", "msgspec", "numpy", "rich")
PINNED_RELEASE = (
    "keras",
    "protobuf",
    "tensorboard",
    "tensorboard-plugin-profile",
    "tensorflow",
)


def venv_folder() -> Path:
    return Path(os.environ.get("WORKSHOP_VENV") or ROOT / ".venv").absolute()


def in_own_venv() -> bool:
    """Whether this is the environment that ./workshop has set up."""
    return Path(sys.prefix).resolve() == venv_folder().resolve()


def repair() -> str:
    """What to type for a new environment."""
    if in_own_venv():
        return f"rm -r {sys.prefix} && ./workshop setup"
    if in_container():
        return "build the image again (container/README.md)"
    return f"{sys.executable} -m pip install -r {ROOT / 'requirements.txt'}"


def pins() -> dict[str, str]:
    """Pinned versions by package name; lines that hold only for some Pythons are left out."""
    versions = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        pin = PIN.fullmatch(line.strip())
        if pin:
            name = re.sub(r"[-_.]+", "-", pin[1]).lower()
            versions[name] = pin[2]
    return versions


def installed(name: str) -> str | None:
    """The version of a package; TensorFlow comes in several."""
    names = TENSORFLOW_PACKAGES if name == "tensorflow" else (name,)
    for package in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None


def check_environment() -> Finding:
    folder = venv_folder()
    if not installed("tensorflow"):
        what = f"there is none at {folder}, so TensorFlow was not checked"
        fix = "./workshop setup (needs a network; takes about a minute)"
        if folder.exists():
            what = f"{folder} is not complete, so TensorFlow was not checked"
            fix = f"rm -r {folder} && ./workshop setup"
        return fail("environment", what, fix)
    if in_own_venv():
        return ok("environment", sys.prefix)
    return ok("environment", "the packages of this Python; ./workshop did not set it up")


def check_python() -> Finding:
    """Any will do: where TensorFlow has no package for it, uv fetches another."""
    return ok("python", f"{platform.python_version()}, {sys.executable}")


def check_packages() -> Finding:
    """Exactly the pinned versions in our own venv; elsewhere compatible ones are enough."""
    missing = []
    different = []
    for name, wanted in pins().items():
        if not in_own_venv() and name not in ANY_RELEASE + PINNED_RELEASE:
            continue
        version = installed(name)
        if version is None:
            missing.append(f"{name} is missing")
        elif not fits(name, version, wanted):
            different.append(f"{name} is {version}, not {wanted}")
    if not missing and not different:
        return ok("packages", f"TensorFlow {installed('tensorflow')}; all fit requirements.txt")
    problems = missing + different
    what = ", ".join(problems[:4])
    if len(problems) > 4:
        what += f" and {len(problems) - 4} more"
    fix = "./workshop setup" if in_own_venv() else repair()
    if missing:
        return fail("packages", what, fix)
    return warn("packages", what, fix)


def fits(name: str, version: str, wanted: str) -> bool:
    if in_own_venv():
        return version == wanted
    return name in ANY_RELEASE or version.split(".")[:2] == wanted.split(".")[:2]
