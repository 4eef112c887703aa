"""Bad input ends with one clear line on stderr, a non-zero exit, and nothing half-written."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import (
    ROOT,
    SCRIPTS,
    Ended,
    files_in,
    load_script,
    run_main,
    run_script,
    said,
    script_id,
    stage_environment,
    stages,
)

Script = tuple[str, str]
Arrays = dict[str, np.ndarray]

EVERY = SCRIPTS
SOME = stages("00", "02", "06")  # each has another loop
PROFILING = stages("04", "05", "06")

# Which scripts, their options, and what the one line must say.
# FILE is a file, FOLDER a folder, PIPE a pipe.
OPTIONS: list[tuple[list[Script], str, str]] = [
    *(
        (EVERY, f"--{name} {value}", f"--{name} must be greater than 0, not {value}")
        for name in ("batch-size", "steps", "epochs", "log-every", "seed")
        for value in (0, -3)
    ),
    (EVERY, "--lr 0", "--lr must be greater than 0, not 0"),
    (EVERY, "--lr -0.5", "--lr must be greater than 0, not -0.5"),
    (EVERY, "--lr nan", "--lr must be greater than 0, not nan"),
    (EVERY, "--lr inf", "--lr must be .*, not inf"),
    (EVERY, "--steps ten", "argument --steps: invalid int value: 'ten'"),
    (EVERY, "--steps 1.5", "argument --steps: invalid int value: '1.5'"),
    (EVERY, "--lr fast", "argument --lr: invalid float value: 'fast'"),
    (EVERY, "--steps", "argument --steps: expected one argument"),
    (EVERY, "--sleps 3", "unrecognized arguments: --sleps 3"),
    (EVERY, "--batch-size 65", "--batch-size 65 is more than .*64 images"),
    (EVERY, "--results FILE/r.json", "cannot write to .*FILE"),
    (EVERY, "--results FOLDER", "--results .*FOLDER is no file: name one"),
    (SOME, "--results PIPE", "--results .*PIPE is no file: name one"),
    (SOME, "--lr 1e9 --batch-size 16", r"the loss is \S+ at step \d+: try a smaller --lr"),
    (PROFILING, "--logdir FILE/logs", "cannot write to .*FILE/logs"),
    (PROFILING, "--logdir FILE", "cannot write to .*FILE"),
    (PROFILING, "--profile-steps 9 8", "--profile-steps takes FIRST and LAST"),
    (PROFILING, "--profile-steps -1 8", "--profile-steps takes FIRST and LAST"),
    (PROFILING, "--profile-steps 9", "argument --profile-steps: expected 2 arguments"),
    (
        PROFILING,
        "--profile-steps 2 3 --steps 2 --batch-size 16 --logdir FOLDER",
        "training ends after 2 steps: there is no step 2 to profile",
    ),
    (EVERY, "--steps 3000000000", "--steps must be less than 2147483648, not 3000000000"),
    (stages("05", "06"), "--precision float8", "argument --precision: invalid choice: 'float8'"),
    (stages("06"), "--steps-per-call 0", "--steps-per-call must be greater than 0, not 0"),
    (stages("06"), "--steps-per-call -1", "--steps-per-call must be greater than 0, not -1"),
    (
        stages("06"),
        "--steps-per-call few",
        "argument --steps-per-call: invalid number value: 'few'",
    ),
    (stages("06"), "--xla maybe", "argument --xla: invalid choice: 'maybe'"),
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
    os.mkfifo(tmp_path / "PIPE")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNIST_NPZ", raising=False)
    return tmp_path


def cases(table: list[tuple[list[Script], str, str]]) -> list:
    return [
        pytest.param(script, options, line, id=f"{script_id(script)} {options}")
        for scripts, options, line in table
        for script in scripts
    ]


def assert_refused(ended: Ended, stage: str, line: str) -> None:
    """One line, that of the stage; no traceback follows from that."""
    assert ended.status not in (0, 130)
    lines = said(ended.stderr)
    assert len(lines) == 1, ended.stderr
    assert re.search(line, lines[0])
    assert lines[0].startswith(f"{stage}: ")


@pytest.mark.parametrize(("script", "options", "line"), cases(OPTIONS))
def test_wrong_options(modules, folder, script, options, line) -> None:
    before = files_in(folder)
    given = ["--data", "good.npz", "--results", "out/r.json", *options.split()]
    ended = run_main(modules[script], *given)
    assert_refused(ended, modules[script].STAGE, line)
    assert files_in(folder) == before


# --- data ---


def without(name: str) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


NO_MNIST = "bad.npz is not MNIST: "
ARRAYS: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "no y_test": (without("y_test"), "bad.npz is not a whole mnist.npz .*y_test"),
    "no x_train": (without("x_train"), "bad.npz is not a whole mnist.npz .*x_train"),
    "27 rows": (changed("x_train", lambda x: x[:, :27]), NO_MNIST + r"images uint8\(64, 27, 28\)"),
    "flat": (changed("x_test", lambda x: x.reshape(-1, 784)), NO_MNIST + r"images .*\(64, 784\)"),
    "too few labels": (changed("y_train", lambda y: y[:-1]), NO_MNIST + r".*labels uint8\(63,\)"),
    "one-hot labels": (changed("y_test", lambda y: np.eye(10, dtype=np.uint8)[y]), NO_MNIST),
    "float images": (changed("x_train", lambda x: x / 255), NO_MNIST + "images float64"),
    "int64 labels": (changed("y_train", lambda y: y.astype(np.int64)), NO_MNIST + ".*int64"),
    "label 10": (changed("y_train", lambda y: y + 1), NO_MNIST),
    "objects": (changed("y_train", lambda y: y.astype(object)), "is not a whole mnist.npz"),
    "no images": (lambda arrays: {k: a[:0] for k, a in arrays.items()}, NO_MNIST),
}


@pytest.mark.parametrize("script", SOME, ids=script_id)
@pytest.mark.parametrize("fault", ARRAYS)
def test_wrong_arrays(modules, folder, arrays, script, fault) -> None:
    spoil, line = ARRAYS[fault]
    np.savez(folder / "bad.npz", **spoil(arrays))
    before = files_in(folder)
    ended = run_main(modules[script], "--data", "bad.npz", "--steps", 2, "--results", "out/r.json")
    assert_refused(ended, modules[script].STAGE, line)
    assert files_in(folder) == before


def flip_a_byte(good: bytes) -> bytes:
    return good[:1000] + bytes([good[1000] ^ 255]) + good[1001:]


BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "text": lambda good: b"<html>404 not found</html>\n",
    "half": lambda good: good[: len(good) // 2],
    "last byte missing": lambda good: good[:-1],
    "one byte flipped": flip_a_byte,
    "only a header": lambda good: b"PK\x03\x04",
}


@pytest.mark.parametrize("script", SOME, ids=script_id)
@pytest.mark.parametrize("fault", BYTES)
def test_damaged_files(modules, folder, script, fault) -> None:
    bad = folder / "bad.npz"
    bad.write_bytes(BYTES[fault]((folder / "good.npz").read_bytes()))
    before = files_in(folder)
    ended = run_main(modules[script], "--data", bad, "--steps", 2, "--results", "out/r.json")
    assert_refused(
        ended, modules[script].STAGE, "bad.npz is not a whole mnist.npz .*./workshop data"
    )
    assert files_in(folder) == before


@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_a_folder_or_an_array_for_data(modules, folder, script) -> None:
    np.save(folder / "array.npy", np.zeros(3))
    for path in ("FOLDER", "array.npy"):
        ended = run_main(modules[script], "--data", path)
        assert_refused(ended, modules[script].STAGE, f"{path} is not a whole mnist.npz")


@pytest.mark.parametrize("script", EVERY, ids=script_id)
def test_missing_data_names_the_command_that_gets_it(modules, folder, script, monkeypatch) -> None:
    line = "no data at .*nowhere.npz: get it with ./workshop data"
    assert_refused(run_main(modules[script], "--data", "nowhere.npz"), modules[script].STAGE, line)
    monkeypatch.setenv("MNIST_NPZ", "nowhere.npz")
    assert_refused(run_main(modules[script]), modules[script].STAGE, line)


# --- the same as real processes: what the interpreter makes of it ---


@pytest.mark.parametrize(
    ("number", "options", "line"),
    [
        ("00", "--data nowhere.npz", "no data at nowhere.npz"),
        ("02", "--data good.npz --batch-size 16 --lr 1e9", "the loss is nan at step"),
        ("04", "--data good.npz --logdir FILE/logs", "cannot write to FILE/logs"),
        ("05", "--data good.npz --precision float8", "invalid choice: 'float8'"),
        ("06", "--data good.npz --batch-size 65", "--batch-size 65 is more than"),
    ],
)
def test_as_a_process(folder, number, options, line) -> None:
    script = stages(number)[0]
    before = files_in(folder)
    process = run_script(script, *options.split(), "--results", "out/r.json", cwd=folder)
    assert_refused(Ended(process.returncode, process.stdout, process.stderr), script[0], line)
    assert files_in(folder) == before


def test_results_that_do_not_fit_the_disk_leave_the_old_ones(folder) -> None:
    """A limit on the size of files is how a full disk looks to a program."""
    (folder / "r.json").write_text("the old results")
    before = files_in(folder)
    script = ROOT / "00_baseline" / "train_MNIST.py"
    options = ["--data", "good.npz", "--steps", "1", "--results", "r.json"]
    process = subprocess.run(
        [sys.executable, str(script), *options],
        cwd=folder,
        env=stage_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    ended = Ended(process.returncode, process.stdout, process.stderr)
    assert_refused(ended, "00_baseline", "cannot write .*r.json")
    assert (folder / "r.json").read_text() == "the old results"
    assert files_in(folder) == before
    assert "final_loss" in process.stdout  # the summary is on the screen all the same


@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_results_whose_place_goes_away(folder, script) -> None:
    """Another process may make a folder of that name while this one trains."""
    module = load_script(script)
    evaluate = module.evaluate

    def meanwhile(*args: object) -> float:
        (folder / "out" / "r.json").mkdir()
        return evaluate(*args)

    module.evaluate = meanwhile
    ended = run_main(module, "--data", "good.npz", "--steps", 1, "--results", "out/r.json")
    assert_refused(ended, module.STAGE, "cannot write .*r.json")
    assert list((folder / "out").iterdir()) == [folder / "out" / "r.json"]
