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
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import (
    FIXED,
    LOG_LINE,
    ROOT,
    SCRIPTS,
    load_script,
    read_results,
    run_script,
    said,
    script_id,
    stage_environment,
    stages,
)

pytestmark = pytest.mark.timeout(240)

PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
HOROVODRUN = find_spec("horovod") and shutil.which("horovodrun", path=PLACES)
RANKS = str(ROOT / "tests" / "ranks.py")
STEPS, BATCH = 6, 16
ENDINGS = ("Terminated", "Killed")  # the shell's word for a process that a signal ended
MARK = "WORKSHOP_TEST_JOB"  # in the environment of all processes of a job, whoever adopts them


def path_of(script: tuple[str, str]) -> str:
    return str(ROOT / script[0] / script[1])


def profile_options(script: tuple[str, str], logdir: object) -> list[object]:
    """04 and 05 record steps 10 to 20 unless told otherwise: more than a test runs."""
    wanted = script in stages("04", "05")
    return ["--logdir", logdir, "--profile-steps", 2, 3] if wanted else []


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

    def __init__(self, folder: Path, command: list[object], extra: dict[str, str]) -> None:
        self.mark, self.folder, self.output = uuid.uuid4().hex, folder, folder / "output"
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        env = stage_environment(**{"PYTHONPATH": str(ROOT), MARK: self.mark, **threads, **extra})
        with self.output.open("w") as output:
            self.launcher = subprocess.Popen(
                [str(HOROVODRUN), "--gloo", "-np", "2", *map(str, command)],
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
def job(folder: Path, *command: object, **extra: str) -> Iterator[Job]:
    """A job that is gone when the test is over, however it ends."""
    if not HOROVODRUN:
        must = os.environ.get("CI") and os.environ.get("WORKSHOP_HOROVOD") != "0"
        (pytest.fail if must else pytest.skip)("needs Horovod: ./workshop setup --horovod")
    started = Job(folder, list(command), extra)
    try:
        yield started
    finally:
        started.kill()


def seen_by(folder: Path, rank: int) -> Any:
    return pickle.loads((folder / f"rank{rank}.pickle").read_bytes())


def own_data(*command: object) -> list[object]:
    """The command with each rank's data in a file of its own."""
    return ["sh", "-c", 'MNIST_NPZ="rank$HOROVOD_RANK.npz" exec "$@"', "sh", *command]


def one_line(lines: list[str], start: str) -> bool:
    return len(lines) == 1 and lines[0].startswith(start)


# --- every stage, as it is ---


@pytest.fixture(scope="module", params=SCRIPTS, ids=script_id)
def run(
    request: pytest.FixtureRequest, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> SimpleNamespace:
    script, folder = request.param, tmp_path_factory.mktemp("ranks")
    options = ["--steps", STEPS, "--batch-size", BATCH, "--data", small, "--results", "r.json"]
    options += profile_options(script, "logs")
    command = [sys.executable, RANKS, "watch", folder, path_of(script), *options]
    with job(folder, *command, HOROVOD_TIMELINE=str(folder / "timeline.json")) as ran:
        status = ran.wait()
        return SimpleNamespace(script=script, folder=folder, job=ran, status=status)


def test_ends_well_and_leaves_nothing(run: SimpleNamespace) -> None:
    assert run.status == 0, run.job.text
    assert run.job.complaints(0) == run.job.complaints(1) == []
    names = {path.name for path in run.folder.iterdir()}
    made = {"output", "r.json", "timeline.json", "rank0.pickle", "rank1.pickle"}
    assert names == made | ({"logs"} if run.script in stages("04", "05") else set())


def test_rank_0_alone_logs_every_step_once(run: SimpleNamespace) -> None:
    steps = [(int(line["epoch"]), int(line["batch"])) for line in run.job.logged(0)]
    assert steps == [(0, step) for step in range(STEPS)]
    assert run.job.lines(1, "stdout") == []


def test_throughput_counts_all_ranks(run: SimpleNamespace) -> None:
    for line in run.job.logged():
        assert 2 * BATCH / float(line["speed"]) == pytest.approx(
            float(line["time"]), rel=1e-3, abs=1e-3
        )
    results = read_results(run.folder / "r.json")
    assert (results["ranks"], results["batch_size"]) == (2, BATCH)
    assert results["global_batch"] == 2 * BATCH
    per_second = 1000 * results["global_batch"] / results["step_ms_median"]
    assert results["img_per_s"] == pytest.approx(per_second, rel=0.01)
    assert results["test_accuracy"] > 0 and not results["interrupted"]


def test_rank_0_alone_profiles(run: SimpleNamespace) -> None:
    recorded = list(run.folder.rglob("*.xplane.pb"))
    assert len(recorded) == (1 if run.script in stages("04", "05") else 0)


def test_ranks_start_from_rank_0s_weights(run: SimpleNamespace) -> None:
    zero, one = seen_by(run.folder, 0), seen_by(run.folder, 1)
    own = 1 if run.script in stages("06") else 2  # Adam's step, and a rate that is no schedule
    assert zero["count"] == one["count"] >= 8 + 2 * 8 + own  # weights, and Adam's two for each
    assert zero["made"] != one["made"]
    assert zero["made"] == zero["broadcast"] == one["broadcast"]


def test_ranks_end_with_the_same_bits(run: SimpleNamespace) -> None:
    zero, one = seen_by(run.folder, 0), seen_by(run.folder, 1)
    assert zero["trained"] == one["trained"] != zero["broadcast"]


def test_ranks_of_06_share_out_the_cores(run: SimpleNamespace) -> None:
    """The others leave the cores to the launcher; one that bound its ranks is left alone."""
    zero, one = (seen_by(run.folder, rank)["cores"] for rank in (0, 1))
    every = os.sched_getaffinity(0)
    if run.script in stages("06") and len(every) == os.cpu_count() >= 2:
        assert not zero & one and zero | one <= every
        assert len(zero) == len(one) == len(every) // 2
    else:
        assert zero == one == every


def exchanges(timeline: str) -> list[set[str]]:
    """The tensors of every allreduce. A timeline has a row for each tensor; where Horovod moves
    many at once, all their rows enter GLOO_ALLREDUCE before the first one leaves it."""
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
        elif event["ph"] == "E" and stack.pop() == "GLOO_ALLREDUCE":
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
    timeline = (run.folder / "timeline.json").read_text()
    found = exchanges(timeline)
    assert len(found) == STEPS
    tensors = 1 if run.script in stages("06") else 9  # the loss and eight gradients; 06 joins them
    assert {len(names) for names in found} == {tensors}
    copied = 0 if run.script in stages("06") else tensors
    assert timeline.count('"MEMCPY_IN_FUSION_BUFFER"') == STEPS * copied


# --- which images, and the same path as one process ---


@pytest.fixture(scope="module")
def probes(mnist: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What ranks.py saw of all stages: as rank 0 and 1 of two, and as the only process."""
    folder, alone = tmp_path_factory.mktemp("probe"), tmp_path_factory.mktemp("alone")
    index = np.arange(131)  # not a multiple of anything: ranks' shares differ by one
    images = np.zeros((131, 28, 28), np.uint8)
    images[:, 0, 0], images[:, 0, 1] = index // 256, index % 256
    labels = (index % 10).astype(np.uint8)
    shards, one_batch = folder / "shards.npz", folder / "one_batch.npz"
    np.savez(shards, x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10])
    with np.load(mnist) as full:  # 64 images: every epoch is one global batch
        np.savez(one_batch, **{name: full[name][:64] for name in full})
    with job(folder, sys.executable, RANKS, "probe", folder, shards, one_batch) as ran:
        assert ran.wait() == 0, ran.text
    command = [sys.executable, RANKS, "probe", str(alone), str(shards), str(one_batch)]
    env = stage_environment(PYTHONPATH=str(ROOT))
    subprocess.run(command, cwd=alone, env=env, check=True, timeout=200, capture_output=True)
    seen = [seen_by(folder, 0), seen_by(folder, 1), seen_by(alone, 0)]
    for path in (*folder.glob("*.pickle"), *alone.glob("*.pickle")):
        path.unlink()  # hundreds of megabytes
    return seen


@pytest.fixture(params=SCRIPTS, ids=script_id)
def probed(request: pytest.FixtureRequest, probes: list[Any]) -> list[dict[str, Any]]:
    return [seen[script_id(request.param)] for seen in probes]


def test_ranks_take_equally_many_steps(probed: list[dict[str, Any]]) -> None:
    per_epoch = 131 // (2 * 8)
    for rank in (0, 1):
        assert [len(batch) for batch in probed[rank]["drawn"]] == 3 * per_epoch * [8]


def test_an_image_is_seen_once_an_epoch_by_one_rank(probed: list[dict[str, Any]]) -> None:
    steps = [seen["drawn"] for seen in probed[:2]]
    for epoch in (slice(0, 8), slice(8, 16), slice(16, 24)):
        images = [image for rank in steps for batch in rank[epoch] for image in batch]
        assert len(set(images)) == len(images) == 128
    shares = [{image for batch in rank for image in batch} for rank in steps]
    assert shares[0].isdisjoint(shares[1])


def test_every_epoch_is_shuffled_anew(probed: list[dict[str, Any]]) -> None:
    for seen in probed[:2]:
        epochs = [[i for batch in seen["drawn"][k : k + 8] for i in batch] for k in (0, 8, 16)]
        assert all(epoch != sorted(epoch) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3


def test_two_ranks_train_as_one_process_does(probed: list[dict[str, Any]]) -> None:
    zero, one, alone = (seen["trained"] for seen in probed)
    assert np.allclose(zero["losses"], alone["losses"], rtol=1e-5)
    assert zero["losses"] == one["losses"] and len(alone["losses"]) == 5
    assert zero["before"] == one["before"] == alone["before"]
    assert zero["digest"] == one["digest"]
    for name, new, old, moved in zip(alone["names"], zero["after"], alone["after"], alone["moved"]):
        assert np.abs(new - old).max() <= 2e-3 * moved, name


# --- when it goes wrong ---


LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


@pytest.mark.parametrize("hidden", [False, True], ids=["sees size 1", "cannot be imported"])
def test_no_process_trains_alone(small: Path, tmp_path: Path, hidden: bool) -> None:
    (tmp_path / "shim" / "horovod").mkdir(parents=True)
    (tmp_path / "shim" / "horovod" / "__init__.py").write_text("raise ImportError('hidden')\n")
    extra = {"PYTHONPATH": str(tmp_path / "shim")} if hidden else {}
    for launcher in LAUNCHERS:
        options = ["--data", small, "--steps", 3, "--results", tmp_path / "r.json"]
        ended = run_script(stages("02")[0], *options, cwd=tmp_path, **{launcher: "2"}, **extra)
        assert ended.returncode == 1 and ended.stdout == ""
        expected = "02_tf_function: 2 processes started, Horovod sees 1: use horovodrun"
        assert one_line(said(ended.stderr), expected), ended.stderr
    assert not list(tmp_path.glob("r.json*"))


def test_a_killed_rank_ends_the_job(mnist: Path, tmp_path: Path) -> None:
    """In stage 00 a rank spends most of a step away from the exchange."""
    options = ["--data", mnist, "--batch-size", BATCH, "--results", "r.json"]
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
        wanted = f"02_tf_function (rank {missing}): no data at rank{missing}.npz: get it with"
        assert one_line(ran.complaints(missing), wanted)
        other = f"02_tf_function (rank {1 - missing}): another rank stopped"
        assert ran.complaints(1 - missing) == [other]
        assert ran.logged() == [] and ran.left_over() == []


def test_other_data_stops_all_ranks(small: Path, tmp_path: Path) -> None:
    shutil.copy(small, tmp_path / "rank0.npz")
    with np.load(small) as arrays:
        changed = {name: arrays[name].copy() for name in arrays}
    changed["x_train"][7, 14, 14] ^= 1
    np.savez_compressed(tmp_path / "rank1.npz", **changed)
    with job(tmp_path, *own_data(sys.executable, path_of(stages("06")[0]))) as ran:
        assert ran.wait() != 0
        for rank in (0, 1):
            wanted = f"06_optimized (rank {rank}): the data of rank [1] is not that of rank 0"
            assert one_line(ran.complaints(rank), wanted), ran.text
        assert ran.logged() == [] and ran.left_over() == []


def test_nan_on_one_rank_stops_all(small: Path, tmp_path: Path) -> None:
    """In stage 00: the fused kernels of a graph turn a NaN into 0 at the first relu."""
    command = [sys.executable, RANKS, "poison", path_of(stages("00")[0]), "--data", small]
    with job(tmp_path, *command, "--results", "r.json") as ran:
        assert ran.wait() != 0
        for rank in (0, 1):
            wanted = f"00_baseline (rank {rank}): the loss is nan at step 3"
            assert one_line(ran.complaints(rank), wanted), ran.text
        assert len(ran.logged()) == 3 and ran.left_over() == []
        assert not list(tmp_path.glob("r.json*"))


@pytest.mark.skipif(
    os.path.realpath("/bin/sh").endswith("bash"),
    reason="horovodrun kills its ranks without a warning where /bin/sh is bash",
)
@pytest.mark.parametrize("script", stages("02", "06"), ids=script_id)
def test_ctrl_c_still_gives_the_summary(
    script: tuple[str, str], small: Path, tmp_path: Path
) -> None:
    options = ["--data", small, "--batch-size", BATCH, "--epochs", 1000, "--results", "r.json"]
    options += [*FIXED[:-1], 10] if script in stages("06") else []
    with job(tmp_path, sys.executable, path_of(script), *options) as ran:
        ran.until_logged(12)
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
        assert ran.complaints(1) in ([], [f"{script[0]} (rank 1): another rank stopped"])


# --- a GPU for every rank ---


@pytest.mark.parametrize(
    "visible, local_rank, expected",
    [
        (None, 0, "GPU 0"),
        (None, 1, "GPU 1"),
        ("0,1", 1, "GPU 1"),
        (None, 2, None),  # one rank too many
        ("4,5", 3, None),
        ("3", 1, "GPU 0"),  # the launcher pinned it: what this rank sees is its own
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 3, "GPU 0"),
        ("MIG-8cd9c66a-7a2a-5a0b-a5c2-0a8f2b5b8d3c", 3, "GPU 0"),
    ],
)
def test_each_rank_has_its_own_gpu(
    visible: str | None, local_rank: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_script(SCRIPTS[0])
    gpus = ["GPU 0", "GPU 1"] if visible is None or "," in visible else ["GPU 0"]
    calls: dict[str, object] = {}
    config = SimpleNamespace(
        list_physical_devices=lambda kind: gpus,
        set_visible_devices=lambda gpu, kind: calls.update(visible=gpu),
        experimental=SimpleNamespace(
            set_memory_growth=lambda gpu, on: calls.update(grows=gpu),
            get_device_details=lambda gpu: {"device_name": f"A100 as {gpu}"},
        ),
    )
    monkeypatch.setattr(module, "tf", SimpleNamespace(config=config))
    names = {"rank": lambda: local_rank, "size": lambda: 4, "local_rank": lambda: local_rank}
    monkeypatch.setattr(module, "hvd", SimpleNamespace(**names))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if expected:
        assert module.choose_device() == f"A100 as {expected}"
        assert calls == {"visible": expected, "grows": expected}
    else:
        with pytest.raises(SystemExit, match=rf"\(rank {local_rank}\): no GPU left .* has 2"):
            module.choose_device()
        assert calls == {}
