"""Makes sure that there is a Python environment, then hands over to `python -m tfworkshop`.

Outside a container that is a venv; inside an Apptainer container it is the container's own Python.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tfworkshop import commands
from tfworkshop.environment import venv
from tfworkshop.environment.venv import has_module, python_of
from tfworkshop.machine import in_container
from tfworkshop.problem import Problem, told
from tfworkshop.progress import say
from tfworkshop.stages import ROOT

IMPORTS = {  # what must be there in a container that has its own Python
    "run": "tensorflow keras line_profiler matplotlib numpy rich tensorboard "
    "tensorboard_plugin_profile",
    "test": "pytest pytest_timeout ruff xdist",
}
# `-m tfworkshop` would prefer a `tfworkshop` folder of the reader's working directory to ours.
START_TOOLS = (
    "import runpy, sys; sys.path[0] = sys.argv.pop(1); "
    "runpy.run_module('tfworkshop', run_name='__main__', alter_sys=True)"
)


def use_own_python() -> bool:
    choice = os.environ.get("WORKSHOP_PYTHON_ENV")
    if choice not in (None, "", "system", "venv"):
        raise Problem(f"WORKSHOP_PYTHON_ENV={choice}: must be system or venv.")
    if choice:
        return choice == "system"
    return in_container() and has_module("tensorflow")


def check_own_python(layers: list[str], with_horovod: bool) -> None:
    names = [name for layer in layers for name in IMPORTS[layer].split()]
    names += ["horovod"] if with_horovod else []
    missing = [name for name in names if not has_module(name)]
    if missing:
        raise Problem(
            f"{sys.executable} lacks: {', '.join(missing)}. Install them there (versions: "
            "requirements.txt), or set WORKSHOP_PYTHON_ENV=venv to use a venv."
        )
    say(f"Using {sys.executable}; nothing is installed.")


def hand_over(python: str, argv: list[str], folder: Path | None = None) -> NoReturn:
    """Become `python -m tfworkshop ...`, whatever the working directory is."""
    env = dict(os.environ)
    if folder:  # a venv
        # A PYTHONPATH from elsewhere would put other packages before the pinned ones.
        env.pop("PYTHONHOME", None)
        env["PYTHONPATH"] = str(ROOT)
        env["VIRTUAL_ENV"] = str(folder)
        env["PATH"] = os.pathsep.join([str(folder / "bin"), env.get("PATH", os.defpath)])
    else:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    os.execve(python, [python, "-c", START_TOOLS, str(ROOT), *argv], env)


def can_report(folder: Path) -> bool:
    """A profile can be read with any Python that has the plugin: nothing is built for it."""
    if os.environ.get("WORKSHOP_PYTHON_ENV") == "venv" or venv.version_of(python_of(folder)):
        return False
    return all(map(has_module, ("tensorflow", "tensorboard_plugin_profile", "numpy", "rich")))


def start(argv: list[str]) -> int:
    command, (_, options) = argv[0], commands.parse(argv)  # ends here for --help and a mistake
    folder = venv.venv_folder()
    if command == "doctor" and not use_own_python() and venv.version_of(python_of(folder)):
        hand_over(python_of(folder), argv, folder)  # as it is: the doctor adds nothing
    if command in ("data", "doctor") or (command == "report" and can_report(folder)):
        hand_over(sys.executable, argv)
    with_horovod = options.get("horovod") or command == "scale"
    with_horovod |= command == "run" and options["ranks"] > 1
    with_horovod |= command == "test" and os.environ.get("WORKSHOP_HOROVOD") != "0"
    tests = command == "test" or options.get("test", False)
    if use_own_python():  # nothing is built there, so only Horovod itself must be there
        check_own_python(["run", "test"] if tests else ["run"], with_horovod)
        folder = None
    else:  # the test layer also holds what Horovod's build needs, and what it imports
        layers = ["run", "test"] if tests or with_horovod else ["run"]
        venv.ensure_venv(layers)
        if command == "setup" and venv.lacks(folder, layers):
            venv.write_stamp(folder, {**venv.read_stamp(folder), "layers": {}})
            venv.ensure_venv(layers)
        if with_horovod:
            from tfworkshop.environment.horovod_build import ensure_horovod

            ensure_horovod(folder)
    if command == "setup":
        say(f"Ready: {folder or sys.executable}")
        return 0
    hand_over(python_of(folder) if folder else sys.executable, argv, folder)


def main(argv: list[str]) -> int:
    """Run a command that ./workshop has found valid; returns only when nothing was started."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # tidy up as after Ctrl+C
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, lambda received, _: sys.exit(128 + received))
    try:
        return start(argv)
    except (Problem, OSError) as problem:
        say(f"workshop: {told(problem)}")
        return 1
