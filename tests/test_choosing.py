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
from conftest import ROOT, stage_environment

FOLDER = ROOT / "06_optimized"
WAYS = [
    "--xla off --precision float32 --steps-per-call 10",
    "--xla off --precision float32 --steps-per-call 1",
    "--xla on --precision float32 --steps-per-call 10",
]
SMALL = "--xla off --precision float32 --steps-per-call 50 --threads 1"  # for tiny batches
# Stands in for the training: does with each way what plan.json says, and notes that it ran.
FAKE = """
import json, os, signal, sys, time
from pathlib import Path
here, words = Path(__file__).parent, sys.argv[1:]
option = lambda name: words[words.index(name) + 1]
way = " ".join(f"{name} {option(name)}" for name in ("--xla", "--precision", "--steps-per-call"))
does = json.loads((here / "plan.json").read_text()).get(way, 10.0)
if isinstance(does, list):  # first this, then that
    ran = (here / "ran.txt").read_text() if (here / "ran.txt").exists() else ""
    does = does[min(ran.count(f'"{way}"'), len(does) - 1)]
with (here / "ran.txt").open("a") as file:
    print(json.dumps([os.getpid(), way, words, sorted(os.environ)]), file=file)
def finish(speed):
    Path(option("--results")).write_text(json.dumps({"img_per_s": speed}))
    os._exit(0 if does == speed else 130)
if isinstance(does, float):
    finish(does)
if does == "stops":
    sys.exit("06_optimized: cannot read it")
if does == "raises":
    raise ValueError("no such kernel")
if does == "crashes":
    os.kill(os.getpid(), signal.SIGILL)
figure = {"too slow": None, "sums up": 70.0}.get(does)
ignore = does == "hangs"
signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else lambda *_: finish(figure))
time.sleep(1000)
"""


class Chooser:
    """A copy of choose.py beside the fake, with limits of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "06", folder / "cache"
        self.folder.mkdir()
        (self.folder / "train_MNIST.py").write_text(FAKE)
        self.limits(5, 60)
        self.plan({})

    def limits(self, one: float, all_of_them: float) -> None:
        text = (FOLDER / "choose.py").read_text()
        for old, new in (
            ("(30, 53), (90, 590)", f"({one}, {all_of_them}), ({one}, {all_of_them + 1})"),
            ("communicate(timeout=5)", "communicate(timeout=1)"),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        (self.folder / "choose.py").write_text(text)

    def plan(self, does: dict[str, object]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(does))

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
        out, err = process.communicate(timeout=100)
        self.said = err.splitlines()
        return (
            process.returncode,
            out,
            dict(re.split(r" {2,}", line) for line in self.said if line.startswith("--xla")),
        )

    def ran(self) -> list[list]:
        """What the fake noted, since this was asked last."""
        path = self.folder / "ran.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    def kept(self) -> dict:
        return json.loads((self.cache / "06_choices.json").read_text())


@pytest.fixture
def chooser(tmp_path: Path) -> Chooser:
    return Chooser(tmp_path)


def test_the_fastest_is_printed_and_the_first_of_equals(chooser: Chooser) -> None:
    chooser.plan({WAYS[0]: 90.0, WAYS[1]: 98.0, WAYS[2]: 100.0})
    status, out, table = chooser.run()
    assert (status, out) == (0, WAYS[1] + "\n")
    assert [table[way] for way in WAYS] == ["90 img/s", "98 img/s", "100 img/s"]


def test_a_way_that_fails_only_loses(chooser: Chooser) -> None:
    chooser.plan({WAYS[0]: "crashes", WAYS[1]: "raises", WAYS[2]: 50.0})
    status, out, table = chooser.run()
    assert (status, out) == (0, WAYS[2] + "\n")
    assert [table[way] for way in WAYS] == ["failed", "failed", "50 img/s"]
    assert sorted(map(str, chooser.kept().values()))[-2:] == ["failed", "failed"]


def test_a_slow_way_gives_a_figure_if_it_has_one(chooser: Chooser) -> None:
    chooser.limits(3, 60)
    chooser.plan({WAYS[0]: ["hangs", 1.0], WAYS[1]: "too slow", WAYS[2]: "sums up"})
    status, out, table = chooser.run()
    assert (status, out) == (0, WAYS[2] + "\n")
    assert [table[way] for way in WAYS] == ["too slow", "too slow", "70 img/s"]
    for pid, *_ in chooser.ran():
        assert not psutil.pid_exists(pid)


def test_what_was_not_reached_is_not_remembered(chooser: Chooser) -> None:
    chooser.limits(20, 3)
    chooser.plan({WAYS[1]: "too slow"})
    status, out, table = chooser.run()
    assert (status, out) == (0, WAYS[0] + "\n")
    assert [table[way] for way in WAYS] == ["10 img/s", "not reached", "not reached"]
    assert list(chooser.kept().values()) == [10.0]
    assert [way for _, way, *_ in chooser.ran()] == WAYS[:2]

    chooser.limits(20, 60)
    chooser.plan({WAYS[2]: 30.0})
    assert chooser.run()[1] == WAYS[2] + "\n"
    assert [way for _, way, *_ in chooser.ran()][:2] == WAYS[1:]


def test_it_is_kept_for_this_machine_script_and_batch(chooser: Chooser) -> None:
    first = chooser.run()
    tried = len(chooser.ran())
    assert tried >= len(WAYS)
    assert chooser.run() == first and not chooser.ran()
    for words, extra in (
        (["--again"], {}),
        (["--batch-size", 16], {}),
        ([], {"TF_NUM_INTRAOP_THREADS": "1"}),
    ):
        chooser.run(*words, **extra)
        assert len(chooser.ran()) == tried, (words, extra)
    with (chooser.folder / "train_MNIST.py").open("a") as file:
        file.write("# other code\n")
    chooser.run()
    assert len(chooser.ran()) == tried
    assert len(chooser.kept()) == 4 * tried
    assert [path.name for path in chooser.cache.iterdir()] == ["06_choices.json"]


@pytest.mark.parametrize("content", ["[5]", "{", "null", '"text"', "", "[" * 100_000])
def test_a_broken_cache_is_ignored(chooser: Chooser, content: str) -> None:
    chooser.cache.mkdir()
    (chooser.cache / "06_choices.json").write_text(content)
    status, out, _ = chooser.run()
    assert (status, out) == (0, WAYS[0] + "\n")
    assert len(chooser.kept()) >= len(WAYS)


def test_a_cache_with_something_else_is_not_ours(chooser: Chooser) -> None:
    first = chooser.run()
    tried, path = len(chooser.ran()), chooser.cache / "06_choices.json"
    good = path.read_text()
    for odd in ("NaN", "-1.0", "Infinity", "[]", "null", '"fast"', "[" * 900 + "]" * 900):
        path.write_text(good.replace("10.0", odd, 1))
        assert chooser.run() == first and len(chooser.ran()) == tried, odd
        assert set(chooser.kept().values()) == {10.0}


@pytest.mark.parametrize(("again", "kept"), [(70.0, False), (140.0, False), (90.0, True)])
def test_what_a_busy_machine_measured_is_not_kept(chooser: Chooser, again: float, kept) -> None:
    """The first way is tried again at the end: its two speeds tell how quiet the machine was."""
    chooser.plan({WAYS[0]: [100.0, again]})
    status, out, _ = chooser.run()
    assert (status, out) == (0, WAYS[0] + "\n")
    told = "too noisy to keep. On a quiet machine: python choose.py --again"
    assert (chooser.said[-1] == told) is not kept
    assert f"the first of these, again {again:,.0f} img/s" in re.sub(" +", " ", str(chooser.said))
    assert bool(chooser.kept()) is kept


def test_a_cache_that_cannot_be_written(chooser: Chooser) -> None:
    chooser.cache.write_text("no folder")
    assert chooser.run()[:2] == (0, WAYS[0] + "\n")


def test_when_nothing_works(chooser: Chooser) -> None:
    chooser.plan(dict.fromkeys([*WAYS, WAYS[0].replace("float32", "mixed_bfloat16")], "crashes"))
    status, out, _ = chooser.run()
    assert (status, out) == (1, "")
    assert chooser.said[-1].startswith("choose.py: none of them finished")
    assert not chooser.cache.exists()


def test_what_the_script_says_of_the_safest_way_ends_it(chooser: Chooser) -> None:
    """No data, say: to try the other ways would only take time."""
    chooser.plan({WAYS[0]: "stops"})
    status, out, _ = chooser.run()
    assert (status, out, chooser.said[-1]) == (1, "", "choose.py: 06_optimized: cannot read it")
    assert len(chooser.ran()) == 1 and not chooser.cache.exists()


@pytest.mark.parametrize("words", [["--batch-size", "many"], ["--colour"], ["extra"]])
def test_bad_options(chooser: Chooser, words: list[str]) -> None:
    status, out, _ = chooser.run(*words)
    assert (status, out, len(chooser.said)) == (1, "", 1)
    assert chooser.said[0].startswith("choose.py: ") and not chooser.ran()


def test_options_reach_the_script_and_a_launcher_does_not(chooser: Chooser) -> None:
    launcher = {
        "HOROVOD_SIZE": "4",
        "OMPI_COMM_WORLD_SIZE": "4",
        "PMI_RANK": "1",
        "SLURM_NTASKS": "4",
    }
    status, *_ = chooser.run("--batch_size", 8, "--data", "x.npz", **launcher)
    assert status == 0
    for _, _, words, names in chooser.ran():
        assert " ".join(words).startswith("--steps 200 --batch-size 8 --data x.npz --xla")
        assert not set(launcher) & set(names) and "PATH" in names


def test_tiny_batches_are_tried_on_one_thread(chooser: Chooser) -> None:
    assert SMALL not in chooser.run("--batch-size", 9)[2] and chooser.ran()
    assert list(chooser.run("--batch-size", 8)[2])[:3] == [WAYS[0], SMALL, WAYS[2]]
    tried = [" ".join(words) for _, _, words, _ in chooser.ran()]
    assert [SMALL in words for words in tried][:3] == [False, True, False]
    assert all(words.startswith("--steps 200 ") for words in tried)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_keeps_nothing(chooser: Chooser, number: int) -> None:
    chooser.plan({WAYS[1]: "hangs"})
    chooser.limits(60, 60)
    process = chooser.start()
    path, deadline = chooser.folder / "ran.txt", time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.read_text().count("\n") == 2):
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[2:] == ["choose.py: interrupted, nothing was saved"]
    assert not any(psutil.pid_exists(pid) for pid, *_ in chooser.ran())
    assert not chooser.cache.exists()


@pytest.mark.parametrize(
    ("ability", "kinds"),
    [
        ("8.0", ["float32", "mixed_bfloat16", "mixed_float16"]),
        ("7.5", ["float32", "mixed_float16"]),
        ("6.1", ["float32"]),
    ],
)
def test_the_ways_of_a_gpu(chooser: Chooser, ability: str, kinds: list[str]) -> None:
    """nvidia-smi tells of the GPU; CUDA_VISIBLE_DEVICES may hide it."""
    tool = chooser.folder / "nvidia-smi"
    tool.write_text(
        f'#!/bin/sh\n[ "$1" = --query-gpu=compute_cap,name ] && echo {ability}, A GPU\n'
    )
    tool.chmod(0o755)
    path = {"PATH": f"{chooser.folder}{os.pathsep}{os.environ['PATH']}"}
    _, _, table = chooser.run(CUDA_VISIBLE_DEVICES="0", **path)
    pairs = [("off", 50), ("on", 50), ("on", 1), ("call", 50)]
    assert list(table) == [
        f"--xla {xla} --precision {kind} --steps-per-call {steps}"
        for xla, steps in pairs
        for kind in kinds
    ]
    assert all("--steps 500" in " ".join(words) for _, _, words, _ in chooser.ran())
    assert list(chooser.run(**path)[2])[:3] == WAYS


def test_the_ways_of_a_cpu_with_16_bit_units(chooser: Chooser) -> None:
    info = chooser.folder / "cpuinfo"
    text = (chooser.folder / "choose.py").read_text()
    (chooser.folder / "choose.py").write_text(text.replace("/proc/cpuinfo", str(info)))
    sixteen = WAYS[0].replace("float32", "mixed_bfloat16")
    for flags, added in (("avx2", []), ("avx2 avx512_bf16", [sixteen]), ("amx_bf16", [sixteen])):
        info.write_text(f"model name\t: A CPU\nflags\t\t: {flags}\n")
        assert list(chooser.run()[2]) == [*WAYS, *added]
    assert all(key.startswith("A CPU, ") for key in chooser.kept())
