"""Every stage on two ranks: real horovodrun, real processes, and what happens when one goes wrong.

A job takes seconds before its first step, so each is run once and looked at by many tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import psutil
import pytest

from tests import ranks
from tests.conftest import (
    LAST,
    LOG_LINE,
    ROOT,
    SCRIPTS,
    read_results,
    said,
    script_id,
    stage_environment,
)
from tfworkshop.environment import horovod_build
from tfworkshop.processes import started

pytestmark = [
    pytest.mark.both_stacks,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:`build"),  # of the smooth model in ranks.py
    pytest.mark.skipif(not find_spec("horovod"), reason="needs ./workshop setup --horovod"),
]

STEPS, BATCH = [(epoch, 0) for epoch in range(5)], ranks.GLOBAL_BATCH
# A machine whose own name has no address, as laptops' often have none. Only root can rename it.
NAMELESS = ["unshare", "--uts", "sh", "-c", 'hostname nowhere && exec "$@"', "sh"]
MARK = "WORKSHOP_TEST_JOB"  # in the environment of all processes of a job, whoever adopts them


# --- jobs ---


class Job(NamedTuple):
    """A running horovodrun with two ranks."""

    launcher: subprocess.Popen[str]
    output: Path
    mark: str

    def lines(self, rank: int, stream: str) -> list[str]:
        start = f"[{rank}]<{stream}>:"
        lines = self.output.read_text(errors="replace").splitlines()
        return [line.removeprefix(start) for line in lines if line.startswith(start)]

    def complaints(self, rank: int) -> list[str]:
        """What the rank says on stderr, without Horovod's own lines and the shell's."""
        others = re.compile(r"\[|Terminated$|Killed$")
        lines = said("\n".join(self.lines(rank, "stderr")))
        return [line for line in lines if not others.match(line)]

    def wait_for_steps(self, steps: int) -> None:
        while len(LOG_LINE.findall("\n".join(self.lines(0, "stdout")))) < steps:
            assert self.launcher.poll() is None, self.output.read_text()
            time.sleep(0.1)

    def processes(self, rank: str | None = None) -> list[psutil.Process]:
        marked = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                is_marked = environment.get(MARK) == self.mark
                is_wanted = rank in (None, environment.get("HOROVOD_RANK"))
                if is_marked and is_wanted and process.status() != psutil.STATUS_ZOMBIE:
                    marked.append(process)
        return marked

    def left_over(self) -> list[psutil.Process]:
        """Processes that outlive the launcher; the last ones may need a moment to go."""
        _, alive = psutil.wait_procs(self.processes(), timeout=10)
        return alive


@contextlib.contextmanager
def job(folder: Path, *command: object, **extra: str) -> Iterator[Job]:
    mark = uuid.uuid4().hex
    environment = {
        "PYTHONPATH": str(ROOT),
        MARK: mark,
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "HOROVOD_CYCLE_TIME": "10",  # ms; by default it asks the others every 1 ms
    }
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    words = [horovodrun, "--gloo", "-np", "2", *map(str, command)]
    if os.geteuid() == 0:
        words = [*NAMELESS, *words]
    env = stage_environment(**environment, **extra)
    with (
        (folder / "output").open("w") as output,
        started(words, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT) as launcher,
    ):
        yield Job(launcher, folder / "output", mark)


# --- every stage on two ranks and alone, in one job ---


@pytest.fixture(scope="module")
def every(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """What ranks.py saw as rank 0 and 1 of two, and what the job printed."""
    folder = tmp_path_factory.mktemp("ranks")
    numbers = np.arange(131, dtype=np.uint8)  # not a multiple of anything: shares differ by one
    images = np.zeros((131, 28, 28), np.uint8)
    images[:, 0, 0] = numbers
    labels = numbers % 10
    shards = {"x_train": images, "y_train": labels, "x_test": images[:10], "y_test": labels[:10]}
    np.savez(folder / "shards.npz", **shards)
    shutil.copy(small, folder / "small.npz")
    with np.load(small) as arrays:  # an epoch is one global batch
        np.savez(folder / "one_batch.npz", **{name: arrays[name][:BATCH] for name in arrays})
    script = ROOT / "tests" / "ranks.py"
    with job(folder, sys.executable, script, folder, HOROVOD_TIMELINE="DYNAMIC") as running:
        assert running.launcher.wait() == 0, running.output.read_text()
        left_over = running.left_over()
    seen = [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in (0, 1)]
    yield SimpleNamespace(folder=folder, job=running, seen=seen, left_over=left_over)
    shutil.rmtree(folder)  # hundreds of megabytes


@pytest.fixture(scope="module", params=SCRIPTS, ids=script_id)
def run(request: pytest.FixtureRequest, every: SimpleNamespace) -> SimpleNamespace:
    name = script_id(request.param)
    zero, one = (seen[name] for seen in every.seen)
    return SimpleNamespace(script=request.param, name=name, folder=every.folder, zero=zero, one=one)


def test_a_job_says_nothing_else(every: SimpleNamespace) -> None:
    assert every.job.complaints(0) == every.job.complaints(1) == every.left_over == []


def test_rank_0_alone_logs_every_step_once(run: SimpleNamespace) -> None:
    logged = list(LOG_LINE.finditer(run.zero["ended"].stdout))
    assert [(int(line["epoch"]), int(line["batch"])) for line in logged] == STEPS
    assert run.one["ended"] == (0, "", "") and run.zero["ended"].stderr == ""
    for line in logged:  # all ranks' images count
        seconds = BATCH / float(line["speed"])
        assert seconds == pytest.approx(float(line["time"]), rel=1e-3, abs=1e-3)
    results = json.loads(run.zero["results"])
    assert (results["ranks"], results["batch_size"]) == (2, BATCH // 2)
    assert results["test_accuracy"] > 0 and not results["interrupted"]


def test_rank_0_alone_profiles_unless_all_are_asked(run: SimpleNamespace) -> None:
    logs = run.folder / run.name
    profiles = {path.relative_to(logs).parts[0] for path in logs.rglob("*.xplane.pb")}
    expected = {"04": {"plugins"}, "05": {"plugins", "1"}, "06": {"plugins"}}
    assert profiles == expected.get(run.name[:2], set())


def test_ranks_start_from_rank_0s_weights_and_end_with_the_same(run: SimpleNamespace) -> None:
    zero, one = run.zero, run.one
    assert zero["count"] == one["count"] == 8 + 2 * 8 + 2  # weights, Adam's two for each, and two
    assert zero["made"] != one["made"]
    assert zero["made"] == zero["before"] == one["before"]
    assert zero["digest"] == one["digest"] != zero["before"]


def test_two_ranks_train_as_one_process_does(run: SimpleNamespace, tmp_path: Path) -> None:
    shutil.copy(run.folder / "one_batch.npz", tmp_path)
    alone = ranks.probe(run.script, tmp_path)
    assert len(alone["losses"]) == 5
    assert run.zero["losses"] == run.one["losses"]
    assert np.allclose(run.zero["losses"], alone["losses"], rtol=1e-5)
    assert run.zero["before"] == alone["before"]
    variables = zip(alone["names"], run.zero["after"], alone["after"], alone["moved"], strict=True)
    for name, new, old, moved in variables:
        assert np.abs(new - old).max() <= 2e-3 * moved, name


def test_an_image_is_seen_once_an_epoch_by_one_rank(run: SimpleNamespace) -> None:
    drawn = np.array([run.zero["drawn"], run.one["drawn"]])
    assert drawn.shape == (2, 3 * (131 // 16), 8)  # rank, step, image: equally many steps
    epochs = drawn.reshape(2, 3, 64)
    for epoch in range(3):
        assert len(set(epochs[:, epoch].ravel())) == 128
    assert set(epochs[0].ravel()).isdisjoint(epochs[1].ravel())
    for rank in (0, 1):
        orders = {tuple(order) for order in epochs[rank]}
        assert len(orders) == 3 and not any(list(order) == sorted(order) for order in orders)


def test_xla_call_works_on_many_ranks(every: SimpleNamespace) -> None:
    """XLA cannot compile the exchange; and ranks that profile and ranks that do not keep step."""
    zero, one = (seen["call"] for seen in every.seen)
    assert len(zero["losses"]) == 9 and zero["losses"] == one["losses"]
    assert zero["digest"] == one["digest"] != zero["before"]
    assert len(list((every.folder / "call").rglob("*.xplane.pb"))) == 1


def test_nan_on_one_rank_stops_all(every: SimpleNamespace) -> None:
    for rank, seen in enumerate(every.seen):
        (line,) = seen["nan"].stderr.splitlines()
        assert line.startswith(f"00_baseline: rank {rank}: the loss is nan at step 3")
        assert seen["nan"].status == 1
    assert not list(every.folder.glob("nan.json*"))


@pytest.mark.skipif(
    not Path(sys.prefix, horovod_build.STAMP).exists(), reason="of the Horovod that we build"
)
def test_a_timeline_keeps_no_core_busy(every: SimpleNamespace) -> None:
    """Half a second in which nothing happens. As published, rank 0 spends all of it computing."""
    assert max(seen["idle"] for seen in every.seen) < 0.2


def test_one_exchange_a_step_for_all_tensors(run: SimpleNamespace) -> None:
    """Horovod copies the loss and eight gradients together; the last stage joins them itself."""
    timeline = (run.folder / f"{run.name}.timeline").read_text()
    tensors, copies = (1, 0) if run.script == LAST else (9, 9)
    assert len(re.findall('"B", "name": "GLOO_ALLREDUCE"', timeline)) == len(STEPS) * tensors
    assert timeline.count('"MEMCPY_IN_FUSION_BUFFER"') == len(STEPS) * copies


# --- when one rank goes wrong ---

BUG = """
        if hvd.rank() == 1 and step == 2:
            images = images[:, :27]  # an attendee's own bug
        loss = float("""


@pytest.mark.parametrize("fault", ["killed", "missing data", "own bug"])
def test_when_one_rank_ends_all_end(fault: str, small, warm_python: Path, tmp_path: Path) -> None:
    source = (ROOT / "02_tf_function" / "train_MNIST.py").read_text()
    if fault == "own bug":
        assert source.count("\n        loss = float(") == 1
        source = source.replace("\n        loss = float(", BUG)
    (tmp_path / "train_MNIST.py").write_text(source)
    shutil.copy(small, tmp_path / "rank0.npz")
    if fault != "missing data":
        shutil.copy(small, tmp_path / "rank1.npz")
    own_data = ["sh", "-c", 'MNIST_NPZ="rank$HOROVOD_RANK.npz" exec "$@"', "sh"]
    options = ["--batch-size", 16, "--epochs", 1000, "--results", "r.json"]
    with job(tmp_path, *own_data, warm_python, "train_MNIST.py", *options) as running:
        if fault == "killed":
            running.wait_for_steps(2)
            for process in running.processes(rank="1"):
                process.kill()
        assert running.launcher.wait(60) != 0
        assert running.left_over() == []
        assert running.complaints(0) == ["02_tf_function: rank 0: another rank stopped"]
        stderr = "\n".join(running.complaints(1))
        if fault == "missing data":
            assert stderr.startswith("02_tf_function: rank 1: there is no rank1.npz")
        elif fault == "own bug":
            assert stderr.startswith("Traceback (most recent call last)")
            assert "loss = float(" in stderr and "another rank stopped" not in stderr
        assert not (tmp_path / "r.json").exists()


@pytest.mark.skipif(
    os.path.realpath("/bin/sh").endswith("bash"),
    reason="horovodrun kills its ranks without a warning where /bin/sh is bash",
)
def test_ctrl_c_still_gives_the_summary(small: Path, warm_python: Path, tmp_path: Path) -> None:
    script = ROOT / LAST[0] / LAST[1]
    options = ["--data", small, "--batch-size", 16, "--epochs", 1000, "--results", "r.json"]
    with job(tmp_path, warm_python, script, *options) as running:
        running.wait_for_steps(30)
        running.launcher.send_signal(signal.SIGINT)
        running.launcher.wait(60)  # its status depends on which rank ends first
        assert running.left_over() == []
        results = read_results(tmp_path / "r.json")
        assert results["interrupted"] and results["steps_timed"] > 0
        assert "interrupted     True" in running.lines(0, "stdout")
        assert running.complaints(0) == []
        # the launcher may end rank 1 before it can say so
        assert running.complaints(1) in ([], ["06_optimized: rank 1: another rank stopped"])
