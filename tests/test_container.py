"""The container definition: its scripts run here as far as they can without a container engine.

%post adds packages to a Python that lacks them. %test judges the Python of these tests, which is
not NVIDIA's, and must say so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import pytest

from container import image
from tests.conftest import ROOT, stage_environment
from tfworkshop.doctor import system
from tfworkshop.machine import pinned_versions

DEFINITION = (ROOT / "container" / "workshop.def").read_text()
README = (ROOT / "container" / "README.md").read_text()


def sections() -> dict[str, str]:
    """Name to text; the header is under ''."""
    parts = re.split(r"^%(\S+)[^\n]*\n", DEFINITION, flags=re.M)
    return dict(zip(["", *parts[1::2]], parts[0::2]))


def copy_files(folder: Path) -> Path:
    """What %files copies, under another root; returns its /opt/workshop."""
    for line in sections()["files"].strip().splitlines():
        source, destination = line.split()
        target = folder / destination.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    return folder / "opt" / "workshop"


def run_script(script: str, workshop: Path, bin_folder: Path) -> subprocess.CompletedProcess[str]:
    """As Apptainer runs it: it stops at the first failure."""
    env = stage_environment(PATH=f"{bin_folder}:{os.environ['PATH']}", LC_ALL="C.UTF-8")
    env.pop("PYTHONPATH", None)
    command = ["sh", "-e", "-c", script.replace("/opt/workshop", str(workshop))]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)


def test_the_definition_has_its_sections() -> None:
    names = {"", "files", "post", "environment", "runscript", "test", "labels", "help"}
    assert set(sections()) == names
    header = re.sub(r"^#.*\n", "", sections()[""], flags=re.M).split()
    assert header[:3] == ["Bootstrap:", "docker", "From:"] and len(header) == 4
    tag = header[3].split(":")[1]
    assert set(re.findall(r"\d\d\.\d\d-tf2-py3", README)) == {tag}


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="apt-get install shellcheck")
@pytest.mark.parametrize("name", ["post", "environment", "runscript", "test"])
def test_shellcheck(name: str) -> None:
    command = ["shellcheck", "--shell=sh", "-"]
    process = subprocess.run(command, input=sections()[name], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


def test_the_images_environment(tmp_path: Path) -> None:
    process = run_script(sections()["environment"] + "env", tmp_path, Path("/bin"))
    lines = set(process.stdout.splitlines())
    settings = {**image.SETTINGS, "TMPDIR": "/tmp", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    assert {f"{name}={value}" for name, value in settings.items()} <= lines


def test_the_runscript_starts_python_or_the_workshop(tmp_path: Path) -> None:
    (tmp_path / "workshop").write_text('echo "workshop $*"\n')
    run = ["sh", "-c", sections()["runscript"], "run"]
    for words, output in (
        (["-c", "import sys; print(sys.argv[1:])", "a b", "c"], "['a b', 'c']\n"),
        (["workshop", "doctor"], "workshop doctor\n"),
    ):
        process = subprocess.run([*run, *words], cwd=tmp_path, capture_output=True, text=True)
        assert process.stdout == output, process.stderr


def test_the_readme_has_the_pinned_releases() -> None:
    rows = dict(re.findall(r"^\| ([\w -]+?) \| ([\d.]+)", README, flags=re.M))
    pins = pinned_versions("requirements-2.17.txt")
    for name in ("tensorflow", "keras", "numpy", "protobuf", "tensorboard"):
        (version,) = pins[name]
        assert rows[name].split(".")[:2] == version.split(".")[:2], name
    for name in ("tensorboard-plugin-profile", "line-profiler"):
        assert pins[name] == {rows[name]}


# --- %post ---


def test_post_adds_what_is_missing_and_replaces_nothing(tmp_path: Path) -> None:
    """On a Python that lacks two packages, and has a protobuf that is too old for one of them: a
    pip that followed dependencies would replace it."""
    missing = {"line_profiler", "tensorboard_plugin_profile"}
    workshop = copy_files(tmp_path)
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith((*missing, "protobuf-", "_line", "kernprof", "__pycache__")):
            (packages / path.name).symlink_to(path)
    old = packages / "protobuf-3.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: protobuf\nVersion: 3.0\n")
    (own / "packages.pth").write_text(f"{packages}\n")

    process = run_script(sections()["post"], workshop, tmp_path / "venv" / "bin")
    assert process.returncode == 0, process.stdout + process.stderr
    added = {d.metadata["Name"].replace("-", "_") for d in metadata.distributions(path=[str(own)])}
    assert missing <= added
    assert not added & {"protobuf", "tomli"}  # which a newer Python does not need
    assert len((workshop / "added.txt").read_text().splitlines()) == len(added)


# --- %test ---


@pytest.mark.parametrize(
    ("version", "intruder", "status"),
    [
        ("2.17.0+nv25.2", "nvidia-cudnn-cu12", "ok"),  # which is not installed here
        ("2.17.0+nv25.2", "numpy", "fail"),
        ("2.17.1", "nvidia-cudnn-cu12", "fail"),
    ],
)
def test_tensorflow_must_be_nvidias_and_the_only_one(monkeypatch, version, intruder, status):
    monkeypatch.setattr(image, "INTRUDERS", (intruder,))
    assert image.check_build(version).status == status


@pytest.mark.slow
def test_test_fails_here_for_the_right_reasons(tmp_path: Path) -> None:
    """%test as it is written, on the files that %files copies, with the Python of these tests."""
    if "+nv" in (system.installed("tensorflow") or ""):
        pytest.skip("this is the image itself: apptainer test")
    script = sections()["environment"] + sections()["test"]
    folder = copy_files(tmp_path)
    shutil.copy(ROOT / system.lock(), folder)  # of the TensorFlow that these tests have
    process = run_script(script, folder, Path(sys.executable).parent)
    assert process.returncode == 1, process.stderr
    lines = [line.split() for line in process.stdout.splitlines() if not line.startswith(" ")]
    failed = {line[1] for line in lines if line[0] == "fail"}
    passed = {line[1] for line in lines if line[0] == "ok"}
    assert failed - {"horovod", "ranks"} == {"build"} and failed & {"horovod", "ranks"}
    assert {"settings", "tensorflow", "xla", "profiler", "training"} <= passed
