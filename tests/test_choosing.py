"""06 times a few ways to train and takes the fastest; a way that fails or hangs only loses."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from conftest import FIXED, ROOT, load_script, read_results, said, stage_environment, stages

SCRIPT = stages("06")[0]
SOURCE = ROOT / SCRIPT[0] / SCRIPT[1]
ON_A_CPU = [
    "xla off, float32, 10 a call",
    "xla off, float32, 1 a call",
    "xla on, float32, 10 a call",
    "xla off, mixed_bfloat16, 10 a call",
]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def module():
    return load_script(SCRIPT)


def ways(module, monkeypatch, ability=None, batch_size=64, ranks=1, **wanted):
    """The candidates; `ability` is the compute capability of a GPU that is not there."""
    monkeypatch.setattr(module, "hvd", SimpleNamespace(size=lambda: ranks))
    config, gpus = module.tf.config, ["a GPU"] if ability else []
    monkeypatch.setattr(config, "get_visible_devices", lambda kind: gpus)
    details = {"compute_capability": ability}
    monkeypatch.setattr(config.experimental, "get_device_details", lambda gpu: details)
    asked = {"xla": "auto", "precision": "auto", "steps_per_call": "auto", **wanted}
    asked = SimpleNamespace(batch_size=batch_size, **asked)
    return [str(way) for way in module.candidates(asked)]


def test_the_ways_of_a_cpu(module, monkeypatch) -> None:
    assert ways(module, monkeypatch) == ON_A_CPU
    assert ways(module, monkeypatch, xla="on", precision="float32", steps_per_call=7) == [
        "xla on, float32, 7 a call"
    ]
    assert ways(module, monkeypatch, precision="mixed_float16") == [
        "xla off, mixed_float16, 10 a call",
        "xla off, mixed_float16, 1 a call",
        "xla on, mixed_float16, 10 a call",
    ]


def test_small_batches_may_have_a_thread_for_each_operation(module, monkeypatch) -> None:
    added = "xla off, float32, 10 a call, 1 thread an op"
    assert ways(module, monkeypatch, batch_size=1) == [*ON_A_CPU, added]
    assert added not in ways(module, monkeypatch, batch_size=1, ranks=2)
    assert added not in ways(module, monkeypatch, batch_size=1, ability=(8, 0))


def test_the_ways_of_a_gpu(module, monkeypatch) -> None:
    a100, v100, old = (ways(module, monkeypatch, ability=(n, 0)) for n in (8, 7, 6))
    kinds = [
        f"xla {x}, mixed_{kind}, 50 a call"
        for kind in ("bfloat16", "float16")
        for x in ("on", "off")
    ]
    plain = [f"xla {x}, float32, 50 a call" for x in ("off", "on")]
    assert a100 == [plain[0], *kinds, plain[1]]
    assert v100 == [plain[0], *kinds[2:], plain[1]]
    assert old == plain
    assert all("xla off" in way for way in ways(module, monkeypatch, xla="off", ability=(8, 0)))


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
    assert speeds["xla off, float32, 10 a call"] > 0
    chosen = re.fullmatch("training with (.*)", told[5])
    assert chosen and speeds[chosen[1]] >= 0.97 * max(speeds.values())
    assert f"xla {'on' if results['xla'] else 'off'}, {results['precision']}" in chosen[1]
    assert f", {results['steps_per_call']} a call" in chosen[1]

    (kept,) = (tmp_path / "cache").iterdir()
    content = json.loads(kept.read_text())
    assert list(content.values()) == [speeds]
    again, repeated, _ = train(tmp_path, small)
    assert again == told[5:] and repeated["tried"] == speeds

    kept.write_text("[5]")
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
FIRST, LAST = "way == ways[0]", "way.precision != 'float32'"
FAULTS = {
    "it raises": "raise tf.errors.InternalError(None, None, 'no')",
    "it crashes": "os.kill(os.getpid(), signal.SIGILL)",
    "it never ends": "time.sleep(1000)",
}


@pytest.mark.parametrize(
    ("fault", "which", "lost"),
    [
        ("it raises", FIRST, [0]),
        ("it crashes", FIRST + " and len(ways) == 3", [0]),
        ("it crashes", LAST, [2]),
        ("it never ends", LAST, [2]),
    ],
)
def test_a_way_that_fails_only_loses(
    fault: str, which: str, lost: list[int], small: Path, tmp_path: Path
) -> None:
    trap = f"{' ' * 20}if {which}:\n{' ' * 24}{FAULTS[fault]}\n"
    script = patched(tmp_path, TRIED, trap + TRIED)
    told, results, took = train(tmp_path, small, "--steps-per-call", 10, script=script)
    speeds = list(results["tried"].values())
    assert [i for i, speed in enumerate(speeds) if not speed] == lost
    assert [i for i, line in enumerate(told[1:4]) if "failed or too slow" in line] == lost
    assert told[4] in {f"training with {way}" for way, speed in results["tried"].items() if speed}
    assert took < 25 + 60


def test_the_fastest_threads_are_taken(small: Path, tmp_path: Path) -> None:
    """Timed in a process of its own, after the others; the training then sets as many threads."""
    timed = "            return spent / steps\n"
    script = patched(tmp_path, timed, timed.replace("spent", "(spent + 9 * (not way.op_threads))"))
    made = "    history = SimpleNamespace("
    ask = "    logging.info(tf.config.threading.get_intra_op_parallelism_threads())\n"
    script.write_text(script.read_text().replace(made, ask + made))
    told, results, _ = train(tmp_path, small, "--batch-size", 4, script=script)
    assert told[0] == "timing 5 ways to train on this device, 25 s at most:"
    last = "xla off, float32, 10 a call, 1 thread an op"
    assert list(results["tried"])[-1] == last and all(results["tried"].values())
    assert told[-2:] == [f"training with {last}", "1"] and results["op_threads"] == 1


def test_ctrl_c_while_it_chooses(small: Path, tmp_path: Path) -> None:
    """The training says what it has done, which is nothing much, and its child goes with it."""
    command = [sys.executable, str(SOURCE), "--data", str(small), "--batch-size", "16"]
    with subprocess.Popen(
        [*command, "--steps", "60", "--results", "r.json"],
        cwd=tmp_path,
        env=stage_environment(WORKSHOP_CACHE=str(tmp_path / "cache")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and "timing 4 ways" in process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        time.sleep(2)
        children += psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, said(stderr)) == (130, [])
    assert read_results(tmp_path / "r.json")["interrupted"] is True
    _, alive = psutil.wait_procs(children, timeout=5)
    assert children and [c for c in alive if c.status() != psutil.STATUS_ZOMBIE] == []
    assert not (tmp_path / "cache").exists()


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
