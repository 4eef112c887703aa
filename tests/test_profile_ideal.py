"""`./workshop profile --ideal-gpu`: counts, who asks for each copy, and the host's verdict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from xspaces import Made

from tests.ideal import ideal_python, workshop_env
from tfworkshop.files import read_record
from tfworkshop.profile import ideal
from tfworkshop.profile.summary import NAME, Kind, Summary
from tfworkshop.report.profile import Copy, Profile
from tfworkshop.report.reader import load
from tfworkshop.stages import ROOT

TENSORFLOW_KERNELS = {"2.17": 215, "2.21": 213}  # of a step of 02


def profile_stage(folder: str, *options: str, logdir: Path, data: Path) -> tuple[Kind, Profile]:
    """As a reader types it in the stage's folder; the script is not edited."""
    ideal_python()
    script = ["python", "train_MNIST.py", "--steps", "45", "--data", str(data), *options]
    command = [ROOT / "workshop", "profile", "--ideal-gpu", "--logdir", logdir, "--", *script]
    ended = subprocess.run(
        command, cwd=ROOT / folder, env=workshop_env(), capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    (kind,) = read_record(logdir / NAME, Summary).kinds
    return kind, load(Path(kind.folder))[0]


def per_step(kind: Kind, *names: str) -> list[float]:
    return [kind.work[name] / kind.unrecorded.steps for name in names]


def to_host(profile: Profile) -> list[tuple[float, int, str]]:
    """How often, bytes, and the operation that reads it, without its scope."""
    copies = [copy for copy in profile.copies if copy.way == "to host"]
    return sorted((c.per_step, c.bytes, c.reader.rpartition("/")[2]) for c in copies)


@pytest.mark.slow
def test_what_a_step_of_02_gives_the_device(small: Path, tmp_path: Path) -> None:
    kind, profile = profile_stage("02_tf_function", logdir=tmp_path, data=small)
    (kernels,) = per_step(kind, "tensorflow_kernels")
    assert kernels == TENSORFLOW_KERNELS[read_record(tmp_path / NAME, Summary).tensorflow[:4]]
    assert per_step(kind, "xla_kernels", "library_calls", "graph_launches") == [0, 13, 0]
    assert per_step(kind, "to_device", "to_device_bytes") == [6, 201_264]
    assert per_step(kind, "to_host", "to_host_bytes", "waits") == [3, 20, 1]
    seed = (1, 8, "StatelessRandomGetKeyCounter")
    assert to_host(profile) == [(1, 4, "Python"), seed, seed]
    assert kind.median_ms > 0 and kind.samples == 64

    # The same as the plane says, and the verdict of the host.
    assert sum(kernel.count for kernel in profile.kernels) == 10 * (kernels + 13)
    assert (profile.is_ideal, profile.device_type, profile.devices) == (True, "ideal GPU", [])
    assert profile.steps.split["device_compute"] == profile.steps.split["output"] == 0
    assert profile.verdict["kind"] in ("launch-bound", "host-bound", "input-bound")


@pytest.mark.slow
def test_float16_asks_the_host_twice(small: Path, tmp_path: Path) -> None:
    options = ("--precision", "mixed_float16", "--xla", "off")
    kind, profile = profile_stage("05_reduced_precision", *options, logdir=tmp_path, data=small)
    assert per_step(kind, "to_host", "to_host_bytes") == [5, 22]
    decisions = [copy.source for copy in profile.copies if copy.bytes == 1]
    assert ["All" in decisions[0], "Equal" in decisions[1]] == [True, True]


# --- whose Python ---


def test_a_program_keeps_its_python_if_that_has_tensorflow_for_gpus(capsys) -> None:
    python = ideal_python()
    assert ideal.choose_python("python", {"PATH": str(python.parent)}) == python
    assert capsys.readouterr().err == ""


def test_another_python_is_named_in_one_line(capsys) -> None:
    """This environment's TensorFlow is built for the CPU; an empty folder has no Python."""
    for folder in (Path(sys.executable).parent, ROOT / "docs"):
        assert ideal.choose_python("python", {"PATH": str(folder)}) == Path(sys.executable)
        assert len(capsys.readouterr().err.splitlines()) == 1


# --- the report ---


def made_copy(made: Made, name: str, at: float, thread: str = "python", **stats: object) -> None:
    """A copy of 1 µs, and the call on a thread that asks for it."""
    number = int(at)
    details = "kind_src:device kind_dst:pageable size:8 dest:0 async:1"
    made.host(thread, name, at, 1, correlation_id=number)
    line = f"Stream #1({name})"
    stats = {"correlation_id": number, "memcpy_details": details, **stats}
    made.event("/device:GPU:0", line, name, at, 1, **stats)


def test_who_asks_for_a_copy() -> None:
    made = Made().step(1, 10, 90).step(2, 100, 90)
    made_copy(made, "MemcpyD2H", 5)  # before the first step
    made_copy(made, "MemcpyD2H", 20, "tf_Compute/1", **{"from": "a/Cast", "to": "b/Less"})
    made_copy(made, "MemcpyD2H", 120, "tf_Compute/1", **{"from": "a/Cast", "to": "b/Less"})
    made_copy(made, "MemcpyD2H", 30)
    made.host("python", "EagerLocalExecute: MatMul", 40, 10)
    made_copy(made, "MemcpyD2H", 42)
    made.host("python", "EagerLocalExecute: __inference_train_step_123", 60, 10)
    made_copy(made, "MemcpyH2D", 62)
    made_copy(made, "MemcpyH2D", 80)
    assert made.profile().copies == [
        Copy("to host", 8, "a/Cast", "b/Less", 1.0),
        Copy("to host", 8, "", "Python", 0.5),
        Copy("to host", 8, "", "MatMul", 0.5),
        Copy("to device", 8, "", "train_step", 0.5),
        Copy("to device", 8, "Python", "", 0.5),
    ]


@pytest.mark.parametrize(("length", "ideal"), [(1, True), (1.5, False)])
def test_the_ideal_gpu_without_a_name(length: float, ideal: bool) -> None:
    """TensorFlow 2.17 records no device's name."""
    made = Made().step(1, 0, 100).launch(1, 10, 15, 1).launch(2, 30, 35, length)
    profile = made.profile()
    assert (profile.is_ideal, profile.device_type == "ideal GPU") == (ideal, ideal)
    assert [kernel.total_ms > 0 for kernel in profile.kernels] == [not ideal]
