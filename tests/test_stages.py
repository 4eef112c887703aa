"""Every script of the ladder as a reader meets it: log, summary, results, options."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import (
    LOG_LINE,
    SCRIPTS,
    files_in,
    load_script,
    losses,
    read_results,
    run_main,
    run_script,
    said,
    script_id,
    stages,
)
from tensorboard_plugin_profile.convert.raw_to_tool_data import xspace_to_tool_data

STEPS = 26
WARMUP = 10
PROFILED = range(10, 21)  # the default window of stages 04 to 06
KEYS = {
    "stage": str,
    "command": str,
    "device": str,
    "ranks": int,
    "batch_size": int,
    "global_batch": int,
    "precision": str,
    "xla": bool,
    "steps_timed": int,
    "warmup_steps": int,
    "compile_s": float,
    "step_ms_median": float,
    "step_ms_p95": float,
    "img_per_s": float,
    "final_loss": float,
    "test_accuracy": float,
    "data": str,
    "seed": int,
    "versions": dict,
    "interrupted": bool,
}
# Of 06, in a run too short to choose for.
CHOSEN = {"steps_per_call": int, "op_threads": int, "tried": type(None)}
OPTIONS = {"--epochs", "--batch-size", "--lr", "--steps", "--data", "--log-every", "--seed"}
IN_PROCESS = stages("00", "02", "06")  # eager, graph, many steps a call: for tests of options


class Trained(NamedTuple):
    """One finished run of a script, looked at by many tests."""

    script: tuple[str, str]
    options: list[str]
    process: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def number(self) -> str:
        return self.script[0][:2]

    @property
    def results(self) -> dict:
        return read_results(self.folder / "out" / "results.json")

    @property
    def log(self) -> list[dict[str, str]]:
        return [match.groupdict() for match in LOG_LINE.finditer(self.process.stdout)]

    @property
    def keys(self) -> dict[str, type]:
        """What the results must have, in order; 06 adds how it chose to train."""
        added = {"xla": {"xla": bool, **CHOSEN}} if self.number == "06" else {}
        items = (added.get(key, {key: kind}) for key, kind in KEYS.items())
        return {key: kind for part in items for key, kind in part.items()}


@pytest.fixture(scope="module", params=SCRIPTS, ids=script_id)
def trained(
    request: pytest.FixtureRequest, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    folder = tmp_path_factory.mktemp(script_id(request.param))
    (folder / "cwd").mkdir()
    options = ["--steps", str(STEPS), "--data", str(small), "--results", "../out/results.json"]
    if request.param[0][:2] in ("04", "05", "06"):
        options += ["--logdir", "../logs"]
    process = run_script(request.param, *options, cwd=folder / "cwd")
    return Trained(request.param, options, process, folder)


def test_a_run_ends_well_and_says_nothing_but_its_log(trained: Trained) -> None:
    assert trained.process.returncode == 0, trained.process.stderr
    assert said(trained.process.stderr) == []
    lines = trained.process.stdout.splitlines()
    assert [line for line in lines[:STEPS] if not LOG_LINE.match(line)] == []
    assert [line.split(" ")[0] for line in lines[STEPS:]] == list(trained.keys)


def test_one_log_line_a_step_in_order(trained: Trained) -> None:
    numbers = [(int(line["epoch"]), int(line["batch"])) for line in trained.log]
    assert numbers == [(0, i) for i in range(STEPS)]
    assert all(float(line["speed"]) > 0 for line in trained.log)


def test_the_loss_falls(trained: Trained) -> None:
    curve = [float(line["loss"]) for line in trained.log]
    assert statistics.mean(curve[-5:]) < 0.8 * statistics.mean(curve[:5])
    assert trained.results["test_accuracy"] > 0.4  # a guess is right once in ten


def test_results_have_exactly_the_promised_keys(trained: Trained) -> None:
    results = trained.results
    assert list(results) == list(trained.keys)
    kinds = trained.keys.items()
    wrong = {key: results[key] for key, kind in kinds if type(results[key]) is not kind}
    assert wrong == {}


def test_results_say_what_ran(trained: Trained) -> None:
    results = trained.results
    folder, file = trained.script
    stage = folder + ("_iofix" if file.endswith("_iofix.py") else "")
    gpu = bool(tf.config.list_physical_devices("GPU"))
    reduced = trained.number == "05" or (trained.number == "06" and gpu)
    assert results["stage"] == stage
    assert results["command"] == " ".join(["python", file, *trained.options])
    assert results["device"].startswith("CPU, ") == (not gpu)
    assert (results["ranks"], results["batch_size"], results["global_batch"]) == (1, 64, 64)
    assert results["precision"].startswith("mixed_" if reduced else "float32")
    assert results["xla"] == (trained.number in ("03", "04", "05") or (stage[:2] == "06" and gpu))
    assert (results["data"], results["seed"], results["interrupted"]) == ("mnist", 1, False)
    versions = {module.__name__: module.__version__ for module in (tf, keras, np)}
    assert results["versions"] == versions


def test_results_agree_with_the_log(trained: Trained) -> None:
    results = trained.results
    profiled = PROFILED if trained.number in ("04", "05", "06") else ()
    times = [float(line["time"]) for i, line in enumerate(trained.log) if i not in profiled]
    timed = times[WARMUP:]
    assert (results["warmup_steps"], results["steps_timed"]) == (WARMUP, len(timed))
    assert results["step_ms_median"] == pytest.approx(1000 * statistics.median(timed), abs=0.51)
    assert max(timed) * 1000 + 0.51 >= results["step_ms_p95"] >= results["step_ms_median"] > 0
    assert results["img_per_s"] == pytest.approx(
        64_000 / results["step_ms_median"], rel=1e-4, abs=0.1
    )
    spent = sum(times[:WARMUP]) - WARMUP * results["step_ms_median"] / 1000
    assert results["compile_s"] == pytest.approx(max(0, spent), abs=0.02)
    assert f"{results['final_loss']:.3f}" == trained.log[-1]["loss"]


def test_logged_throughput_is_images_over_step_time(trained: Trained) -> None:
    for line in trained.log:
        time, speed = float(line["time"]), float(line["speed"])
        assert 64 / (time + 0.0005) <= speed <= 64 / max(time - 0.0005, 1e-9)


def test_the_summary_is_the_results(trained: Trained) -> None:
    summary = trained.process.stdout.splitlines()[-len(trained.keys) :]
    assert summary == [f"{name:<15} {value}" for name, value in trained.results.items()]


def test_nothing_else_is_left_behind(trained: Trained) -> None:
    assert files_in(trained.folder / "out") == {"results.json"}
    assert files_in(trained.folder / "cwd") == set()
    others = {path.name for path in trained.folder.iterdir()} - {"cwd", "out", "logs"}
    assert others == set()


def profile_of(folder: Path) -> Path:
    """The one profile under a logdir, where TensorBoard looks for it."""
    found = list(folder.glob("plugins/profile/*/*.xplane.pb"))
    assert len(found) == 1
    return found[0]


def test_the_profile_has_every_step_of_its_window(trained: Trained) -> None:
    if trained.number not in ("04", "05", "06"):
        assert not (trained.folder / "logs").exists()
        return
    profile = profile_of(trained.folder / "logs")
    assert profile.stat().st_size > 10_000
    page, _ = xspace_to_tool_data([str(profile)], "overview_page^", {})
    assert "No step marker observed" not in page
    rows = [row["c"][0]["v"] for row in json.loads(page)[1]["rows"]]
    assert rows == [f"train {step}" for step in PROFILED]


@pytest.mark.parametrize("script", stages("00", "02", "06"), ids=script_id)
def test_without_horovod_it_runs_as_quietly(script, small, tmp_path) -> None:
    """A laptop's case, wherever this runs: a package that cannot be imported hides the real one."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError")
    options = ["--data", small, "--batch-size", 16, "--steps", 3]
    process = run_script(script, *options, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert process.returncode == 0
    assert said(process.stderr) == []
    lines = process.stdout.splitlines()
    summary = len(KEYS) + (len(CHOSEN) if script in stages("06") else 0)
    assert [bool(LOG_LINE.match(line)) for line in lines] == 3 * [True] + summary * [False]


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_reduced_precision_by_name(precision, small, tmp_path) -> None:
    """On a CPU too, whatever its instruction set: slow there, but no crash."""
    options = ["--data", small, "--batch-size", 4, "--steps", 2, "--profile-steps", 1, 1]
    options += ["--precision", precision, "--results", "r.json"]
    process = run_script(stages("05")[0], *options, cwd=tmp_path)
    assert (process.returncode, said(process.stderr)) == (0, [])
    assert read_results(tmp_path / "r.json")["precision"] == precision


# --- options, in this process to spare the start ---


@pytest.fixture(scope="module")
def modules() -> dict[tuple[str, str], ModuleType]:
    return {script: load_script(script) for script in SCRIPTS}


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In-process runs write nowhere else, and no setting of the user's reaches them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNIST_NPZ", raising=False)


@pytest.fixture(scope="session")
def tiny(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A maker of npz files with a few images, and more arrays if wanted."""
    with np.load(small) as full:
        arrays = {name: full[name] for name in full.files}
    folder = tmp_path_factory.mktemp("tiny")

    def make(images: int, **more: object) -> Path:
        path = folder / f"{images}{'-'.join(more)}.npz"
        np.savez(path, **{name: array[:images] for name, array in arrays.items()}, **more)
        return path

    return make


@pytest.mark.parametrize("script", IN_PROCESS, ids=script_id)
def test_batch_size_in_both_spellings(modules, tiny, script) -> None:
    for spelling in ("--batch-size", "--batch_size"):
        options = ["--data", tiny(64), "--steps", 2, spelling, 16, "--results", "r.json"]
        assert run_main(modules[script], *options).status == 0
        results = read_results(Path("r.json"))
        assert (results["batch_size"], results["global_batch"]) == (16, 16)


@pytest.mark.parametrize("script", IN_PROCESS, ids=script_id)
def test_data_comes_from_the_option_then_the_environment(
    modules, tiny, script, monkeypatch
) -> None:
    """Told apart by length: an epoch of 2 steps, and one of 3."""
    monkeypatch.setenv("MNIST_NPZ", str(tiny(32)))
    options = ["--batch-size", 16, "--epochs", 1, "--steps", 9]
    assert len(losses(run_main(modules[script], *options).stdout)) == 2
    assert len(losses(run_main(modules[script], *options, "--data", tiny(48)).stdout)) == 3


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_without_an_option_data_is_the_repositorys(modules, mnist, script) -> None:
    assert mnist == modules[script].DATA


@pytest.mark.parametrize("script", IN_PROCESS, ids=script_id)
def test_log_every(modules, tiny, script) -> None:
    options = ["--data", tiny(40), "--batch-size", 2, "--log-every", 7, "--epochs", 1]
    ended = run_main(modules[script], *options, "--steps", 16)
    assert [match["batch"] for match in LOG_LINE.finditer(ended.stdout)] == ["0", "7", "14"]


@pytest.mark.parametrize("script", IN_PROCESS, ids=script_id)
def test_synthetic_data_is_said(modules, tiny, script) -> None:
    path = tiny(32, synthetic=True)
    options = ["--data", path, "--batch-size", 8, "--steps", 2, "--results", "r.json"]
    ended = run_main(modules[script], *options)
    assert ended.status == 0
    assert read_results(Path("r.json"))["data"] == "synthetic"
    assert "WARNING - synthetic data, not MNIST" in ended.stdout.splitlines()[0]


@pytest.mark.parametrize("script", stages("00", "01", "02"), ids=script_id)
def test_a_seed_fixes_the_losses(modules, tiny, script) -> None:
    options = ["--data", tiny(256), "--batch-size", 32, "--steps", 4, "--seed"]
    once, again, other = (losses(run_main(modules[script], *options, n).stdout) for n in (5, 5, 6))
    assert len(once) == 4
    assert once == again != other


@pytest.mark.parametrize("script", stages("00", "02", "04", "06"), ids=script_id)
def test_epochs_end_where_the_data_does(modules, tiny, script) -> None:
    """70 images are 4 batches of 16, and 6 images that no batch gets."""
    options = ["--data", tiny(70), "--batch-size", 16, "--epochs", 3]
    options += ["--profile-steps", 2, 3] if script[0].startswith("04") else []
    options += ["--steps-per-call", 3] if script[0].startswith("06") else []
    ended = run_main(modules[script], *options)
    numbers = [(int(m["epoch"]), int(m["batch"])) for m in LOG_LINE.finditer(ended.stdout)]
    assert ended.status == 0
    assert numbers == [(epoch, batch) for epoch in range(3) for batch in range(4)]


@pytest.mark.parametrize("script", IN_PROCESS, ids=script_id)
def test_epochs_and_steps_whichever_ends_first(modules, tiny, script) -> None:
    options = ["--data", tiny(48), "--batch-size", 16, "--epochs"]
    assert len(losses(run_main(modules[script], *options, 2, "--steps", 5).stdout)) == 5
    assert len(losses(run_main(modules[script], *options, 2, "--steps", 7).stdout)) == 6


@pytest.mark.parametrize("script", IN_PROCESS, ids=script_id)
def test_every_epoch_has_its_own_order(modules, tiny, script) -> None:
    """Each image is one batch; with a learning rate of almost 0 its loss is its name."""
    options = ["--data", tiny(12), "--batch-size", 1, "--epochs", 2, "--lr", 1e-9]
    module = load_script(script)
    module.MNISTClassifier = without_dropout(module.MNISTClassifier)
    seen = losses(run_main(module, *options).stdout)
    first, second = seen[:12], seen[12:]
    assert first != second and sorted(first) == sorted(second)


def without_dropout(model: type) -> type:
    class Plain(model):
        def __init__(self) -> None:
            super().__init__()
            self.dropout_1.rate = self.dropout_2.rate = 0

    return Plain


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_help_names_the_options(modules, script) -> None:
    ended = run_main(modules[script], "--help")
    names = re.findall(r"--[a-z-]+", ended.stdout)
    assert (ended.status, ended.stderr) == (0, "")
    assert set(names) >= OPTIONS
