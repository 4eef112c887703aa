"""./workshop itself: which Python, which TensorFlow, and an environment that survives accidents."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tfworkshop import commands, machine, progress
from tfworkshop.environment import horovod_build, logged, start, venv
from tfworkshop.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
CPU = f"tensorflow-cpu=={machine.TENSORFLOW_VERSION}"
GPU = f"tensorflow[and-cuda]=={machine.TENSORFLOW_VERSION}"
REQUIREMENTS = sorted(ROOT.glob("requirements*.txt"))


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch, tmp_path):
    """A machine without GPU, container or settings, whatever the real one is."""
    for name in list(os.environ):
        if name.startswith(("WORKSHOP_", "APPTAINER_", "SINGULARITY_", "HOROVOD_", "CXX")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(machine, "GPUS", tmp_path / "no-gpus")
    monkeypatch.setattr(machine, "CONTAINER", tmp_path / "no-container")


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


# --- the launcher ---


def test_a_report_needs_no_environment_where_it_can_be_read(tmp_path):
    """From any folder, with a Python that has the plugin: nothing is built to read a file."""
    sample = ROOT / "04_tf_profiler" / "sample"
    env = {**os.environ, "WORKSHOP_VENV": str(tmp_path / "venv"), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, str(ROOT / "workshop"), "report", str(sample)]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "Step time" in ended.stdout and not ended.stderr
    assert not list(tmp_path.iterdir())


def test_the_other_python_is_started_with_the_same_arguments(tmp_path):
    copy = make_copy(tmp_path / "repo")
    fake = script(
        tmp_path / "python3.11",
        'if [ "$1" = -c ]; then echo "3 11 $0"; else echo "started: $*"; fi\n',
    )
    # A stand-in for an interpreter that is too new: it says so itself.
    pretend = (
        "import runpy, subprocess, sys; sys.version_info = (3, 13, 0, 'final', 0); "
        "sys.argv = ['workshop', 'run', '--steps', '3']; "
        f"runpy.run_path({str(copy / 'workshop')!r}, "
        "run_name='__main__')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", pretend],
        env={**os.environ, "PATH": f"{fake.parent}:/bin:/usr/bin"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == f"started: {copy / 'workshop'} run --steps 3\n", ran.stderr


def test_what_any_python_3_must_read_is_old_syntax():
    for name in ("workshop", "tfworkshop/__init__.py", "tfworkshop/commands.py"):
        tree = ast.parse((ROOT / name).read_text(), feature_version=(3, 4))
        new = (ast.JoinedStr, ast.NamedExpr, ast.AnnAssign)
        assert not [node for node in ast.walk(tree) if isinstance(node, new)], name


# --- which TensorFlow ---


@pytest.mark.parametrize(
    ("system", "processor", "smi", "wanted"),
    [
        ("Linux", "x86_64", None, CPU),
        ("Linux", "x86_64", "echo 'GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1)'", GPU),
        ("Linux", "x86_64", "echo 'No devices were found'; exit 6", CPU),
        ("Linux", "aarch64", None, CPU.replace("-cpu", "")),
        ("Darwin", "arm64", None, CPU.replace("-cpu", "")),
    ],
)
def test_the_flavour_follows_the_machine(monkeypatch, tmp_path, system, processor, smi, wanted):
    monkeypatch.setattr(machine.platform, "system", lambda: system)
    monkeypatch.setattr(machine.platform, "machine", lambda: processor)
    if smi:
        script(tmp_path / "nvidia-smi", smi + "\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.choose_tensorflow(None) == wanted


def test_a_gpu_in_proc_is_enough(monkeypatch, tmp_path):
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    monkeypatch.setattr(machine, "GPUS", tmp_path / "gpus")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.has_nvidia_gpu()


def test_a_login_node_keeps_what_a_gpu_node_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.choose_tensorflow(GPU) == GPU


def test_workshop_tensorflow_decides_and_is_checked(monkeypatch):
    monkeypatch.setenv("WORKSHOP_TENSORFLOW", "tensorflow[and-cuda]")
    assert machine.choose_tensorflow(None) == GPU
    monkeypatch.setenv("WORKSHOP_TENSORFLOW", "torch")
    with pytest.raises(Problem, match="tensorflow-cpu"):
        machine.choose_tensorflow(None)


# --- the venv, with pip replaced by a recorder ---


class FakePip:
    """Stands for run_logged: notes what pip was asked, and fails on request."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.venvs = 0
        self.output, self.status = "", 0

    def __call__(self, command, log, title, doing, env=None) -> int:
        self.calls.append(command)
        log.write_text(self.output)
        return self.status

    def make_venv(self, folder: Path) -> None:
        self.venvs += 1
        script(folder / "bin" / "python", f"echo {venv.PYTHON.replace('.', ' ')} $0\n")
        venv.write_stamp(folder, {"complete": False})


@pytest.fixture
def pip(monkeypatch, tmp_path):
    fake = FakePip()
    monkeypatch.setattr(venv, "PYTHON", "3.11")
    for file in venv.REQUIREMENTS.values():
        (tmp_path / file).write_text("one==1\n")
    monkeypatch.setattr(venv, "ROOT", tmp_path)
    monkeypatch.setattr(venv, "run_logged", fake)
    monkeypatch.setattr(venv, "make_venv", fake.make_venv)
    monkeypatch.setattr(venv, "choose_tensorflow", lambda installed: CPU)
    return fake


def test_the_second_start_does_nothing(pip):
    folder = venv.ensure_venv(["run"])
    assert len(pip.calls) == 1 and CPU in pip.calls[0]
    assert not any("requirements-test" in text for text in pip.calls[0])
    assert venv.ensure_venv(["run"]) == folder
    assert (len(pip.calls), pip.venvs) == (1, 1)


def test_python_3_9_gets_a_pip_that_knows_the_wheels(pip, monkeypatch):
    monkeypatch.setattr(venv, "PYTHON", "3.9")
    venv.ensure_venv(["run"])
    assert pip.calls[0][-1].startswith("pip==") and CPU in pip.calls[1]


def test_changed_requirements_are_installed_in_place(pip, tmp_path):
    venv.ensure_venv(["run"])
    (tmp_path / "requirements.txt").write_text("one==2\n")
    venv.ensure_venv(["run"])
    venv.ensure_venv(["run"])
    assert (len(pip.calls), pip.venvs) == (2, 1)


def test_the_test_layer_is_added_and_stays(pip, tmp_path):
    venv.ensure_venv(["run"])
    venv.ensure_venv(["run", "test"])
    assert (len(pip.calls), pip.venvs) == (2, 1)
    (tmp_path / "requirements.txt").write_text("one==2\n")
    venv.ensure_venv(["run"])
    assert str(tmp_path / "requirements-test.txt") in pip.calls[-1]
    assert set(venv.read_stamp(tmp_path / ".venv")["layers"]) == {"run", "test"}


@pytest.mark.parametrize(
    "damage", [{"complete": False}, {"tensorflow": GPU}, {"python": "3.7"}, None]
)
def test_a_half_made_or_unfitting_environment_is_remade(pip, damage):
    folder = venv.ensure_venv(["run"])
    if damage:
        venv.write_stamp(folder, {**venv.read_stamp(folder), **damage})
    else:
        (folder / "bin" / "python").unlink()
    (folder / "leftover").write_text("")
    venv.ensure_venv(["run"])
    assert (len(pip.calls), pip.venvs) == (2, 2)
    assert not (folder / "leftover").exists()
    assert not list(folder.parent.glob("*.old"))


def test_a_working_venv_of_another_python_is_kept_unless_asked(pip, monkeypatch):
    folder = venv.ensure_venv(["run"])
    script(folder / "bin" / "python", "echo 3 10 $0\n")
    venv.write_stamp(folder, {**venv.read_stamp(folder), "python": "3.10"})
    monkeypatch.setattr(venv, "PYTHON", "3.12")
    venv.ensure_venv(["run"])
    assert pip.venvs == 1
    monkeypatch.setenv("WORKSHOP_PYTHON", sys.executable)
    venv.ensure_venv(["run"])
    assert pip.venvs == 2


def test_a_failing_pip_is_told_and_nothing_half_made_stays(pip, tmp_path, capsys, monkeypatch):
    pip.status, pip.output = 1, "Collecting one\nERROR: one==1 is not for this Python\n"
    monkeypatch.setattr(start, "use_own_python", lambda: False)
    assert start.main(["run"]) == 1
    shown = capsys.readouterr().err
    log = tmp_path / ".venv-install.log"
    assert "one==1 is not for this Python" in shown
    assert re.search(r"^workshop: pip could not install.*" + re.escape(str(log)), shown, re.M)
    assert log.read_text() == pip.output and not (tmp_path / ".venv").exists()


def test_without_a_network_the_old_environment_stays(pip, monkeypatch):
    folder = venv.ensure_venv(["run"])
    monkeypatch.setattr(venv, "choose_tensorflow", lambda installed: GPU)
    pip.status = 1
    pip.output = (
        "WARNING: Retrying: Failed to establish a new connection: [Errno -2]\nERROR: none\n"
    )
    with pytest.raises(Problem, match=r"cannot be reached.*\./workshop setup"):
        venv.ensure_venv(["run"])
    assert venv.plan(folder, ["run"], CPU) == "ready"


def test_a_failed_update_is_tried_again(pip, tmp_path):
    venv.ensure_venv(["run"])
    (tmp_path / "requirements.txt").write_text("one==2\n")
    pip.status = 1
    with pytest.raises(Problem):
        venv.ensure_venv(["run"])
    pip.status = 0
    venv.ensure_venv(["run"])
    assert (len(pip.calls), pip.venvs) == (3, 1)


def test_a_folder_that_is_not_ours_is_left_alone(pip, monkeypatch, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    monkeypatch.setenv("WORKSHOP_VENV", str(tmp_path / "home"))
    with pytest.raises(Problem, match="was not created by"):
        venv.ensure_venv(["run"])
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"


def test_a_read_only_place_says_what_to_set(pip, monkeypatch):
    monkeypatch.setenv("WORKSHOP_VENV", "/proc/not-there/venv")
    with pytest.raises(Problem, match=r"WORKSHOP_VENV=\$HOME"):
        venv.ensure_venv(["run"])


def test_a_python_without_ensurepip_gets_pip_from_the_index(tmp_path, monkeypatch):
    """As on Debian, where ensurepip is a package of its own."""
    pip = f"pip-{venv.PIP_VERSION}-py3-none-any.whl"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    got = subprocess.run([*command, f"pip=={venv.PIP_VERSION}"], capture_output=True)
    if got.returncode:
        pytest.skip("pip cannot fetch pip here")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(venv, "has_module", lambda name: name != "ensurepip")
    venv.make_venv(tmp_path / "venv")
    python = venv.python_of(tmp_path / "venv")
    told = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True).stdout
    assert told.startswith(f"pip {venv.PIP_VERSION} ") and str(tmp_path / "venv") in told
    assert sorted(path.name for path in (tmp_path / "venv").iterdir() if path.is_file()) == [
        "pyvenv.cfg",
        "workshop.json",
    ]
    (tmp_path / pip).write_bytes(b"not pip")
    with pytest.raises(Problem, match="wrong SHA-256"):
        venv.add_pip(tmp_path / "venv")


# --- a container ---


def test_only_apptainer_and_singularity_are_containers(monkeypatch, tmp_path):
    monkeypatch.setattr(start, "has_module", lambda name: True)
    assert not start.use_own_python()
    for name in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        with monkeypatch.context() as inside:
            inside.setenv(name, "/images/tf.sif")
            assert start.use_own_python()
            inside.setenv("WORKSHOP_PYTHON_ENV", "venv")
            assert not start.use_own_python()
    monkeypatch.setattr(machine, "CONTAINER", tmp_path)
    assert start.use_own_python()
    monkeypatch.setattr(start, "has_module", lambda name: name != "tensorflow")
    assert not start.use_own_python()


def test_workshop_python_env_is_checked(monkeypatch):
    monkeypatch.setenv("WORKSHOP_PYTHON_ENV", "system")
    assert start.use_own_python()
    monkeypatch.setenv("WORKSHOP_PYTHON_ENV", "conda")
    with pytest.raises(Problem, match="must be system or venv"):
        start.use_own_python()


def test_what_a_container_lacks_is_named(monkeypatch, capsys):
    monkeypatch.setattr(start, "has_module", lambda name: name not in ("rich", "horovod"))
    with pytest.raises(Problem, match=r"lacks: rich\. "):
        start.check_own_python(["run"], with_horovod=False)
    with pytest.raises(Problem, match=r"lacks: rich, horovod\. "):
        start.check_own_python(["run", "test"], with_horovod=True)
    monkeypatch.setattr(start, "has_module", lambda name: True)
    start.check_own_python(["run"], with_horovod=False)
    assert "nothing is installed" in capsys.readouterr().err


# --- for real, in a copy of the repository with two tiny packages ---


def tiny_wheel(folder: Path, name: str, version: str) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


def make_copy(folder: Path) -> Path:
    """The launcher and what it needs, with a tfworkshop/__main__.py that tells how it was started."""
    (folder / "tfworkshop").mkdir(parents=True)
    shutil.copy(ROOT / "workshop", folder)
    for name in ("__init__", "commands", "files", "machine", "problem", "progress", "stages"):
        shutil.copy(ROOT / "tfworkshop" / f"{name}.py", folder / "tfworkshop")
    shutil.copytree(ROOT / "tfworkshop" / "environment", folder / "tfworkshop" / "environment")
    (folder / "tfworkshop" / "__main__.py").write_text(
        "import json, os, sys\n"
        "path = os.environ['PYTHONPATH']\n"
        "print(json.dumps([sys.argv[1:], os.getcwd(), sys.prefix, __file__, path]))\n"
    )
    copied = folder / "tfworkshop" / "environment" / "venv.py"
    text = copied.read_text().replace('f"pip=={PIP_VERSION}"', '"tiny==1.0"')  # no network
    copied.write_text(text)
    tiny_wheel(folder, "tensorflow_cpu", machine.TENSORFLOW_VERSION)
    tiny_wheel(folder, "tiny", "1.0")
    for file in venv.REQUIREMENTS.values():
        (folder / file).write_text("tiny==1.0\n")
    return folder


def launch(repo: Path, *arguments: str, cwd: Path | None = None, **env: str) -> subprocess.Popen:
    settings = {"WORKSHOP_TENSORFLOW": "tensorflow-cpu", "WORKSHOP_PYTHON_ENV": "venv"}
    settings.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(repo), **env)
    return subprocess.Popen(
        [sys.executable, str(repo / "workshop"), *arguments],
        cwd=cwd or repo,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(repo: Path, *arguments: str, **more) -> tuple[int, str, str]:
    process = launch(repo, *arguments, **more)
    output, errors = process.communicate(timeout=50)
    return process.returncode, output, errors


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    """A copy whose environment two ./workshop have made at once."""
    pytest.importorskip("ensurepip")
    folder = make_copy(tmp_path_factory.mktemp("real") / "repo")
    both = [launch(folder, "setup"), launch(folder, "setup")]
    told = [process.communicate(timeout=50)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    return folder, told


def test_two_at_once_make_it_once(repo):
    folder, told = repo
    assert sum("Creating the environment" in text for text in told) == 1
    assert sum("waiting for it" in text for text in told) == 1
    python = venv.python_of(folder / ".venv")
    subprocess.run([python, "-I", "-c", "import tiny, tensorflow_cpu"], check=True)


def test_it_starts_from_a_subfolder_and_past_a_foreign_tools_package(repo):
    folder, _ = repo
    elsewhere = folder / "00_baseline"
    (elsewhere / "tfworkshop").mkdir(parents=True)
    (elsewhere / "tfworkshop" / "__init__.py").write_text("")
    words = ("run", "--steps", "3")
    status, output, errors = run(folder, *words, cwd=elsewhere, PYTHONPATH=str(elsewhere))
    assert status == 0 and errors == ""
    argv, cwd, prefix, file, path = json.loads(output)
    assert argv == ["run", "--steps", "3"] and cwd == str(elsewhere)
    assert prefix == str(folder / ".venv") and file == str(folder / "tfworkshop" / "__main__.py")
    assert path == str(folder)  # and not the foreign one


def test_setup_puts_back_a_package_that_was_removed(repo):
    """The stamp says that all is there."""
    for name in ("tiny", "tensorflow_cpu"):
        (gone,) = repo[0].glob(f".venv/lib/*/site-packages/{name}-*.dist-info")
        shutil.rmtree(gone)
        assert "Updating the environment" in run(repo[0], "setup")[2] and gone.exists()


def test_a_ready_environment_costs_no_noticeable_time(repo):
    def seconds() -> float:  # of processor time: other work on the machine does not count
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = seconds()
    for _ in range(3):
        run(repo[0], "setup")
    assert (seconds() - before) / 3 < 0.25  # about 0.05; pip takes longer only to start


@pytest.fixture(scope="module")
def unmade(tmp_path_factory):
    """A copy that has no environment, and is not to get one."""
    folder = make_copy(tmp_path_factory.mktemp("unmade") / "repo")
    yield folder
    assert not (folder / ".venv").exists()


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"], ["-h"]])
def test_help_needs_no_environment(unmade, arguments):
    status, output, _ = run(unmade, *arguments, PYTHONSAFEPATH="1")
    assert status == 0
    assert all(re.search(rf"^  {name} ", output, re.M) for name in commands.NAMES)


def test_help_of_a_command_needs_no_environment(unmade):
    assert run(unmade, "run", "--help")[1].startswith("usage: ./workshop run ")


@pytest.mark.parametrize("arguments", [["trian"], ["--steps"], ["setup", "--tset"]])
def test_a_wrong_command_is_one_line_and_exit_2(unmade, arguments):
    status, _, errors = run(unmade, *arguments)
    assert status == 2 and errors.count("\n") == 1 and "workshop" in errors


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_an_interrupted_setup_leaves_nothing_half_made(tmp_path, number, status):
    pytest.importorskip("ensurepip")
    copy = make_copy(tmp_path / "repo")
    process = launch(copy, "setup")
    deadline = time.monotonic() + 20
    while not (copy / ".venv" / "bin").exists():  # in the midst of it
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == status and "Traceback" not in errors
    assert not (copy / ".venv").exists()


# --- long commands ---


def test_progress_goes_to_plain_lines_and_all_output_to_the_log(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    command = ["sh", "-c", "echo Collecting keras==3.3.2; sleep 0.5; echo oops >&2; exit 3"]
    log = tmp_path / "log"
    assert logged.run_logged(command, log, "Installing", venv.pip_doing) == 3
    assert "Installing: 0 s  Collecting keras\n" in capsys.readouterr().err
    assert log.read_text() == "Collecting keras==3.3.2\noops\n"


def test_an_interrupt_ends_the_children_too(tmp_path):
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    log = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt):
        logged.run_logged(["sh", "-c", "sleep 300 & echo $!; wait"], log, "x", interrupt)
    child = int(log.read_text())
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and running(child):
        time.sleep(0.05)
    assert not running(child)


def running(pid: int) -> bool:
    try:  # a fresh machine has no ps
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] != "Z"
    except OSError:
        return False


# --- Horovod ---


@pytest.fixture
def horovod(monkeypatch, tmp_path):
    """A venv folder with a stamp, and a Horovod that can be imported once it was installed."""
    monkeypatch.delenv("HOROVOD_WITH_MPI", raising=False)
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    venv.write_stamp(folder, {"python": "3.11", "tensorflow": CPU, "complete": True})
    monkeypatch.setenv("WORKSHOP_CACHE", str(tmp_path / "cache"))
    installed: list[str] = []
    stand_ins = {
        "pip_install": lambda folder, arguments, title: installed.extend(arguments),
        "import_error": lambda python: None if installed else "No module",
        "check_compiler": lambda: None,
        "fetch": lambda *_: None,
        "unpack_patched": lambda *_: "source",
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(horovod_build, name, stand_in)
    return folder, installed


def fake_build(builds: list, status: int = 0, output: str = ""):
    def run(command, log, title, doing, env):
        builds.append(env)
        log.write_text(output)
        if status == 0:
            out = Path(command[command.index("--wheel-dir") + 1])
            out.mkdir()
            (out / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_text("")
        return status

    return run


def test_horovod_is_built_once_and_taken_from_the_cache_after(horovod, monkeypatch):
    folder, installed = horovod
    builds: list[dict] = []
    monkeypatch.setattr(horovod_build, "run_logged", fake_build(builds))
    horovod_build.ensure_horovod(folder)
    assert len(builds) == 1 and builds[0]["HOROVOD_WITH_TENSORFLOW"] == "1"
    assert installed[-1].endswith(".whl")
    venv.write_stamp(folder, {"python": "3.11", "tensorflow": CPU, "complete": True})
    installed.clear()  # a remade environment
    horovod_build.ensure_horovod(folder)
    assert len(builds) == 1 and installed
    installed.clear()
    horovod_build.ensure_horovod(folder)  # the stamp remembers
    assert not installed
    monkeypatch.setenv("HOROVOD_WITH_MPI", "1")
    horovod_build.ensure_horovod(folder)  # not this wheel
    assert len(builds) == 2 and builds[1]["HOROVOD_WITH_MPI"] == "1" and installed
    installed.clear()
    monkeypatch.delenv("HOROVOD_WITH_MPI")
    horovod_build.ensure_horovod(folder)  # one that has more is good enough
    assert len(builds) == 2 and not installed


def test_a_failed_build_shows_its_errors_and_leaves_only_the_log(
    horovod, monkeypatch, tmp_path, capsys
):
    folder, _ = horovod
    output = "mpi.cc:7:1: error: no such type\n  error: subprocess-exited-with-error\n"
    monkeypatch.setattr(horovod_build, "run_logged", fake_build([], 1, output))
    with pytest.raises(Problem, match=r"did not compile.*\.log"):
        horovod_build.ensure_horovod(folder)
    shown = capsys.readouterr().err
    assert "mpi.cc:7:1: error: no such type" in shown and "subprocess-exited" not in shown
    assert [path.suffix for path in (tmp_path / "cache" / "wheels").iterdir()] == [".log"]


def test_an_interrupted_build_leaves_nothing_half_made(horovod, monkeypatch, tmp_path):
    def interrupted(command, log, title, doing, env):
        (Path(env["TMPDIR"]) / "half.o").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr(horovod_build, "run_logged", interrupted)
    with pytest.raises(KeyboardInterrupt):
        horovod_build.ensure_horovod(horovod[0])
    assert not list((tmp_path / "cache" / "wheels").iterdir())


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    script(tmp_path / "make", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Problem, match=r"g\+\+ is missing.*apt install build-essential"):
        horovod_build.check_compiler()
    script(tmp_path / "g++", "")
    horovod_build.check_compiler()


def test_a_wheel_is_never_taken_for_another_tensorflow_or_python():
    gloo = {"HOROVOD_WITHOUT_MPI": "1"}
    given = [
        ("3.11", CPU, gloo),
        ("3.12", CPU, gloo),
        ("3.11", "tensorflow-cpu==2.17.0", gloo),
        ("3.11", GPU, gloo),
        ("3.11", CPU, {"HOROVOD_WITH_MPI": "1"}),
        ("3.11", GPU, {**gloo, "HOROVOD_GPU_OPERATIONS": "NCCL"}),
    ]
    keys = [horovod_build.wheel_key(*each) for each in given]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch(r"[\w.-]+", key) for key in keys)


def test_nccl_is_used_where_it_is_and_mpi_if_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HOROVOD_WITH_MPI", raising=False)
    monkeypatch.setattr(horovod_build, "nccl_home", lambda: "/opt/nccl")
    assert "HOROVOD_GPU_OPERATIONS" not in horovod_build.build_settings(GPU)  # no nvcc
    assert horovod_build.build_settings(GPU)["HOROVOD_WITHOUT_MPI"] == "1"
    script(tmp_path / "nvcc", "")
    monkeypatch.setenv("HOROVOD_WITH_MPI", "1")
    with pytest.raises(Problem, match="mpicxx is missing"):
        horovod_build.check_compiler()
    settings = horovod_build.build_settings(GPU)
    assert settings["HOROVOD_GPU_OPERATIONS"] == "NCCL" and settings["HOROVOD_WITH_MPI"] == "1"
    assert "HOROVOD_WITHOUT_MPI" not in settings
    assert "HOROVOD_GPU_OPERATIONS" not in horovod_build.build_settings(CPU)


def test_the_build_shows_what_is_compiled():
    line = "[ 45%] Building CXX object horovod/common/CMakeFiles/x.dir/ops/adasum.cc.o\n"
    assert horovod_build.build_doing(line) == "45 % adasum.cc"
    assert horovod_build.build_doing("-- Configuring done\n") is None


# --- the requirement files ---


@pytest.mark.parametrize("file", REQUIREMENTS, ids=lambda file: file.name)
def test_every_requirement_is_pinned(file):
    lines = [line.split("#")[0].strip() for line in file.read_text().splitlines()]
    pins = [line for line in lines if line]
    assert pins
    for line in pins:
        assert re.fullmatch(r'[\w.-]+==[\w.]+(; python_version < "3\.\d+")?', line), line


def test_no_package_is_pinned_twice():
    names = [
        re.split("==", line)[0].lower().replace("_", "-")
        for file in REQUIREMENTS
        for line in file.read_text().splitlines()
        if "==" in line.split("#")[0]
    ]
    assert sorted(set(names)) == sorted(names)


def test_what_a_container_must_have_is_what_is_pinned():
    pinned = "".join(file.read_text() for file in REQUIREMENTS).replace("-", "_")
    for name in " ".join(start.IMPORTS.values()).split():
        assert name == "tensorflow" or re.search(rf"^(pytest_)?{name}==", pinned, re.M), name
