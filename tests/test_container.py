"""The container definition: its sections, its scripts, its versions, and its own test run here.

No engine that could build it is in Debian's releases or on PyPI. What can be tried without one is
tried for real: %post's script adds packages to a Python that lacks them, and %test's script judges
the Python of these tests, which is not NVIDIA's, and must say so.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT, stage_environment

from tests.readme import Readme
from tfworkshop import commands, machine
from tfworkshop.environment import start
from tfworkshop.environment.horovod_build import HOROVOD_VERSION
from tfworkshop.environment.start import IMPORTS
from tfworkshop.ladder import launch
from tfworkshop.machine import TENSORFLOW_VERSION
from tfworkshop.problem import Problem
from tfworkshop.stages import choose

pytestmark = pytest.mark.timeout(240)

DEFINITION = (ROOT / "container" / "workshop.def").read_text()
# What Apptainer knows; it refuses any other name.
SECTIONS = {"arguments", "pre", "setup", "files", "post", "environment", "startscript"}
SECTIONS |= {"runscript", "test", "labels", "help"}
SCRIPTS = ("post", "environment", "runscript", "test")
READMES = [ROOT / name / "README.md" for name in ("", "container", "submit")]


def sections() -> dict[str, str]:
    """Name to text; the header is under ''."""
    parts = re.split(r"^%(\S+)[^\n]*\n", DEFINITION, flags=re.M)
    names = ["", *parts[1::2]]
    assert len(names) == len(set(names))
    return dict(zip(names, parts[0::2]))


def header() -> dict[str, str]:
    lines = [line for line in sections()[""].splitlines() if line and line[0] != "#"]
    return dict(line.split(": ", 1) for line in lines)


def copied() -> dict[str, str]:
    """%files: source to destination."""
    lines = sections()["files"].split("\n")
    return dict(line.split() for line in lines if line.strip())


def load_image() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image", ROOT / "container" / "image.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["image"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


image = load_image()


# --- the definition ---


def test_sections() -> None:
    assert set(sections()) - {""} <= SECTIONS
    wanted = {"files", "post", "environment", "runscript", "test", "labels", "help"}
    assert set(sections()) - {""} == wanted
    assert header().keys() == {"Bootstrap", "From"}
    assert header()["Bootstrap"] == "docker"
    assert re.fullmatch(r"nvcr\.io/nvidia/tensorflow:\d\d\.\d\d-tf2-py3", header()["From"])


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="apt-get install shellcheck")
@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck(name: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.sh"
    script.write_text(sections()[name])
    command = ["shellcheck", "--shell=sh", str(script)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_labels_are_a_name_and_a_value() -> None:
    lines = sections()["labels"].strip().splitlines()
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_help_names_what_is_there() -> None:
    for word in re.findall(r"[\w/]+\.(?:py|def)\b", sections()["help"]):
        assert (ROOT / word).exists(), word


def test_environment_makes_workshop_use_the_images_python() -> None:
    """The settings as a shell exports them, not as they are written."""
    names = ("TMPDIR", "OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    process = subprocess.run(
        ["sh", "-euc", sections()["environment"] + "\nenv"],
        env={"PATH": os.environ["PATH"], "TMPDIR": "/local/scratch/a/very/long/name"},
        capture_output=True,
        text=True,
        check=True,
    )
    exported = dict(line.split("=", 1) for line in process.stdout.splitlines() if "=" in line)
    assert {name: exported[name] for name in image.SETTINGS} == image.SETTINGS
    assert [exported[name] for name in names] == ["/tmp", "1", "1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["-c", "import sys; print(sys.argv[1:])", "a b", "c"], "['a b', 'c']\n")],
)
def test_runscript_hands_its_words_to_python(words: list[str], said: str) -> None:
    command = ["sh", "-c", sections()["runscript"], "run", *words]
    assert subprocess.run(command, capture_output=True, text=True).stdout == said


# --- one image, one set of versions ---


def test_the_tag_is_the_same_everywhere() -> None:
    tag = header()["From"].split(":")[1]
    release = tag.split("-")[0]
    patterns = ("*.md", "*.txt", "*/README.md", "container/*.*", "submit/*.*", "tfworkshop/*.py")
    texts = {path: path.read_text() for pattern in patterns for path in ROOT.glob(pattern)}
    for path, text in texts.items():
        assert set(re.findall(r"\d\d\.\d\d-tf2-py3", text)) <= {tag}, path
        assert set(re.findall(r"(?i)container,? (\d\d\.\d\d)\b", text)) <= {release}, path
    assert re.search(rf"keras==\S+ +#.* {re.escape(release)}", texts[ROOT / "requirements.txt"])
    assert tag in texts[ROOT / "container" / "README.md"]


def test_versions_in_the_readme() -> None:
    """The table of container/README.md says what requirements.txt pins."""
    text = (ROOT / "container" / "README.md").read_text()
    rows = dict(re.findall(r"^\| ([\w -]+?) \| ([\d.]+)", text, flags=re.M))
    wanted = image.wanted_versions()
    wanted["tensorflow"] = TENSORFLOW_VERSION
    series = {name: ".".join(version.split(".")[:2]) for name, version in wanted.items()}
    for name, version in series.items():
        assert rows[name].startswith(version), name
    assert rows["horovod"] == HOROVOD_VERSION


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_readmes_name_only_what_is_there(readme: Path) -> None:
    text = readme.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)\)", text):
        if not target.startswith("http"):
            assert (readme.parent / target).exists(), target
    for path in re.findall(r"\b((?:submit|container|tfworkshop)/[\w.]+\w)\b", text):
        assert (ROOT / path).exists() or path.endswith(".sif"), path
    known = {*commands.NAMES, "doctor", "COMMAND"}
    assert set(re.findall(r"\./workshop (\w+)", text)) <= known


def test_every_setting_of_the_jobs_is_documented() -> None:
    text = (ROOT / "submit" / "README.md").read_text()
    head = (ROOT / "submit" / "common.sh").read_text().split("\n\n")[0]
    names = re.findall(r"^#   ([A-Z_]+)=", head, flags=re.M)
    assert {"RANKS", "CONTAINER", "PROFILE", "TIMELINE", "LAUNCHER"} <= set(names)
    for name in names:
        assert f"`{name}=" in text, name


# --- ./workshop inside ---


def test_workshop_needs_no_test_packages_for_many_ranks(monkeypatch, capsys) -> None:
    """In the image Horovod is there; pytest and ruff are for `test` alone."""
    monkeypatch.setenv("WORKSHOP_PYTHON_ENV", "system")
    lacking = set(IMPORTS["test"].split())
    monkeypatch.setattr(start, "has_module", lambda name: name not in lacking)
    started: list[list[str]] = []
    monkeypatch.setattr(start, "hand_over", lambda python, argv, venv: started.append(argv))
    start.start(["scale", "--ranks", "2"])
    start.start(["run", "--ranks", "2"])
    assert started == [["scale", "--ranks", "2"], ["run", "--ranks", "2"]]
    with pytest.raises(Problem, match="lacks: pytest"):
        start.start(["test"])


def test_workshop_lets_horovodrun_choose_in_a_container(monkeypatch, tmp_path: Path) -> None:
    job = launch.Job(choose(["02"])[0], steps=5, batch_size=8, ranks=2)
    for inside, gloo in ((True, False), (False, True)):
        monkeypatch.setattr(launch, "in_container", lambda inside=inside: inside)
        words = launch.command(job, tmp_path / "r.json")
        assert words[0].endswith("horovodrun") and ("--gloo" in words) == gloo
        assert words[1 + gloo : 3 + gloo] == ["-np", "2"]
    monkeypatch.setattr(machine, "CONTAINER", tmp_path)
    assert machine.in_container()


# --- what is added ---


def test_only_what_is_absent_is_added(tmp_path: Path) -> None:
    pins = "numpy==1.26.4  # why\n\n# a comment\nline_profiler==5.0.2\n"
    pins += "Tensorboard-Plugin.profile==2.17.0\n"
    pins += 'old==1.0; python_version < "3.8"\nnew==2.0; python_version < "3.99"\n'
    (tmp_path / "r.txt").write_text(pins)
    have = {"numpy": "1.0", "tensorboard-plugin-profile": "0.1"}
    assert image.missing([tmp_path / "r.txt"], have) == ["line_profiler==5.0.2", "new==2.0"]


@pytest.mark.parametrize("line", ["numpy>=1.26", "-r other.txt", 'a==1; os_name == "nt"'])
def test_what_is_not_a_pin_stops_the_build(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(f"{line}\n")
    with pytest.raises(SystemExit, match=r"^image\.py: "):
        image.missing([tmp_path / "r.txt"], {})


def test_every_requirement_can_be_read() -> None:
    for name in ("requirements.txt", "requirements-test.txt"):
        lines = [line for line in (ROOT / name).read_text().splitlines() if "==" in line]
        marked = [line for line in lines if "python_version" in line]
        assert len(lines) - len(marked) <= len(image.pins(ROOT / name)) <= len(lines)


def lay_out(folder: Path) -> Path:
    """What %files copies, under another root; returns its /opt/workshop."""
    for source, destination in copied().items():
        target = folder / destination.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, target)
    return folder / "opt" / "workshop"


def test_post_adds_what_lacks_and_replaces_nothing(tmp_path: Path) -> None:
    """%post for real, on a Python that lacks two packages, and has what one of them asks for in
    too old a version: a pip that looked would replace it."""
    lacking, other = ("line_profiler", "tensorboard_plugin_profile"), "protobuf-"
    workshop = lay_out(tmp_path)
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)  # a Python may need its place
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    image_packages = tmp_path / "image"
    image_packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith((*lacking, other, "_line", "kernprof", "__pycache__")):
            (image_packages / path.name).symlink_to(path)
    old = image_packages / "protobuf-3.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: protobuf\nVersion: 3.0\n")
    (own / "image.pth").write_text(f"{image_packages}\n")

    script = sections()["post"].replace("/opt/workshop", str(workshop))
    env = {**stage_environment(PATH=f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}")}
    env.pop("PYTHONPATH", None)
    process = subprocess.run(  # as Apptainer runs it: it stops at the first failure
        ["sh", "-ex", "-c", script], env=env, capture_output=True, text=True, timeout=200
    )
    assert process.returncode == 0, process.stdout + process.stderr
    pins = image.pins(ROOT / "requirements.txt")
    added = (workshop / "added.txt").read_text().split()
    names = ("line_profiler", "tensorboard-plugin-profile")
    assert sorted(added) == sorted(f"{name}=={pins[name]}" for name in names)
    new = {image.normal(d.metadata["Name"]) for d in metadata.distributions(path=[str(own)])}
    assert new == set(map(image.normal, names))


# --- what is checked ---


def as_published(**changes) -> image.Found:
    """A 25.02 container as its users listed it, after %post; no image was run here."""
    versions = {
        "tensorflow": "2.17.0+nv25.2",
        "horovod": "0.28.1+nv25.2",
        "keras": "3.3.2",
        "tensorboard": "2.17.1",
        "protobuf": "4.25.3",
        "numpy": "1.26.4",
        "setuptools": "70.3.0",
        "nvidia-dali-cuda120": "1.46.0",
        "line-profiler": "5.0.2",
        "tensorboard-plugin-profile": "2.17.0",
    }
    versions.update(changes.pop("versions", {}))
    found = {
        "versions": {name: v for name, v in versions.items() if v},
        "environment": dict(image.SETTINGS),
        "cuda": "12.8",
        "horovod": {"TensorFlow": True, "MPI": True, "NCCL": True, "Gloo": False},
        "mpirun": "mpirun (Open MPI) 4.1.7rc1",
        "cannot_import": [],
        "training": {"data": "synthetic", "final_loss": 2.2},
    }
    return image.Found(**{**found, **changes})


def failures(found: image.Found) -> list[str]:
    return [line for good, line in image.judge(found) if not good]


def test_the_published_image_passes() -> None:
    assert failures(as_published()) == []


HOROVOD = {"TensorFlow": True, "MPI": True, "NCCL": True, "Gloo": True}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"versions": {"tensorflow": "2.17.1"}},
            ["TensorFlow is NVIDIA's build: 2.17.1"],
        ),
        (
            {"versions": {"tensorflow": "2.18.0+nv25.3"}},
            ["tensorflow 2.18.0+nv25.3, for 2.17"],
        ),
        ({"versions": {"numpy": "2.0.1"}}, ["numpy 2.0.1, for 1.26"]),
        ({"versions": {"line-profiler": None}}, ["line-profiler not there, for 5.0"]),
        (
            {"versions": {"nvidia-cudnn-cu12": "8.9.7"}},
            ["no second TensorFlow or CUDA: nvidia-cudnn-cu12"],
        ),
        ({"cuda": None}, ["TensorFlow is built for CUDA: no"]),
        ({"horovod": {**HOROVOD, "MPI": False}}, ["Horovod has MPI: no"]),
        ({"horovod": {**HOROVOD, "NCCL": False}}, ["Horovod has NCCL: no"]),
        (
            {"horovod": "ImportError: libmpi.so.40"},
            ["Horovod loads with TensorFlow: ImportError: libmpi.so.40"]
            + [f"Horovod has {part}: no" for part in ("TensorFlow", "MPI", "NCCL")],
        ),
        ({"mpirun": ""}, ["mpirun: not on PATH"]),
        ({"cannot_import": ["rich"]}, ["./workshop lacks: rich"]),
        (
            {"environment": {**image.SETTINGS, "TF_USE_LEGACY_KERAS": "1"}},
            ["TF_USE_LEGACY_KERAS=1, for 0"],
        ),
        ({"training": {}, "training_error": "no"}, ["stage 02 trains: no"]),
        (
            {"training": {"data": "synthetic", "final_loss": float("nan")}},
            ["stage 02 trains on synthetic data: loss nan"],
        ),
    ],
)
def test_each_fault_is_one_line(changes: dict, said: list[str]) -> None:
    assert failures(as_published(**changes)) == said


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """%test as it is written, on the files that %files copies, with the Python of these tests."""
    workshop = lay_out(tmp_path_factory.mktemp("image"))
    script = sections()["environment"] + sections()["test"].replace("/opt/workshop", str(workshop))
    bin_folder = Path(sys.executable).parent
    env = stage_environment(PATH=f"{bin_folder}:{os.environ['PATH']}", LC_ALL="C.UTF-8")
    env.pop("PYTHONPATH", None)
    return subprocess.run(
        ["sh", "-c", script], env=env, capture_output=True, text=True, timeout=200
    )


def test_test_says_what_this_python_lacks(checked: subprocess.CompletedProcess[str]) -> None:
    lines = checked.stdout.splitlines()
    assert [line[:6] for line in lines] and all(
        line.startswith(("ok    ", "FAIL  ", "note  ")) for line in lines
    ), checked.stdout + checked.stderr
    versions = image.installed()
    if "+nv" in versions.get("tensorflow", ""):  # these tests run in the image itself
        assert checked.returncode == 0
        return
    assert checked.returncode == 1
    failed = {line[6:].split(":")[0] for line in lines if line.startswith("FAIL")}
    assert {"TensorFlow is NVIDIA's build", "TensorFlow is built for CUDA"} <= failed
    assert "Horovod has NCCL" in failed
    good = {line[6:] for line in lines if line.startswith("ok")}
    pins = image.pins(ROOT / "requirements.txt")
    assert f"keras {pins['keras']}, for 3.3" in good and "./workshop lacks: nothing" in good
    assert f"line-profiler {pins['line_profiler']}, for 5.0" in good


def test_test_trains_stage_02(checked: subprocess.CompletedProcess[str]) -> None:
    assert re.search(r"^ok +stage 02 trains on synthetic data: loss \d\.\d", checked.stdout, re.M)


def test_the_page_shows_its_lines(checked: subprocess.CompletedProcess[str]) -> None:
    from tests.test_docs import missing_line  # which asks git

    page = Readme("container/README.md", (ROOT / "container" / "README.md").read_text())
    (block,) = [block for block in page.blocks if block.marked("not compared")]
    assert missing_line(block.text, checked.stdout) is None


def test_wrong_words_get_the_usage() -> None:
    command = [sys.executable, str(ROOT / "container" / "image.py"), "chek"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 2 and "image.py check" in process.stderr
