"""Every stage on two ranks: real horovodrun, real processes, and what happens when one goes wrong.

A job costs ten seconds before its first step, so each is run once and looked at by many tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ranks
from conftest import (
    LAST,
    LOG_LINE,
    ROOT,
    SCRIPTS,
    read_results,
    said,
    script_id,
    stage_environment,
    stages,
)

from tfworkshop.report import command as report

pytestmark = pytest.mark.timeout(600)

PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
HOROVODRUN = find_spec("horovod") and shutil.which("horovodrun", path=PLACES)
RANKS = str(ROOT / "tests" / "ranks.py")
STAMP = Path(sys.prefix) / "workshop.json"
STEPS, BATCH = [(epoch, 0) for epoch in range(5)], ranks.GLOBAL_BATCH
ENDINGS = ("Terminated", "Killed")  # the shell's word for a process that a signal ended
# A machine whose own name has no address, as laptops' often have none. Only root can rename it.
NAMELESS = ["unshare", "--uts", "sh", "-c", 'hostname nowhere && exec "$@"', "sh"]
MARK = "WORKSHOP_TEST_JOB"  # in the environment of all processes of a job, whoever adopts them


def path_of(script: tuple[str, str]) -> str:
    return str(ROOT / script[0] / script[1])


# --- jobs ---


def processes(mark: str) -> list[Any]:
    import psutil  # comes with Horovod

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class Job:
    """A running horovodrun with two ranks."""

    def __init__(
        self, folder: Path, command: list[object], extra: dict[str, str], on: list[str]
    ) -> None:
        self.mark, self.folder, self.output = uuid.uuid4().hex, folder, folder / "output"
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        threads["HOROVOD_CYCLE_TIME"] = "10"  # ms; by default it asks the others every 1 ms
        env = stage_environment(**{"PYTHONPATH": str(ROOT), MARK: self.mark, **threads, **extra})
        with self.output.open("w") as output:
            self.launcher = subprocess.Popen(
                [*on, str(HOROVODRUN), "--gloo", "-np", "2", *map(str, command)],
                cwd=folder,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def lines(self, rank: int, stream: str) -> list[str]:
        start = f"[{rank}]<{stream}>:"
        return [line[len(start) :] for line in self.text.splitlines() if line.startswith(start)]

    def logged(self, rank: int = 0) -> list[re.Match[str]]:
        return list(LOG_LINE.finditer("\n".join(self.lines(rank, "stdout"))))

    def complaints(self, rank: int) -> list[str]:
        """What the rank says on stderr, without Horovod's own line about a lost connection."""
        said_here = said("\n".join(self.lines(rank, "stderr")))
        return [line for line in said_here if line[:1] != "[" and line not in ENDINGS]

    def until_logged(self, steps: int) -> None:
        while len(self.logged()) < steps:
            assert self.launcher.poll() is None, self.text
            time.sleep(0.1)

    def rank(self, rank: int) -> Any:
        """The Python process of a rank, not the shell around it."""
        named = [p for p in processes(self.mark) if p.environ().get("HOROVOD_RANK") == str(rank)]
        return max(named, key=lambda process: len(process.threads()))

    def wait(self) -> int:
        return self.launcher.wait()

    def left_over(self, seconds: float = 10) -> list[Any]:
        """Processes that outlive the launcher; the last ones may need a moment to go."""
        end = time.monotonic() + seconds
        while processes(self.mark) and time.monotonic() < end:
            time.sleep(0.1)
        return processes(self.mark)

    def kill(self) -> None:
        for _ in range(3):  # a process may start another while we look
            for process in processes(self.mark):
                with contextlib.suppress(Exception):
                    process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launcher.wait(timeout=5)


@contextlib.contextmanager
def job(folder: Path, *command: object, on: Sequence[str] = (), **extra: str) -> Iterator[Job]:
    """A job that is gone when the test is over, however it ends."""
    if not HOROVODRUN:
        must = os.environ.get("CI") and os.environ.get("WORKSHOP_HOROVOD") != "0"
        (pytest.fail if must else pytest.skip)("needs Horovod: ./workshop setup --horovod")
    started = Job(folder, list(command), extra, list(on))
    try:
        yield started
    finally:
        started.kill()


def own_data(*command: object) -> list[object]:
    """The command with each rank's data in a file of its own."""
    return ["sh", "-c", 'MNIST_NPZ="rank$HOROVOD_RANK.npz" exec "$@"', "sh", *command]


def one_line(lines: list[str], start: str) -> bool:
    return len(lines) == 1 and lines[0].startswith(start)


# --- every stage on two ranks and alone, in one job ---


@pytest.fixture(scope="module")
def every(
    mnist: Path, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """What ranks.py saw as rank 0 and 1 of two, and what the job printed."""
    folder = tmp_path_factory.mktemp("ranks")
    index = np.arange(131)  # not a multiple of anything: ranks' shares differ by one
    images = np.zeros((131, 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = index // 256, index % 256
    labels = (index % 10).astype(np.uint8)
    shards = {"x_train": images, "y_train": labels, "x_test": images[:10], "y_test": labels[:10]}
    np.savez(folder / "shards.npz", **shards)
    with np.load(small) as full:
        arrays = dict(full)
    few = {name: array[:BATCH] for name, array in arrays.items()}  # every epoch: one global batch
    np.savez(folder / "one_batch.npz", **few)
    np.savez(folder / "small.npz", **arrays)
    arrays["x_train"][7, 14, 14] ^= 1
    np.savez(folder / "other.npz", **arrays)
    on = NAMELESS if os.geteuid() == 0 else []
    with job(folder, sys.executable, RANKS, folder, on=on, HOROVOD_TIMELINE="DYNAMIC") as ran:
        assert ran.wait() == 0, ran.text
    seen = [pickle.loads((folder / f"rank{rank}.pickle").read_bytes()) for rank in (0, 1)]
    yield SimpleNamespace(folder=folder, job=ran, seen=seen)
    shutil.rmtree(folder)  # hundreds of megabytes


@pytest.fixture(scope="module", params=SCRIPTS, ids=script_id)
def run(request: pytest.FixtureRequest, every: SimpleNamespace) -> SimpleNamespace:
    name = script_id(request.param)
    zero, one = (seen[name] for seen in every.seen)
    results = json.loads(zero["results"])
    return SimpleNamespace(
        script=request.param, name=name, folder=every.folder, zero=zero, one=one, results=results
    )


def test_a_job_says_nothing_else(every: SimpleNamespace) -> None:
    assert every.job.complaints(0) == every.job.complaints(1) == []
    assert every.job.left_over() == []


def test_rank_0_alone_logs_every_step_once(run: SimpleNamespace) -> None:
    logged = list(LOG_LINE.finditer(run.zero["ended"].stdout))
    assert [(int(line["epoch"]), int(line["batch"])) for line in logged] == STEPS
    assert run.one["ended"] == (0, "", "") and run.zero["ended"].stderr == ""
    for line in logged:  # all ranks' images count
        seconds = BATCH / float(line["speed"])
        assert seconds == pytest.approx(float(line["time"]), rel=1e-3, abs=1e-3)
    assert (run.results["ranks"], run.results["batch_size"]) == (2, BATCH // 2)
    assert run.results["test_accuracy"] > 0 and not run.results["interrupted"]


def test_rank_0_alone_profiles_unless_all_are_asked(run: SimpleNamespace) -> None:
    logs = run.folder / run.name
    counts = dict.fromkeys(stages("04", "06"), 1) | dict.fromkeys(stages("05"), 2)
    assert len(list(logs.rglob("*.xplane.pb"))) == counts.get(run.script, 0)
    if run.script in stages("05"):
        told, hosts = report.load(logs, ranks=True)
        assert [host.name.rpartition(" rank ")[2] for host in hosts] == ["1", "0"]
        assert [row.steps for row in told.host_steps] == [2, 2]


def test_ranks_start_from_rank_0s_weights(run: SimpleNamespace) -> None:
    zero, one = run.zero, run.one
    assert zero["count"] == one["count"] == 8 + 2 * 8 + 2  # weights, Adam's two for each, and two
    assert zero["made"] != one["made"]
    assert zero["made"] == zero["before"] == one["before"]


def test_ranks_end_with_the_same_bits(run: SimpleNamespace) -> None:
    assert run.zero["digest"] == run.one["digest"] != run.zero["before"]


def test_two_ranks_train_as_one_process_does(run: SimpleNamespace, tmp_path: Path) -> None:
    shutil.copy(run.folder / "one_batch.npz", tmp_path)
    alone = ranks.probe(run.script, tmp_path)
    assert len(alone["losses"]) == 5
    assert np.allclose(run.zero["losses"], alone["losses"], rtol=1e-5)
    assert run.zero["losses"] == run.one["losses"]
    assert run.zero["before"] == alone["before"]
    every = zip(alone["names"], run.zero["after"], alone["after"], alone["moved"])
    for name, new, old, moved in every:
        assert np.abs(new - old).max() <= 2e-3 * moved, name


def test_ranks_take_equally_many_steps(run: SimpleNamespace) -> None:
    for seen in (run.zero, run.one):
        assert [len(batch) for batch in seen["drawn"]] == 3 * (131 // 16) * [8]


def test_an_image_is_seen_once_an_epoch_by_one_rank(run: SimpleNamespace) -> None:
    steps = [run.zero["drawn"], run.one["drawn"]]
    for epoch in (slice(0, 8), slice(8, 16), slice(16, 24)):
        images = [image for rank in steps for batch in rank[epoch] for image in batch]
        assert len(set(images)) == len(images) == 128
    shares = [{image for batch in rank for image in batch} for rank in steps]
    assert shares[0].isdisjoint(shares[1])


def test_every_epoch_is_shuffled_anew(run: SimpleNamespace) -> None:
    for seen in (run.zero, run.one):
        epochs = [[i for batch in seen["drawn"][k : k + 8] for i in batch] for k in (0, 8, 16)]
        assert all(epoch != sorted(epoch) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3


def test_xla_call_compiles_only_the_gradients_of_many_ranks(every: SimpleNamespace) -> None:
    """XLA cannot compile the exchange; and ranks that profile and ranks that do not keep step."""
    zero, one = (seen["call"] for seen in every.seen)
    for seen in (zero, one):
        assert set(seen["asked"]) == {("train_steps", False), ("compute_gradients", True)}
    assert len(zero["losses"]) == 9 and zero["losses"] == one["losses"]
    assert zero["digest"] == one["digest"] != zero["before"]
    assert statistics.mean(zero["losses"][-3:]) < statistics.mean(zero["losses"][:3])
    assert len(list((every.folder / "call").rglob("*.xplane.pb"))) == 1


def test_nan_on_one_rank_stops_all(every: SimpleNamespace) -> None:
    for rank, seen in enumerate(every.seen):
        wanted = f"00_baseline (rank {rank}): the loss is nan at step 3"
        assert seen["nan"].status == 1 and one_line(seen["nan"].stderr.splitlines(), wanted)
    assert len(LOG_LINE.findall(every.seen[0]["nan"].stdout)) == 3
    assert not list(every.folder.glob("nan.json*"))


def test_other_data_stops_all_ranks(every: SimpleNamespace) -> None:
    for rank, seen in enumerate(every.seen):
        wanted = f"06_optimized (rank {rank}): the ranks have read different data"
        assert seen["other"].status == 1 and one_line(seen["other"].stderr.splitlines(), wanted)
        assert seen["other"].stdout == ""
    assert not list(every.folder.glob("other.json*"))


@pytest.mark.skipif(not STAMP.exists(), reason="of the Horovod that ./workshop builds")
def test_a_timeline_keeps_no_core_busy(every: SimpleNamespace) -> None:
    """Half a second in which nothing happens. As published, rank 0 spends all of it computing."""
    assert max(seen["idle"] for seen in every.seen) < 0.2


def exchanges(timeline: str) -> list[set[str]]:
    """The tensors of every allreduce. A timeline has a row for each tensor; where Horovod moves
    many at once, all their rows enter GLOO_ALLREDUCE before the first one leaves it. (A recording
    may start in the middle of something else, which then only ends.)"""
    events = json.loads(timeline.rstrip().rstrip(",").removesuffix("]") + "]")
    rows: dict[int, str] = {}
    inside: dict[int, list[str]] = {}
    open_rows: set[int] = set()
    found: list[set[str]] = []
    for event in events:
        row, stack = event["pid"], inside.setdefault(event["pid"], [])
        if event.get("name") == "process_name":
            rows[row] = event["args"].get("name", "")
        elif event["ph"] == "B":
            stack.append(event["name"])
            if event["name"] == "GLOO_ALLREDUCE":
                if not open_rows:
                    found.append(set())
                open_rows.add(row)
                found[-1].add(rows[row])
        elif event["ph"] == "E" and stack and stack.pop() == "GLOO_ALLREDUCE":
            open_rows.remove(row)
    return found


def test_exchanges_tells_one_from_many() -> None:
    rows = [
        {"name": "process_name", "ph": "M", "pid": i, "args": {"name": f"t{i}"}} for i in (1, 2)
    ]
    begin, end = {"ph": "B", "name": "GLOO_ALLREDUCE"}, {"ph": "E"}
    fused = [begin | {"pid": 1}, begin | {"pid": 2}, end | {"pid": 1}, end | {"pid": 2}]
    apart = [begin | {"pid": 1}, end | {"pid": 1}, begin | {"pid": 2}, end | {"pid": 2}]
    assert exchanges(json.dumps(rows + fused)) == [{"t1", "t2"}]
    cut_short = json.dumps(rows + apart).removesuffix("]") + ",\n"
    assert exchanges(cut_short) == [{"t1"}, {"t2"}]


def test_one_exchange_a_step_for_all_tensors(run: SimpleNamespace) -> None:
    timeline = (run.folder / f"{run.name}.timeline").read_text()
    found = exchanges(timeline)
    assert len(found) == len(STEPS)
    joined = run.script == LAST
    tensors = 1 if joined else 9  # the loss and eight gradients; 06 joins them
    assert {len(names) for names in found} == {tensors}
    copied = timeline.count('"MEMCPY_IN_FUSION_BUFFER"')
    assert copied == (0 if joined else len(STEPS) * tensors)


# --- when it goes wrong ---


def test_a_killed_rank_ends_the_job(mnist: Path, tmp_path: Path) -> None:
    """In stage 00 a rank spends most of a step away from the exchange."""
    options = ["--data", mnist, "--batch-size", 16, "--results", "r.json"]
    with job(tmp_path, sys.executable, path_of(stages("00")[0]), *options) as ran:
        ran.until_logged(2)
        ran.rank(1).kill()
        killed = time.monotonic()
        assert ran.wait() != 0
        assert time.monotonic() - killed < 60
        assert ran.left_over() == []
        assert ran.complaints(0) == ["00_baseline (rank 0): another rank stopped"]
        assert [path.name for path in tmp_path.iterdir()] == ["output"]


@pytest.mark.parametrize("missing", [0, 1])
def test_missing_data_stops_all_ranks(small: Path, tmp_path: Path, missing: int) -> None:
    shutil.copy(small, tmp_path / f"rank{1 - missing}.npz")
    with job(tmp_path, *own_data(sys.executable, path_of(stages("02")[0]))) as ran:
        assert ran.wait() != 0
        wanted = f"02_tf_function (rank {missing}): cannot read rank{missing}.npz"
        assert one_line(ran.complaints(missing), wanted)
        other = f"02_tf_function (rank {1 - missing}): another rank stopped"
        assert ran.complaints(1 - missing) == [other]
        assert ran.logged() == [] and ran.left_over() == []


@pytest.mark.skipif(
    os.path.realpath("/bin/sh").endswith("bash"),
    reason="horovodrun kills its ranks without a warning where /bin/sh is bash",
)
def test_ctrl_c_still_gives_the_summary(small: Path, tmp_path: Path) -> None:
    options = ["--data", small, "--batch-size", 16, "--epochs", 1000, "--results", "r.json"]
    with job(tmp_path, sys.executable, path_of(LAST), *options) as ran:
        ran.until_logged(30)
        ran.launcher.send_signal(signal.SIGINT)
        sent = time.monotonic()
        ran.wait()  # the launcher's own status after Ctrl+C depends on which rank ends first
        assert time.monotonic() - sent < 15
        assert ran.left_over() == []
        results = read_results(tmp_path / "r.json")
        assert results["interrupted"] and results["steps_timed"] > 0
        assert "interrupted     True" in ran.lines(0, "stdout")
        assert ran.complaints(0) == []
        # the launcher may end rank 1 before it can say so
        assert ran.complaints(1) in ([], ["06_optimized (rank 1): another rank stopped"])
