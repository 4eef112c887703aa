"""./workshop: the environment that uv makes, what leads to it, and Horovod's build.

A copy of the launcher with small requirements takes real packages from an index in a folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tfworkshop import commands
from tfworkshop.__main__ import main
from tfworkshop.environment import horovod_build
from tfworkshop.problem import Problem, UsageProblem
from tfworkshop.stages import ROOT

pytestmark = pytest.mark.slow

# Stands for tfworkshop/__main__.py: says how it was started.
REPORTER = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:], "prefix": sys.prefix, "folder": os.getcwd(),
    "python_path": os.environ.get("PYTHONPATH"), "program_path": os.environ["PATH"],
}))
"""
PYTHON = f'exec {sys.executable} "$@"'


def add_wheel(index: Path, name: str, version: str = "1.0") -> None:
    """A package with one module, in an index as pip and uv read it."""
    folder = index / name.replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", version)
        archive.writestr(f"{info}/METADATA", f"Name: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr(f"{info}/RECORD", "")
    links = [f'<a href="{file.name}">{file.name}</a>' for file in sorted(folder.glob("*.whl"))]
    (folder / "index.html").write_text("\n".join(links))


class Machine:
    """A copy of the launcher on a machine of its own: HOME, PATH, pip's settings."""

    def __init__(self, folder: Path, uv: Path) -> None:
        self.root = folder / "repository"
        self.venv = self.root / ".venv"
        self.index = folder / "index"
        self.programs = folder / "bin"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "tfworkshop", self.root / "tfworkshop", ignore=ignored)
        shutil.copy(ROOT / "workshop", self.root)
        (self.root / "tfworkshop" / "__main__.py").write_text(REPORTER)
        (self.root / "requirements.txt").write_text("demo==1.0\ntensorflow==1.0  # any\n")
        (self.root / "requirements-test.txt").write_text("extra==1.0\n")
        for name in ("demo", "extra", "tensorflow_cpu", "tensorflow"):
            add_wheel(self.index, name)
        self.programs.mkdir()
        self.add_program("python3", PYTHON)
        (self.programs / "uv").symlink_to(uv)
        self.env = {"HOME": str(folder), "PATH": f"{self.programs}:/usr/bin:/bin"}
        self.configure(f"index-url = file://{self.index}")

    def add_program(self, name: str, script: str) -> None:
        program = self.programs / name
        program.unlink(missing_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def configure(self, *settings: str) -> None:
        """pip's settings."""
        file = Path(self.env["HOME"], ".config", "pip", "pip.conf")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["[global]", *settings]))

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.root / "workshop"), *words],
            cwd=self.root,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, *words: str, **env: str) -> tuple[int, str, str]:
        process = self.start(*words, **env)
        output, error = process.communicate(timeout=120)
        return process.returncode, output, error

    def report(self, *words: str, **env: str) -> dict[str, str]:
        """How the command was started."""
        status, output, error = self.run(*words, **env)
        assert status == 0, error
        return json.loads(output)

    def modules(self) -> set[str]:
        return {path.stem for path in self.venv.glob("lib/python3*/site-packages/*.py")}

    def version_of(self, module: str) -> str:
        """As add_wheel has written it."""
        (file,) = self.venv.glob(f"lib/python3*/site-packages/{module}.py")
        return file.read_text()


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that had nothing: uv and one package come from the index of this machine."""
    folder = tmp_path_factory.mktemp("real")
    shutil.copytree(ROOT / "tfworkshop", folder / "tfworkshop")
    shutil.copy(ROOT / "workshop", folder)
    (folder / "requirements.txt").write_text("six==1.17.0\n")
    drop = ("WORKSHOP_", "UV_", "PYTHON", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    paths = [path for path in env["PATH"].split(":") if not Path(path, "uv").exists()]
    env |= {"PATH": ":".join(paths), "WORKSHOP_PYTHON": sys.executable}
    subprocess.run([folder / "workshop", "setup"], env=env, check=True, timeout=300)
    return folder


@pytest.fixture
def machine(real: Path, tmp_path: Path) -> Machine:
    return Machine(tmp_path, real / ".cache" / "uv" / "bin" / "uv")


# --- making it ---


def test_layers_are_added_in_place_and_the_next_start_does_nothing(machine: Machine) -> None:
    assert machine.report("run")["prefix"] == str(machine.venv)
    assert machine.modules() == {"demo", "tensorflow_cpu"}
    mine = next(machine.venv.glob("lib/python3*/site-packages")) / "mine.py"
    mine.touch()
    machine.report("test", WORKSHOP_HOROVOD="0")
    assert machine.modules() == {"demo", "tensorflow_cpu", "extra", "mine"}
    machine.add_program("uv", "exit 1")
    machine.add_program("python3", "exit 1")
    for words in (["run"], ["scale"], ["setup", "--help"], ["data"]):
        assert machine.run(*words)[0] == 0, words


def test_changed_requirements_make_a_new_environment(machine: Machine) -> None:
    machine.report("run")
    old = machine.venv.stat().st_ino
    add_wheel(machine.index, "demo", "2.0")
    requirements = machine.root / "requirements.txt"
    requirements.write_text("demo==2.0\n")
    machine.report("run")
    assert machine.venv.stat().st_ino != old and machine.version_of("demo") == "2.0"
    assert machine.modules() == {"demo"}
    assert {path.name for path in machine.root.glob(".venv*")} == {".venv", ".venv.lock"}
    # What cannot be installed leaves the last one as it was, and it is used again.
    requirements.write_text("demo==3.0\n")
    status, _, error = machine.run("run")
    assert status == 1 and error.splitlines()[-1].startswith("workshop: uv could not install")
    assert machine.version_of("demo") == "2.0"
    requirements.write_text("demo==2.0  # a comment changes nothing\n")
    machine.add_program("uv", "exit 1")
    machine.report("run")


def test_setup_puts_back_what_was_removed(machine: Machine) -> None:
    machine.report("setup", "--test")
    site = next(machine.venv.glob("lib/python3*/site-packages"))
    for path in (*site.glob("extra*"), *site.glob("demo*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    machine.report("setup")
    assert machine.modules() == {"demo", "tensorflow_cpu", "extra"}


def test_two_at_once_make_it_once(machine: Machine) -> None:
    both = [machine.start("run"), machine.start("run")]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert "".join(errors).count("The environment is ready") == 1
    assert "".join(errors).count("waiting for it") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_set_up_leaves_the_last_environment(
    machine: Machine, number: signal.Signals
) -> None:
    machine.report("run")
    requirements = machine.root / "requirements.txt"
    before = requirements.read_text()
    requirements.write_text("demo==2.0\n")
    reached = machine.root / "reached"
    machine.add_program("uv", f'[ "$1" = --version ] || {{ touch {reached}; exec sleep 100; }}')
    process = machine.start("run")
    while not reached.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    if number == signal.SIGKILL:
        process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)  # and uv, which nobody could end
        requirements.write_text(before)
        machine.report("run")
    else:
        assert process.communicate(timeout=30)[1].endswith("workshop: interrupted\n")
        assert process.returncode == 130
        time.sleep(0.2)
        with pytest.raises(ProcessLookupError):  # nothing of its session is left
            os.killpg(process.pid, 0)
    assert machine.version_of("demo") == "1.0" and not Path(f"{machine.venv}.old").exists()


def test_pips_settings_reach_uv(machine: Machine, tmp_path: Path) -> None:
    """The first index has another version, a folder of wheels has a package of its own."""
    other = tmp_path / "other"
    add_wheel(other, "demo", "2.0")
    add_wheel(tmp_path / "links", "linked")
    (machine.root / "requirements.txt").write_text("demo==1.0\nlinked==1.0\n")
    machine.configure(
        f"index-url = file://{other}",
        f"extra-index-url =\n    file://{tmp_path}/nothing\n    file://{machine.index}",
        f"find-links = {tmp_path}/links/linked {tmp_path}",
    )
    machine.report("run")
    assert machine.modules() == {"demo", "linked"}


@pytest.mark.parametrize(
    ("programs", "package"),
    [
        ({"nvidia-smi": "exit 127"}, "tensorflow-cpu"),
        ({"nvidia-smi": "echo 'GPU 0: A100'"}, "tensorflow[and-cuda]"),
        ({"uname": "echo Darwin arm64"}, "tensorflow"),
    ],
)
def test_the_package_follows_the_machine(
    machine: Machine, programs: dict[str, str], package: str
) -> None:
    for name, script in programs.items():
        machine.add_program(name, script)
    machine.report("run")
    assert f"{package}==1.0" in (machine.venv / "workshop.txt").read_text().splitlines()
    # It stays for a login node, where no GPU is seen.
    if "and-cuda" in package:
        machine.add_program("nvidia-smi", "exit 127")
        machine.add_program("uv", "exit 1")
        machine.report("run")


# --- what leads to it ---


@pytest.mark.parametrize(
    ("words", "status"),
    [([], 0), (["run", "--help"], 0), (["walk"], 2), (["run", "--steps", "0"], 2)],
)
def test_help_and_mistakes_install_nothing(machine: Machine, words: list[str], status: int) -> None:
    code, output, error = machine.run(*words)
    assert code == status
    assert len(error.splitlines()) == (1 if status else 0)
    assert bool(output) == (status == 0)
    assert not machine.venv.exists()


def test_the_doctor_needs_no_environment(machine: Machine) -> None:
    machine.add_program("uv", "exit 1")
    assert machine.report("doctor")["prefix"] == sys.prefix
    assert not machine.venv.exists()


def test_from_any_folder_through_a_link(machine: Machine, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (elsewhere / "argparse.py").write_text("raise SystemExit('foreign')")
    (elsewhere / "link").symlink_to(machine.root / "workshop")
    process = subprocess.run(
        ["./link", "run", "--steps", "5"],
        cwd=elsewhere,
        env={**machine.env, "PYTHONPATH": str(elsewhere), "WORKSHOP_VENV": "my venv"},
        capture_output=True,
        text=True,
    )
    report = json.loads(process.stdout)
    assert report["argv"] == ["run", "--steps", "5"] and report["folder"] == str(elsewhere)
    assert report["prefix"] == str(elsewhere / "my venv")
    assert report["python_path"] == str(machine.root)
    assert report["program_path"].startswith(f"{elsewhere}/my venv/bin:")


def test_the_package_is_ours_in_a_foreign_folder(tmp_path: Path) -> None:
    """The real __main__.py, as ./workshop starts it."""
    (tmp_path / "tfworkshop").mkdir()
    (tmp_path / "tfworkshop" / "__init__.py").write_text("raise SystemExit('foreign')")
    command = [sys.executable, str(ROOT / "tfworkshop" / "__main__.py"), "setup"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize(
    ("env", "own"),
    [
        ({"APPTAINER_CONTAINER": "/image.sif"}, True),
        ({"APPTAINER_CONTAINER": "/image.sif", "WORKSHOP_PYTHON_ENV": "venv"}, False),
        ({"WORKSHOP_PYTHON_ENV": "system"}, True),
    ],
)
def test_the_containers_own_python(machine: Machine, env: dict[str, str], own: bool) -> None:
    """Its PYTHONPATH stays: an image may have its packages there."""
    report = machine.report("run", PYTHONPATH="/of/the/image", **env)
    assert (report["prefix"] == sys.prefix) == own
    assert machine.venv.exists() != own
    expected = f"{machine.root}:/of/the/image" if own else str(machine.root)
    assert report["python_path"] == expected


NO_PIP = f'case "$*" in *pip*) exit 1 ;; esac\n{PYTHON}'


@pytest.mark.parametrize(
    ("env", "python", "advice"),
    [
        ({"WORKSHOP_PYTHON_ENV": "conda"}, None, "system or venv"),
        ({"WORKSHOP_TENSORFLOW": "torch"}, None, "tensorflow-cpu"),
        ({"WORKSHOP_PYTHON": "/nowhere/python"}, None, "WORKSHOP_PYTHON="),
        ({"WORKSHOP_VENV": "/proc/nowhere/venv"}, None, "WORKSHOP_VENV=FOLDER"),
        ({"WORKSHOP_CACHE": "/proc/nowhere"}, PYTHON, "WORKSHOP_CACHE=FOLDER"),
        ({}, NO_PIP, "sudo apt install python3-venv"),
    ],
)
def test_what_is_in_the_way_is_said_with_what_to_type(
    machine: Machine, env: dict[str, str], python: str | None, advice: str
) -> None:
    if python:
        (machine.programs / "uv").unlink()
        machine.add_program("python3", python)
    status, _, error = machine.run("data", **env)
    assert status == 1 and advice in error.splitlines()[-1]
    assert error.splitlines()[-1].startswith("workshop: ") and not machine.venv.exists()


def test_a_folder_that_is_not_ours_is_left_alone(machine: Machine) -> None:
    machine.venv.mkdir()
    (machine.venv / "precious").touch()
    assert machine.run("run")[0] == 1
    assert [path.name for path in machine.venv.iterdir()] == ["precious"]


def test_pytests_options_keep_their_order() -> None:
    words = ["--durations", "40", "-k", "data", "tests/test_data.py"]
    assert commands.parse(["test", "--quick", *words])[1] == {"quick": True, "rest": words}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Problem("wrong"), 1),
        (UsageProblem("wrong"), 2),
        (FileNotFoundError(2, "gone", "file"), 1),
        (ModuleNotFoundError("No module named 'rich'"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_exception_becomes_a_line(
    error: BaseException, status: int, monkeypatch, capsys
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(commands, "call", fail)
    assert main(["run"]) == status
    assert re.fullmatch("workshop: .+\n", capsys.readouterr().err)


def test_a_bug_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "call", lambda argv: {}["bug"])
    with pytest.raises(KeyError):
        main(["run"])


# --- Horovod ---


def test_what_horovod_is_built_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("HOROVOD_", "NCCL_", "CUDA_"))]:
        monkeypatch.delenv(name)
    plain = horovod_build.build_settings("tensorflow-cpu==2.17.1")
    assert plain["HOROVOD_WITHOUT_MPI"] == "1" and "HOROVOD_GPU_OPERATIONS" not in plain
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "nccl.h").touch()
    (tmp_path / "nvcc").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NCCL_HOME", str(tmp_path))
    monkeypatch.setenv("HOROVOD_WITH_MPI", "1")
    gpu = horovod_build.build_settings("tensorflow[and-cuda]==2.17.1")
    assert gpu["HOROVOD_NCCL_HOME"] == str(tmp_path) and gpu["HOROVOD_WITH_MPI"] == "1"
    builds = [("tensorflow-cpu==2.17.1", plain), ("tensorflow-cpu==2.17.2", plain)]
    builds += [("tensorflow[and-cuda]==2.17.1", plain), ("tensorflow[and-cuda]==2.17.1", gpu)]
    assert len({horovod_build.wheel_key(*build) for build in builds}) == 4


@pytest.mark.parametrize("missing", ["g++", "make", "mpicxx"])
def test_a_missing_compiler_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in {"g++", "make", "mpicxx"} - {missing}:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOROVOD_WITH_MPI", "1")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(Problem, match=re.escape(missing)):
        horovod_build.check_compiler()


def test_the_patches_fit_the_real_source(tmp_path: Path) -> None:
    source = horovod_build.get_source(tmp_path, tmp_path / "log", dict(os.environ))
    for name, old, new in horovod_build.PATCHES:
        text = (source / name).read_text()
        if new:
            assert text.count(new) == 1
            text = text.replace(new, "")
        assert old not in text


def test_a_build_that_fails_shows_why_and_leaves_only_the_log(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    def broken_source(folder: Path, log: Path, env: dict[str, str]) -> Path:
        (folder / "horovod").mkdir()
        (folder / "horovod" / "setup.py").write_text("raise SystemExit('cmake error: broken')")
        return folder / "horovod"

    monkeypatch.setattr(horovod_build, "get_source", broken_source)
    monkeypatch.setattr(horovod_build, "check_compiler", lambda: None)
    with pytest.raises(Problem, match=re.escape(str(tmp_path / "wheels" / "key.log"))):
        horovod_build.build_wheel(tmp_path / "wheels" / "key", {})
    assert "cmake error: broken" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["key.log"]


# --- the files themselves ---


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-2.17.txt"])
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_once(lock: str, python: str) -> None:
    pins = {}
    for file in (ROOT / lock, ROOT / "requirements-test.txt"):
        for line in file.read_text().splitlines()[1:]:
            pin = Requirement(line)
            environment = {"python_version": python, "python_full_version": f"{python}.0"}
            if pin.marker is None or pin.marker.evaluate(environment):
                version = str(pin.specifier)
                assert version.startswith("==")
                assert pins.setdefault(pin.name, version) == version
    assert {"tensorflow", "pip", "msgspec", "pytest"} <= set(pins)
