"""Bad input ends with one clear line on stderr, a non-zero exit, and nothing half-written."""

from __future__ import annotations

import argparse
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import (
    LAST,
    SCRIPTS,
    Ended,
    files_in,
    load_script,
    losses,
    run_main,
    run_script,
    said,
    script_id,
    stages,
)

Script = tuple[str, str]
Arrays = dict[str, np.ndarray]

EVERY = SCRIPTS
SOME = [*stages("00", "02"), LAST]  # each has another loop
PROFILING = stages("04", "05", "06")
RANGE = "must be greater than 0 and below 2^31, not"

# Which scripts, their options, and what the one line must say.
# FILE is a file, FOLDER a folder, PIPE a pipe.
OPTIONS: list[tuple[list[Script], str, str]] = [
    *(
        (EVERY, f"--{name} {value}", f"--{name} {RANGE} {value}")
        for name in ("batch-size", "steps", "epochs", "log-every", "seed")
        for value in (0, -3, 3_000_000_000)
    ),
    (EVERY, "--lr 0", f"--lr {RANGE} 0"),
    (EVERY, "--lr -0.5", f"--lr {RANGE} -0.5"),
    (EVERY, "--lr nan", f"--lr {RANGE} nan"),
    (EVERY, "--lr inf", f"--lr {RANGE} inf"),
    (EVERY, "--steps ten", "argument --steps: invalid int value: 'ten'"),
    (EVERY, "--steps 1.5", "argument --steps: invalid int value: '1.5'"),
    (EVERY, "--lr fast", "argument --lr: invalid float value: 'fast'"),
    (EVERY, "--steps", "argument --steps: expected one argument"),
    (EVERY, "--sleps 3", "unrecognized arguments: --sleps 3"),
    (EVERY, "--batch-size 65", "--batch-size 65 is more than a rank's share of 64 images"),
    (EVERY, "--results FILE/r.json", "cannot go on: .*/FILE'"),
    *(
        (EVERY, f"--results {name}", f"--results {name} is there, and no results: name another")
        for name in ("FOLDER", "PIPE", "/dev/null", "FILE", "good.npz", __file__)
    ),
    (
        EVERY,
        "--results /proc/self/r.json",
        "cannot go on: .*'/proc/",
    ),  # nobody may make files there
    (EVERY, f"--results {300 * 'x'}", "File name too long"),
    (EVERY, "--data nowhere.npz", "cannot read nowhere.npz .*: ./workshop data gets it, --data"),
    (EVERY, "--data FOLDER", "cannot read FOLDER .*: ./workshop data gets it"),
    (EVERY, "--data PIPE", "cannot read PIPE .*: ./workshop data gets it"),
    (EVERY, "--data /dev/zero", "cannot read /dev/zero .*: ./workshop data gets it"),
    (SOME, "--lr 1e9 --batch-size 16", r"the loss is \S+ at step \d+: try a smaller --lr than 1"),
    (PROFILING, "--logdir FILE/logs", "Not a directory: 'FILE/logs'"),
    (PROFILING, "--logdir FILE", "File exists: 'FILE'"),
    *(
        (PROFILING, f"--profile-steps {window} --steps 4 --batch-size 16 --logdir FOLDER", line)
        for window, line in {
            "3 2": "--profile-steps 3 2 are not among the 4 steps",
            "-1 2": "--profile-steps -1 2 are not among the 4 steps",
            "2 4": "--profile-steps 2 4 are not among the 4 steps",
            "9": "argument --profile-steps: expected 2 arguments",
            "1 x": "argument --profile-steps: invalid int value: 'x'",
        }.items()
    ),
    (PROFILING, "--xla maybe", "argument --xla: invalid choice: 'maybe'"),
    (stages("04", "05"), "--xla call", "argument --xla: invalid choice: 'call'"),
    (stages("05", "06"), "--precision float8", "argument --precision: invalid choice: 'float8'"),
    (stages("06"), "--steps-per-call 0", f"--steps-per-call {RANGE} 0"),
    (stages("06"), "--steps-per-call -1", f"--steps-per-call {RANGE} -1"),
    ([LAST], "--threads 0", "argument --threads: invalid choice: 0"),
    ([LAST], "--threads 100000", "argument --threads: invalid choice: 100000"),  # a crash
    (stages("06"), "--steps-per-call few", "argument --steps-per-call: invalid int value: 'few'"),
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
    """The working directory: good data in it, a file, a folder and a pipe."""
    np.savez(tmp_path / "good.npz", **arrays)
    (tmp_path / "FILE").write_text("not a folder")
    (tmp_path / "FOLDER").mkdir()
    os.mkfifo(tmp_path / "PIPE")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNIST_NPZ", raising=False)
    return tmp_path


def assert_refused(ended: Ended, stage: str, line: str) -> None:
    """One line, that of the stage; no traceback follows from that."""
    assert ended.status not in (0, 130)
    lines = said(ended.stderr)
    assert len(lines) == 1, ended.stderr
    assert re.search(line.replace("^", r"\^"), lines[0]), lines[0]
    assert lines[0].startswith(f"{stage}: ")


@pytest.mark.parametrize(
    ("scripts", "options", "line"), [pytest.param(*row, id=row[1][:60]) for row in OPTIONS]
)
def test_wrong_options(modules, folder, scripts, options, line) -> None:
    for script in scripts:
        before = files_in(folder)
        given = ["--data", "good.npz", "--results", "out/r.json", *options.split()]
        assert_refused(run_main(modules[script], *given), modules[script].STAGE, line)
        assert files_in(folder) == before
    assert Path("/dev/null").is_char_device()


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


@pytest.mark.parametrize("mode", [0o555, 0o000], ids=["read-only", "closed"])
@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_results_where_nobody_may_write(modules, folder, script, mode) -> None:
    place = folder / "FOLDER"
    place.chmod(mode)
    for path in (folder, *folder.parents):
        if path.owner() == folder.owner() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)  # an ordinary user comes this far
    options = ["--data", "good.npz", "--steps", 1, "--results", place / "r.json"]
    with ordinary_user():
        ended = run_main(modules[script], *options)
    place.chmod(0o755)
    assert_refused(ended, modules[script].STAGE, "Permission denied: .*FOLDER")
    assert list(place.iterdir()) == []


# --- data ---


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


NO_MNIST = r"bad.npz is not MNIST \(labels 0 to 9\): "
UNREADABLE = "cannot read bad.npz .*: ./workshop data gets it, --data names another"
ARRAYS: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "no y_test": (without("y_test"), "cannot read bad.npz .*y_test"),
    "no x_train": (without("x_train"), "cannot read bad.npz .*x_train"),
    "27 rows": (changed("x_train", lambda x: x[:, :27]), NO_MNIST + r"uint8\(64, 27, 28\)"),
    "flat": (changed("x_test", lambda x: x.reshape(-1, 784)), NO_MNIST + r"uint8\(64, 784\)"),
    "too few labels": (changed("y_train", lambda y: y[:-1]), NO_MNIST + r".*uint8\(63,\)"),
    "one-hot labels": (changed("y_test", lambda y: np.eye(10, dtype=np.uint8)[y]), NO_MNIST),
    "float images": (changed("x_train", lambda x: x / 255), NO_MNIST + "float64"),
    "int64 labels": (changed("y_train", lambda y: y.astype(np.int64)), NO_MNIST + ".*int64"),
    "label 10": (changed("y_train", lambda y: y + 1), NO_MNIST),
    "label 255 to test": (changed("y_test", lambda y: y - 1), NO_MNIST),
    "objects": (changed("y_train", lambda y: y.astype(object)), UNREADABLE),
    "no images": (lambda arrays: {k: a[:0] for k, a in arrays.items()}, NO_MNIST),
    "one number": (changed("x_train", lambda x: x[0, 0, 0]), NO_MNIST),
}


def flip_a_byte(good: bytes) -> bytes:
    return good[:1000] + bytes([good[1000] ^ 255]) + good[1001:]


def saved(save: Callable[..., None], array: object) -> bytes:
    file = io.BytesIO()
    save(file, array)
    return file.getvalue()


def raw_members(good: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", b"no array")
    return file.getvalue()


BYTES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", UNREADABLE),
    "text": (lambda good: b"<html>404 not found</html>\n", UNREADABLE),
    "half": (lambda good: good[: len(good) // 2], UNREADABLE),
    "last byte missing": (lambda good: good[:-1], UNREADABLE),
    "one byte flipped": (flip_a_byte, UNREADABLE),
    "only a header": (lambda good: b"PK\x03\x04", UNREADABLE),
    "npy": (lambda good: saved(np.save, np.zeros(3)), UNREADABLE),
    "a pickle": (lambda good: saved(np.save, np.array([{}])), UNREADABLE),
    "a zip of other things": (raw_members, "bad.npz"),
}


@pytest.mark.parametrize("fault", [*ARRAYS, *BYTES])
def test_wrong_data(modules, folder, arrays, fault) -> None:
    spoil, line = {**ARRAYS, **BYTES}[fault]
    if fault in ARRAYS:
        np.savez(folder / "bad.npz", **spoil(arrays))
    else:
        (folder / "bad.npz").write_bytes(spoil((folder / "good.npz").read_bytes()))
    before = files_in(folder)
    for script in SOME:
        options = ["--data", "bad.npz", "--steps", 2, "--results", "out/r.json"]
        assert_refused(run_main(modules[script], *options), modules[script].STAGE, line)
    assert files_in(folder) == before


def test_missing_data_may_be_the_environments(modules, folder, monkeypatch) -> None:
    monkeypatch.setenv("MNIST_NPZ", "nowhere.npz")
    for script in EVERY:
        line = "cannot read nowhere.npz .*: ./workshop data gets it"
        assert_refused(run_main(modules[script]), modules[script].STAGE, line)


# --- more than one process, and no Horovod to join them ---

LAUNCHERS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
ALONE = argparse.Namespace(init=int, rank=int, local_rank=int, size=lambda: 1)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_no_process_trains_alone(modules, folder, launcher, monkeypatch) -> None:
    """Horovod sees one process, or there is no Horovod."""
    before = files_in(folder)
    for script in EVERY:
        for hvd in (modules[script].hvd, ALONE):
            monkeypatch.setattr(modules[script], "hvd", hvd)
            hvd.init()  # before the variable is set: HOROVOD_SIZE is Horovod's own
            monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")  # horovodrun sets it
            monkeypatch.setenv(launcher, "4")
            ended = run_main(modules[script], "--data", "good.npz", "--results", "r.json")
            line = "4 processes, Horovod sees 1: use horovodrun"
            assert_refused(ended, modules[script].STAGE, line)
            assert ended.stdout == ""
            monkeypatch.delenv(launcher)
    assert files_in(folder) == before


@pytest.mark.parametrize("value", ["", "abc", "²", "1", "-2", "1.5", "0" * 99])
def test_a_launchers_variable_may_be_anything(modules, folder, value, monkeypatch) -> None:
    module, options = modules[LAST], ["--data", "good.npz", "--batch-size", 16, "--steps", 1]
    for launcher in (*LAUNCHERS[1:], "WORKSHOP_WAIT_S"):
        monkeypatch.setenv(launcher, value)
    ended = run_main(module, *options)
    assert (ended.status, ended.stderr, len(losses(ended.stdout))) == (0, "", 1)
    monkeypatch.setenv("HOROVOD_SIZE", value)  # left over: with it Gloo waits, or crashes
    line = "HOROVOD_SIZE without horovodrun: unset it"
    assert_refused(run_main(module, *options), module.STAGE, line)


# --- as real processes: what the interpreter makes of it ---


def test_as_a_process_without_horovod(folder) -> None:
    (folder / "shim" / "horovod").mkdir(parents=True)
    (folder / "shim" / "horovod" / "__init__.py").write_text("raise ImportError('hidden')\n")
    before = files_in(folder)
    options = ["--data", "good.npz", "--results", "out/r.json"]
    extra = {"PYTHONPATH": str(folder / "shim"), "HOROVOD_SIZE": "4"}
    extra["PYTHONDONTWRITEBYTECODE"] = "1"
    extra["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = "127.0.0.1"
    process = run_script(LAST, *options, cwd=folder, **extra)
    ended = Ended(process.returncode, process.stdout, process.stderr)
    assert_refused(ended, "06_optimized", "4 processes, Horovod sees 1: use horovodrun")
    assert files_in(folder) == before


@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_results_whose_place_goes_away(folder, script) -> None:
    """Another process may make a folder of that name while this one trains."""
    module = load_script(script)
    evaluate = module.evaluate

    def meanwhile(*args: object) -> float:
        (folder / "new" / "out" / "r.json").mkdir()
        return evaluate(*args)

    options = ["--data", "good.npz", "--batch-size", 16, "--results", "new/out/r.json"]
    module.evaluate = meanwhile
    ended = run_main(module, *options, "--steps", 1)
    assert_refused(ended, module.STAGE, "Is a directory: .*r.json")
    assert list((folder / "new/out").iterdir()) == [folder / "new" / "out" / "r.json"]
    (folder / "new" / "out" / "r.json").rmdir()
    module.evaluate = evaluate
    assert run_main(module, *options, "--steps", 1).status == 0  # a folder of folders is made
    assert files_in(folder / "new") == {"out/r.json"}
