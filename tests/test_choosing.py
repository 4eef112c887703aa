"""06's choose.py: the fastest switches are printed and kept; a way that fails only loses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, stage_environment

FOLDER = ROOT / "06_optimized"
WAYS = [
    "--xla off --precision float32 --steps-per-call 10",
    "--xla off --precision float32 --steps-per-call 1",
]
TINY = "--xla off --precision float32 --steps-per-call 50 --threads 1"  # for tiny batches
# Stands in for the training: does with each way what plan.json says, and notes that it ran.
FAKE = """
import json, os, re, signal, sys, time
from pathlib import Path
here = Path(__file__).parent
words = " ".join(sys.argv[1:])
way = re.search("--xla .* --steps-per-call [0-9]+", words)[0]
ran = here / "ran.txt"
count = ran.read_text().count(way) if ran.exists() else 0
plan = json.loads((here / "plan.json").read_text()).get(way, [10.0])
action = plan[min(count, len(plan) - 1)]
with ran.open("a") as file:
    print(os.getpid(), words, file=file)
def finish(speed, status):
    Path(sys.argv[-1]).write_text(json.dumps({"img_per_s": speed}))
    os._exit(status)
if isinstance(action, float):
    finish(action, 0)
if action == "fails":
    sys.exit("06_optimized: there is no data")
if action == "crashes":
    os.kill(os.getpid(), signal.SIGILL)
if action == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: finish(70.0 if action == "sums up" else None, 130))
time.sleep(1000)
"""


class Chooser:
    """A copy of choose.py beside the fake, with limits of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "06", folder / "cache"
        self.folder.mkdir()
        (self.folder / "train_MNIST.py").write_text(FAKE)
        self.set_trial_seconds(20)
        self.plan()

    def set_trial_seconds(self, seconds: float) -> None:
        text = (FOLDER / "choose.py").read_text()
        assert text.count("trial_seconds=30") == 1
        (self.folder / "choose.py").write_text(
            text.replace("trial_seconds=30", f"trial_seconds={seconds}")
        )

    def plan(self, *actions: object) -> None:
        """What each of WAYS does, in their order; a list: first this, then that."""
        plan = {
            way: action if isinstance(action, list) else [action]
            for way, action in zip(WAYS, actions)
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def start(self, *words: object, **extra: str) -> subprocess.Popen[str]:
        environment = {"CUDA_VISIBLE_DEVICES": "", "WORKSHOP_CACHE": str(self.cache), **extra}
        return subprocess.Popen(
            [sys.executable, self.folder / "choose.py", *map(str, words)],
            env=stage_environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: object, **extra: str) -> tuple[int, str, dict[str, str]]:
        """Its status, what it printed, and the table."""
        process = self.start(*words, **extra)
        stdout, self.stderr = process.communicate(timeout=100)
        rows = re.findall(r"^(--xla .*?) {2,}(.+)$", self.stderr, re.M)
        return process.returncode, stdout.strip(), dict(rows)

    def trials(self) -> list[str]:
        """The options of the trials since this was asked last, each after its process's number."""
        path = self.folder / "ran.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def cached(self) -> list[dict]:
        return list(json.loads((self.cache / "06_choices.json").read_text()).values())


@pytest.fixture
def chooser(tmp_path: Path) -> Chooser:
    return Chooser(tmp_path)


@pytest.mark.parametrize("again", [60.0, 140.0, 92.0])
def test_the_fastest_is_printed_and_kept_unless_the_machine_was_busy(chooser, again) -> None:
    """The first way is tried again at the end: its two speeds tell how quiet the machine was."""
    chooser.plan([90.0, again], 98.0)
    status, choice, table = chooser.run()
    assert (status, choice) == (0, WAYS[1])
    assert [table[way] for way in WAYS] == ["90 img/s", "98 img/s"]
    assert (chooser.cache / "06_choices.json").exists() == (again == 92.0)
    assert ("python choose.py --again" in chooser.stderr) == (again != 92.0)


def test_of_those_about_as_fast_the_first_counts(chooser: Chooser) -> None:
    chooser.plan(98.0, 100.0)
    assert chooser.run()[1] == WAYS[0]


def test_a_way_that_hangs_only_loses(chooser: Chooser) -> None:
    chooser.set_trial_seconds(3)
    chooser.plan(["hangs", 1.0], "sums up")
    status, choice, table = chooser.run()
    assert (status, choice) == (0, WAYS[1])
    assert [table[way] for way in WAYS] == ["too slow", "70 img/s"]
    assert not any(psutil.pid_exists(int(line.split()[0])) for line in chooser.trials())


def test_a_way_that_crashes_only_loses(chooser: Chooser) -> None:
    chooser.plan(90.0, "crashes")
    status, choice, table = chooser.run()
    assert (status, choice) == (0, WAYS[0])
    assert table[WAYS[1]] == "failed"
    assert WAYS[1] not in chooser.cached()[0]  # a crash may have been bad luck


def test_the_result_is_kept_for_this_machine_script_and_batch(chooser: Chooser) -> None:
    first = chooser.run()
    count = len(chooser.trials())
    assert count > len(WAYS)
    assert chooser.run() == first and not chooser.trials()
    for words, extra in (
        (["--again"], {}),
        (["--batch-size", 16], {}),
        ([], {"TF_NUM_INTRAOP_THREADS": "1"}),
    ):
        chooser.run(*words, **extra)
        assert len(chooser.trials()) == count, (words, extra)
    with (chooser.folder / "train_MNIST.py").open("a") as file:
        file.write("# other code\n")
    chooser.run()
    assert len(chooser.trials()) == count
    assert len(chooser.cached()) == 4
    assert [path.name for path in chooser.cache.iterdir()] == ["06_choices.json"]


def test_if_the_safest_way_fails_its_message_is_shown(chooser: Chooser) -> None:
    """No data, say: to try the other ways would only take time."""
    chooser.plan("fails")
    status, choice, _ = chooser.run()
    assert (status, choice) == (1, "")
    assert "06_optimized: there is no data" in chooser.stderr
    assert len(chooser.trials()) == 1 and not chooser.cache.exists()


def test_options_reach_the_script_and_a_launcher_does_not(chooser: Chooser) -> None:
    text = (chooser.folder / "train_MNIST.py").read_text()
    check = "import os\nassert not {'HOROVOD_SIZE', 'PMI_RANK', 'SLURM_NTASKS'} & set(os.environ)\n"
    (chooser.folder / "train_MNIST.py").write_text(check + text)
    launcher = {"HOROVOD_SIZE": "4", "PMI_RANK": "1", "SLURM_NTASKS": "4"}
    status, _, table = chooser.run("--batch_size", 8, "--data", "x.npz", **launcher)
    assert status == 0 and list(table)[:2] == [WAYS[0], TINY]
    for line in chooser.trials():
        assert "--steps 200 --batch-size 8 --data x.npz --xla" in line
    assert chooser.run("--batch-size", 0)[:2] == (2, "") and not chooser.trials()


def test_an_interrupt_leaves_no_process_and_keeps_nothing(chooser: Chooser) -> None:
    chooser.plan("hangs")
    process = chooser.start()
    while not (chooser.folder / "ran.txt").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (130, "")
    assert stderr.endswith("\nchoose.py: interrupted, nothing was saved\n")
    assert not any(psutil.pid_exists(int(line.split()[0])) for line in chooser.trials())
    assert not chooser.cache.exists()


GPUS = {"8.0": ["float32", "mixed_bfloat16", "mixed_float16"], "6.1": ["float32"]}


@pytest.mark.parametrize("capability", GPUS)
def test_the_ways_of_a_gpu(chooser: Chooser, capability: str) -> None:
    """nvidia-smi names the GPU."""
    tool = chooser.folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho {capability}, A GPU\n")
    tool.chmod(0o755)
    path = f"{chooser.folder}{os.pathsep}{os.environ['PATH']}"
    _, _, table = chooser.run(CUDA_VISIBLE_DEVICES="0", PATH=path)
    assert list(table) == [
        f"--xla {xla} --precision {precision} --steps-per-call {steps}"
        for xla, steps in [("off", 50), ("on", 50), ("on", 1), ("call", 50)]
        for precision in GPUS[capability]
    ]
    assert all("--steps 500" in line for line in chooser.trials())
