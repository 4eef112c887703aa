"""Bad input ends with one clear line, a non-zero exit, and nothing written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.conftest import (
    LAST,
    SCRIPTS,
    Ended,
    Script,
    files_in,
    load_script,
    run_main,
    said,
    script_id,
    stages,
)

pytestmark = pytest.mark.slow

Arrays = dict[str, np.ndarray]
SOME = [*stages("00", "02"), LAST]  # each has another loop
PROFILING = stages("04", "05", "06")
WINDOW = "--steps 4 --batch-size 16 --logdir FOLDER --profile-steps"
# Which scripts, their options, the exit status, and what the line says.
# FILE is a file, FOLDER a folder that is there.
OPTIONS: list[tuple[list[Script], str, int, str]] = [
    (SCRIPTS, "--batch-size 0", 2, "--batch-size/--batch_size: must be at least 1, not 0"),
    (SCRIPTS, "--steps -3", 2, "--steps: must be at least 1, not -3"),
    (SCRIPTS, "--epochs 0", 2, "--epochs: must be at least 1, not 0"),
    (SCRIPTS, "--log-every 0", 2, "--log-every: must be at least 1, not 0"),
    (SCRIPTS, "--lr 0", 2, "--lr: must be greater than 0, not 0.0"),
    (SCRIPTS, "--lr nan", 2, "--lr: must be greater than 0, not nan"),
    (SCRIPTS, "--steps ten", 2, "--steps: invalid positive_int value: 'ten'"),
    (SCRIPTS, "--sleps 3", 2, "unrecognized arguments: --sleps 3"),
    (SCRIPTS, "--batch-size 65", 1, "--batch-size 65 is more than a process's share of 64 images"),
    (SCRIPTS, "--results FILE", 2, "--results: must end in .json, not FILE"),
    (SCRIPTS, "--results good.npz", 2, "--results: must end in .json, not good.npz"),
    (SCRIPTS, "--results FILE/r.json", 1, "cannot create the folder FILE: File exists"),
    (SCRIPTS, "--data no/where.npz", 1, "there is no no/where.npz. ./workshop data gets it"),
    (SOME, "--lr 1e9 --batch-size 16", 1, r"the loss is \S+ at step \d+: try a smaller --lr"),
    (PROFILING, f"{WINDOW} 3 2", 1, "--profile-steps 3 2 are not among the 4 steps"),
    (PROFILING, f"{WINDOW} -1 2", 1, "--profile-steps -1 2 are not among the 4 steps"),
    (PROFILING, f"{WINDOW} 2 4", 1, "--profile-steps 2 4 are not among the 4 steps"),
    (PROFILING, "--xla maybe", 2, "--xla: invalid choice: 'maybe'"),
    (stages("05", "06"), "--precision float8", 2, "--precision: invalid choice: 'float8'"),
    (stages("06"), "--steps-per-call 0", 2, "--steps-per-call: must be at least 1, not 0"),
    ([LAST], "--threads 0", 2, "--threads: invalid choice: 0"),
    ([LAST], "--threads 100000", 2, "--threads: invalid choice: 100000"),  # would crash TensorFlow
]


@pytest.fixture(scope="module")
def modules() -> dict[Script, ModuleType]:
    return {script: load_script(script) for script in SCRIPTS}


@pytest.fixture(scope="module")
def arrays(small: Path) -> Arrays:
    with np.load(small) as full:
        return {name: full[name][:64] for name in full.files}


@pytest.fixture
def folder(tmp_path: Path, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: good data in it, a file and a folder."""
    np.savez(tmp_path / "good.npz", **arrays)
    (tmp_path / "FILE").write_text("not a folder")
    (tmp_path / "FOLDER").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNIST_NPZ", raising=False)
    return tmp_path


def assert_refused(ended: Ended, line: str, status: int = 1) -> None:
    """One line; wrong options also show how the script is called."""
    assert ended.status == status, ended.stderr
    *usage, last = said(ended.stderr)
    assert re.search(line, last), last
    assert "".join(usage).startswith("usage:" if status == 2 else "")
    assert "final_loss" not in ended.stdout


@pytest.mark.parametrize(("scripts", "options", "status", "line"), OPTIONS)
def test_wrong_options(modules, folder, scripts, options, status, line) -> None:
    before = files_in(folder)
    for script in scripts:
        words = ["--data", "good.npz", "--results", "out/r.json", *options.split()]
        assert_refused(run_main(modules[script], *words), line, status)
        assert files_in(folder) == before


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may write anywhere: not as root, for a moment."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("results", ["FOLDER/r.json", "FOLDER/new/r.json"])
def test_results_where_nobody_may_write(modules, folder, results: str) -> None:
    for path in (folder, *folder.parents):
        if path.owner() == folder.owner() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)  # an ordinary user comes this far
    (folder / "FOLDER").chmod(0o555)
    options = ["--data", "good.npz", "--batch-size", 16, "--steps", 1, "--results", results]
    with ordinary_user():
        ended = run_main(modules[LAST], *options)
    assert ended.status == 1
    assert re.search("FOLDER/.*: Permission denied", said(ended.stderr)[-1])
    assert files_in(folder / "FOLDER") == set()


def test_a_failed_write_leaves_the_old_results(modules, folder, monkeypatch) -> None:
    """As a full disk does it: the training was fine, and its summary is on the screen."""
    (folder / "r.json").write_text("{}")
    (folder / "r.json.part").symlink_to("/dev/full")
    options = ["--data", "good.npz", "--batch-size", 16, "--steps", 1, "--results", "r.json"]
    ended = run_main(modules[LAST], *options)
    assert (ended.status, said(ended.stderr)[-1].rpartition(": ")[2]) == (
        1,
        "No space left on device",
    )
    assert "final_loss" in ended.stdout
    assert (folder / "r.json").read_text() == "{}"


# --- data ---


def without_labels(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if name != "y_test"}


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


UNREADABLE = r"cannot read bad.npz \(.*\). ./workshop data gets a good one"
NOT_MNIST = "bad.npz is not MNIST: "
ARRAYS: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "no y_test": (without_labels, "cannot read bad.npz .*y_test"),
    "27 rows": (changed("x_train", lambda x: x[:, :27]), NOT_MNIST + r".*uint8 \(64, 27, 28\)"),
    "flat": (changed("x_test", lambda x: x.reshape(-1, 784)), NOT_MNIST + r".*uint8 \(64, 784\)"),
    "too few labels": (changed("y_train", lambda y: y[:-1]), NOT_MNIST),
    "float images": (changed("x_train", lambda x: x / 255), NOT_MNIST + ".*float64"),
    "label 10": (changed("y_train", lambda y: y + 1), NOT_MNIST + "it has a label 10"),
    "a pickle": (changed("y_train", lambda y: y.astype(object)), UNREADABLE),
}
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "text": lambda good: b"<html>404 not found</html>\n",
    "half": lambda good: good[: len(good) // 2],
    "one byte changed": lambda good: good[:1000] + bytes([good[1000] ^ 255]) + good[1001:],
}


@pytest.mark.parametrize("fault", [*ARRAYS, *BYTES])
def test_wrong_data(modules, folder, arrays, fault) -> None:
    line = UNREADABLE
    if fault in ARRAYS:
        spoil, line = ARRAYS[fault]
        np.savez(folder / "bad.npz", **spoil(arrays))
    else:
        (folder / "bad.npz").write_bytes(BYTES[fault]((folder / "good.npz").read_bytes()))
    before = files_in(folder)
    for script in SOME:
        options = ["--data", "bad.npz", "--steps", 2, "--results", "out/r.json"]
        assert_refused(run_main(modules[script], *options), line)
    assert files_in(folder) == before


def test_missing_data_may_be_the_environments(modules, folder, monkeypatch) -> None:
    monkeypatch.setenv("MNIST_NPZ", "../nowhere.npz")
    for script in SCRIPTS:
        assert_refused(run_main(modules[script]), "there is no ../nowhere.npz. ./workshop data")


# --- more than one process, and no Horovod to join them ---

LAUNCHERS = ["HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_no_process_trains_alone(modules, folder, launcher, script, monkeypatch) -> None:
    before = files_in(folder)
    module = modules[script]
    monkeypatch.setattr(module, "hvd", module.SingleProcess())
    monkeypatch.setenv(launcher, "4")
    ended = run_main(module, "--data", "good.npz", "--results", "r.json")
    assert_refused(ended, rf"joined 1 of 4 processes \({launcher}\).*horovodrun")
    assert ended.stdout == "" and files_in(folder) == before
