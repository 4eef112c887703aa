"""06 times a few ways to train and takes the fastest; a way that fails or hangs only loses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import FIXED, ROOT, load_script, read_results, said, stage_environment, stages

SCRIPT = stages("06")[0]
SOURCE = ROOT / SCRIPT[0] / SCRIPT[1]
ON_A_CPU = [
    "xla off, float32, 50 a call",
    "xla off, float32, 1 a call",
    "xla on, float32, 50 a call",
    "xla off, mixed_bfloat16, 50 a call",
]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def module():
    return load_script(SCRIPT)


def ways(module, monkeypatch, xla="auto", precision="auto", steps_per_call="auto", gpus=0):
    monkeypatch.setattr(module.tf.config, "list_physical_devices", lambda kind: ["a GPU"] * gpus)
    asked = SimpleNamespace(xla=xla, precision=precision, steps_per_call=steps_per_call)
    return [str(way) for way in module.candidates(asked)]


def test_the_ways_of_a_cpu(module, monkeypatch) -> None:
    assert ways(module, monkeypatch) == ON_A_CPU
    assert ways(module, monkeypatch, xla="on", precision="float32", steps_per_call=7) == [
        "xla on, float32, 7 a call"
    ]
    assert ways(module, monkeypatch, precision="mixed_float16") == [
        "xla off, mixed_float16, 50 a call",
        "xla off, mixed_float16, 1 a call",
        "xla on, mixed_float16, 50 a call",
    ]


def test_the_ways_of_a_gpu(module, monkeypatch) -> None:
    found = ways(module, monkeypatch, gpus=1)
    assert "xla on, mixed_float16, 50 a call" in found and "xla off, float32, 50 a call" in found
    assert len(set(found)) == len(found) == 5
    assert all("xla off" in way for way in ways(module, monkeypatch, xla="off", gpus=1))


# --- real runs ---


def train(folder: Path, data: Path, *options: object, script: Path = SOURCE):
    """A run long enough to choose for; what it logged before its first step."""
    command = [sys.executable, str(script), "--data", str(data), "--batch-size", "16"]
    command += ["--steps", "60", "--results", "r.json", *map(str, options)]
    began = time.monotonic()
    ended = subprocess.run(
        command,
        cwd=folder,
        env=stage_environment(WORKSHOP_CACHE=str(folder / "cache")),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert [line for line in said(ended.stderr) if "Traceback" in line] == []
    told = [line.split(" - INFO - ")[1] for line in ended.stdout.split("(0, 0)")[0].splitlines()]
    return told[:-1], read_results(folder / "r.json"), time.monotonic() - began


def test_it_times_once_and_remembers(small: Path, tmp_path: Path) -> None:
    told, results, _ = train(tmp_path, small)
    speeds = results["tried"]
    assert told[0] == "timing 4 ways to train on this device, 25 s at most:"
    assert [line.split("  ")[1] for line in told[1:5]] == ON_A_CPU == list(speeds)
    assert speeds["xla off, float32, 50 a call"] > 0
    chosen = re.fullmatch("training with (.*)", told[5])
    assert chosen and speeds[chosen[1]] >= 0.97 * max(speed or 0 for speed in speeds.values())
    assert f"xla {'on' if results['xla'] else 'off'}, {results['precision']}" in chosen[1]
    assert f", {results['steps_per_call']} a call" in chosen[1]

    (kept,) = (tmp_path / "cache").iterdir()
    content = json.loads(kept.read_text())
    assert list(content.values()) == [speeds]
    again, repeated, _ = train(tmp_path, small)
    assert again == told[5:] and repeated["tried"] == speeds

    kept.write_text("not JSON")
    asked, results, _ = train(tmp_path, small, "--steps-per-call", 5, "--precision", "float32")
    assert asked[0].startswith("timing 2 ways") and results["steps_per_call"] == 5
    assert len(json.loads(kept.read_text())) == 1  # mended


def test_retune_times_again(small: Path, tmp_path: Path) -> None:
    options = ["--xla", "off", "--precision", "float32"]
    for extra in ([], ["--retune"]):
        told, _, _ = train(tmp_path, small, *options, *extra)
        assert told[0].startswith("timing 2 ways")


def test_what_is_asked_for_is_not_timed(small: Path, tmp_path: Path) -> None:
    told, results, _ = train(tmp_path, small, *FIXED)
    assert told == [] and results["tried"] is None
    assert not (tmp_path / "cache").exists()


def patched(folder: Path, old: str, new: str) -> Path:
    """A copy of the script with a fault in it."""
    source = SOURCE.read_text()
    assert source.count(old) == 1
    copy = folder / "stage" / SOURCE.name
    copy.parent.mkdir()
    copy.write_text(source.replace(old, new))
    return copy


TRIED = "                    ready[way] = make_model(args, way.precision)\n"
FAULTS = {
    "it raises": "raise tf.errors.InternalError(None, None, 'no')",
    "it crashes": "os.kill(os.getpid(), signal.SIGILL)",
    "it never ends": "time.sleep(1000)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_way_that_fails_only_loses(fault: str, small: Path, tmp_path: Path) -> None:
    last = f"{' ' * 20}if way.precision != 'float32':\n{' ' * 24}{FAULTS[fault]}\n"
    script = patched(tmp_path, TRIED, last + TRIED)
    told, results, took = train(tmp_path, small, "--steps-per-call", 50, script=script)
    assert told[3].split() == [*ON_A_CPU[3].split(), "failed", "or", "too", "slow"]
    assert results["tried"][ON_A_CPU[3]] is None
    assert results["precision"] == "float32" and results["tried"][ON_A_CPU[0]] > 0
    assert took < 25 + 30


def test_all_ranks_train_the_way_rank_0_found(small: Path, tmp_path: Path) -> None:
    """Rank 0 has a reason to use XLA, which rank 1 does not know."""
    told = "        args.way = hvd.broadcast_object(args.way, root_rank=0)\n"
    own = "        args.way = Way(hvd.rank() == 0, 'float32', 7)\n"
    seen = "        print('rank', hvd.rank(), 'trains with', args.way, flush=True)\n"
    script = patched(tmp_path, told, own + told + seen)
    launcher = shutil.which("horovodrun", path=Path(sys.executable).parent)
    if not launcher:
        pytest.skip("no Horovod here")
    command = [launcher, "--gloo", "-np", "2", sys.executable, str(script), "--data", str(small)]
    ended = subprocess.run(
        [*command, "--batch-size", "16", "--steps", "8"],
        cwd=tmp_path,
        env=stage_environment(TF_NUM_INTRAOP_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.findall(r"rank (\d) trains with (.*)", ended.stdout)
    assert sorted(found) == [(rank, "xla on, float32, 7 a call") for rank in "01"]
