"""Every script of the ladder as a reader meets it: log, summary, results, options."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import (
    LAST,
    LOG_LINE,
    SCRIPTS,
    Ended,
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

Script = tuple[str, str]

STEPS, BATCH = 26, 16
PROFILING = stages("04", "05", "06")
WINDOW = range(10, 20)  # the default one
TYPES: dict[str, type | tuple[type, ...]] = {
    "stage": str,
    "epochs": int,
    "batch_size": int,
    "lr": float,
    "steps": int,
    "data": str,
    "log_every": int,
    "seed": int,
    "precision": str,
    "xla": str,
    "steps_per_call": int,
    "threads": type(None),  # not named: TensorFlow's own
    "logdir": str,
    "profile_steps": list,
    "profile_ranks": str,
    "results": str,
    "interrupted": bool,
    "test_accuracy": float,
    "device": str,
    "steps_per_epoch": int,
    "ranks": int,
    "versions": dict,
    "warmup_steps": int,
    "steps_timed": int,
    "compile_s": (float, int),  # 0 where nothing is compiled
    "step_ms_median": float,
    "img_per_s": float,
    "final_loss": float,
}
SINCE = {"xla": "04", "logdir": "04", "profile_steps": "04", "profile_ranks": "04"}
SINCE |= {"precision": "05", "steps_per_call": "06", "threads": "06"}
OPTIONS = {"--epochs", "--batch-size", "--lr", "--steps", "--data", "--log-every", "--seed"}
OPTIONS |= {"--results"}
SOME = [*stages("00", "02"), LAST]  # eager, graph, many steps a call: for tests of options


def keys_of(script: Script) -> list[str]:
    """What a stage's results have, in order."""
    names = [name for name in TYPES if SINCE.get(name, "00") <= script[0][:2]]
    return names if script == LAST else [name for name in names if name != "threads"]


def counted(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows whenever Python runs the forward pass: each step, or each time it is traced."""
    forward_pass, calls = module.forward_pass, []

    def counting(*args: object) -> object:
        calls.append(None)
        return forward_pass(*args)

    monkeypatch.setattr(module, "forward_pass", counting)
    return calls


class Trained(NamedTuple):
    """One finished run of a script, looked at by many tests."""

    script: Script
    ended: Ended
    folder: Path
    traces: int

    @property
    def number(self) -> str:
        return self.script[0][:2]

    @property
    def results(self) -> dict:
        return read_results(self.folder / "out" / "results.json")

    @property
    def log(self) -> list[dict[str, str]]:
        return [match.groupdict() for match in LOG_LINE.finditer(self.ended.stdout)]


@pytest.fixture(scope="module", params=SCRIPTS, ids=script_id)
def trained(
    request: pytest.FixtureRequest, small: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trained]:
    script, folder = request.param, tmp_path_factory.mktemp(script_id(request.param))
    (folder / "cwd").mkdir()
    options = ["--steps", STEPS, "--data", small, "--results", "../out/results.json"]
    options += ["--batch-size", BATCH]
    options += ["--logdir", "../logs"] if script in PROFILING else []
    options += ["--steps-per-call", 3] if script in stages("06") else []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "cwd")
        module = load_script(script)
        traces = counted(module, patch)
        ended = run_main(module, *options)
        yield Trained(script, ended, folder, len(traces))


def test_a_run_ends_well_and_says_nothing_but_its_log(trained: Trained) -> None:
    assert (trained.ended.status, trained.ended.stderr) == (0, "")
    lines, keys = trained.ended.stdout.splitlines(), keys_of(trained.script)
    more = [line for line in lines[: -len(keys)] if not LOG_LINE.match(line)]
    chosen = trained.results.get("precision")  # is logged
    assert len(more) == bool(chosen) and all(f" - INFO - {chosen}: " in line for line in more)
    assert [line.split(" ")[0] for line in lines[-len(keys) :]] == keys


def test_one_log_line_a_step_in_order(trained: Trained) -> None:
    numbers = [(int(line["epoch"]), int(line["batch"])) for line in trained.log]
    assert numbers == [(0, i) for i in range(STEPS)]
    for line in trained.log:
        seconds = BATCH / float(line["speed"])
        assert seconds == pytest.approx(float(line["time"]), rel=1e-3, abs=1e-3)


def test_the_loss_falls(trained: Trained) -> None:
    curve = [float(line["loss"]) for line in trained.log]
    assert statistics.mean(curve[-5:]) < 0.8 * statistics.mean(curve[:5])
    assert trained.results["test_accuracy"] > 0.4  # a guess is right once in ten


def test_results_say_what_ran(trained: Trained) -> None:
    results = trained.results
    assert list(results) == keys_of(trained.script)
    wrong = {key: value for key, value in results.items() if not isinstance(value, TYPES[key])}
    assert wrong == {}
    folder, file = trained.script
    gpu = bool(tf.config.list_physical_devices("GPU"))
    assert results["stage"] == ("06_device" if file == "train_MNIST_device.py" else folder)
    assert results["device"].startswith("CPU, ") == (not gpu)
    assert (results["ranks"], results["batch_size"], results["lr"]) == (1, BATCH, 0.001)
    assert (results["steps"], results["steps_per_epoch"]) == (STEPS, 2048 // BATCH)
    assert results.get("xla") in (None, "on" if gpu else "off")
    assert (results["data"], results["seed"], results["interrupted"]) == ("mnist", 1, False)
    versions = {module.__name__: module.__version__ for module in (tf, keras, np)}
    assert results["versions"] == versions


def test_results_agree_with_the_log(trained: Trained) -> None:
    """Not timed: the first ten steps, the profiled ones, in 06 the first call of a length."""
    results, times = trained.results, [float(line["time"]) for line in trained.log]
    warmup, timed = times[:10], times[20:] if trained.script in PROFILING else times[10:]
    if trained.number == "06":
        warmup, timed = warmup + timed[:3], timed[3:]
    assert (results["warmup_steps"], results["steps_timed"]) == (len(warmup), len(timed))
    median = results["step_ms_median"]
    assert median == pytest.approx(1000 * statistics.median(timed), abs=0.51)
    assert results["img_per_s"] == pytest.approx(1000 * BATCH / median, rel=1e-4, abs=0.1)
    spent = sum(warmup) - len(warmup) * median / 1000
    assert results["compile_s"] == pytest.approx(max(0, spent), abs=0.02)
    assert f"{results['final_loss']:.3f}" == trained.log[-1]["loss"]


def test_the_summary_is_the_results(trained: Trained) -> None:
    summary = trained.ended.stdout.splitlines()[-len(keys_of(trained.script)) :]
    assert summary == [f"{name:<15} {value}" for name, value in trained.results.items()]


def test_a_graph_is_traced_once(trained: Trained) -> None:
    assert trained.traces == (STEPS if trained.number < "02" else 1)


def test_nothing_else_is_left_behind(trained: Trained) -> None:
    assert files_in(trained.folder / "out") == {"results.json"}
    assert files_in(trained.folder / "cwd") == set()
    others = {path.name for path in trained.folder.iterdir()} - {"cwd", "out"}
    assert others == ({"logs"} if trained.script in PROFILING else set())


def test_the_profile_has_every_step_of_its_window(trained: Trained) -> None:
    if trained.script not in PROFILING:
        return
    (profile,) = (trained.folder / "logs").glob("plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size > 10_000
    page, _ = xspace_to_tool_data([str(profile)], "overview_page^", {})
    assert "No step marker observed" not in page
    rows = [row["c"][0]["v"] for row in json.loads(page)[1]["rows"]]
    assert rows == [f"train {step}" for step in WINDOW]


@pytest.mark.parametrize("script", [*stages("01")[:1], LAST], ids=script_id)
def test_as_a_process_without_horovod(script, small, tmp_path) -> None:
    """A laptop's case, wherever this runs: a package that cannot be imported hides the real one."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError")
    options = ["--data", small, "--batch-size", 16, "--steps", 3]
    options += ["--threads", 1] if script == LAST else []  # must be set before TensorFlow starts
    alone = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    process = run_script(script, *options, cwd=tmp_path, **alone)
    assert (process.returncode, said(process.stderr)) == (0, [])
    assert len(losses(process.stdout)) == 3
    assert files_in(tmp_path) == {"horovod/__init__.py"}  # and no line profile, unless asked for
    summary = process.stdout.splitlines()[-len(keys_of(script)) :]
    assert [line.split()[0] for line in summary] == keys_of(script)


# --- options ---


@pytest.fixture(scope="module")
def modules() -> dict[Script, ModuleType]:
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


@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_batch_size_in_both_spellings_and_too_few_steps_to_time(modules, tiny, script) -> None:
    for spelling in ("--batch-size", "--batch_size"):
        options = ["--data", tiny(64), "--steps", 2, spelling, 16, "--results", "r.json"]
        assert run_main(modules[script], *options).status == 0
        results = read_results(Path("r.json"))
        assert (results["batch_size"], results["steps_per_epoch"]) == (16, 4)
        assert (results["warmup_steps"], results["steps_timed"]) == (2, 0)
        assert {results[n] for n in ("step_ms_median", "img_per_s", "compile_s")} == {None}


@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_data_is_the_options_then_the_environments_then_the_repositorys(
    modules, tiny, mnist, script, monkeypatch
) -> None:
    """Told apart by length: an epoch of 2 steps, and one of 3."""
    monkeypatch.setattr(sys, "argv", ["train_MNIST.py"])
    defaults = modules[script].parse_args()
    assert (defaults.data, defaults.batch_size) == (mnist, 64)
    monkeypatch.setenv("MNIST_NPZ", str(tiny(32, synthetic=True)))
    options = ["--batch-size", 16, "--epochs", 1, "--steps", 9, "--results", "r.json"]
    assert len(losses(run_main(modules[script], *options).stdout)) == 2
    assert read_results(Path("r.json"))["data"] == "synthetic"
    assert len(losses(run_main(modules[script], *options, "--data", tiny(48)).stdout)) == 3
    assert read_results(Path("r.json"))["data"] == "mnist"


@pytest.mark.parametrize("script", [*stages("00", "01", "02"), LAST], ids=script_id)
def test_a_seed_fixes_the_losses(modules, tiny, script) -> None:
    options = ["--data", tiny(256), "--batch-size", 32, "--steps", 4, "--seed"]
    once, again, other = (losses(run_main(modules[script], *options, n).stdout) for n in (5, 5, 6))
    assert len(once) == 4
    assert once == again != other


WAYS = [(script, []) for script in stages("00", "02", "04")]
WAYS += [(LAST, ["--steps-per-call", 3, "--xla", xla]) for xla in ("off", "on", "call")]


@pytest.mark.parametrize(("script", "more"), WAYS, ids=["00", "02", "04", "off", "on", "call"])
def test_epochs_end_where_the_data_does(tiny, script, more, monkeypatch) -> None:
    """18 images are 4 batches of 4, and 2 images that no batch gets; calls of 3 and 1 steps."""
    module = load_script(script)
    traces = counted(module, monkeypatch)
    options = ["--data", tiny(18), "--batch-size", 4, "--epochs", 3, "--log-every", 2]
    ended = run_main(module, *options, *more)
    numbers = [(int(m["epoch"]), int(m["batch"])) for m in LOG_LINE.finditer(ended.stdout)]
    assert ended.status == 0, ended.stderr
    assert numbers == [(epoch, batch) for epoch in range(3) for batch in (0, 2)]
    assert len(traces) == (12 if script in stages("00") else 1)


@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_epochs_and_steps_whichever_ends_first(modules, tiny, script) -> None:
    options = ["--data", tiny(48), "--batch-size", 16, "--epochs"]
    assert len(losses(run_main(modules[script], *options, 2, "--steps", 5).stdout)) == 5
    assert len(losses(run_main(modules[script], *options, 2, "--steps", 7).stdout)) == 6


@pytest.mark.parametrize("script", SOME, ids=script_id)
def test_every_epoch_has_its_own_order(tiny, script) -> None:
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


@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("script", [*stages("05"), LAST], ids=script_id)
def test_reduced_precision_by_name(modules, script, precision, tiny) -> None:
    """On a CPU too, whatever its instruction set: slow there, but no crash."""
    options = ["--data", tiny(16), "--batch-size", 4, "--steps", 2, "--results", "r.json"]
    ended = run_main(modules[script], *options, "--precision", precision)
    assert (ended.status, ended.stderr) == (0, "")
    assert read_results(Path("r.json"))["precision"] == precision
    assert "float32" not in ended.stdout


@pytest.mark.parametrize(
    ("script", "more"),
    [(stages("04")[0], ["--xla", "on"]), (LAST, ["--steps-per-call", 1])],
    ids=["04", "06"],
)
def test_a_profiled_compilation_is_no_step_time(modules, tiny, script, more) -> None:
    """The first ten steps are warm-up by number, profiled or not."""
    options = ["--data", tiny(64), "--batch-size", 8, "--steps", 24, "--results", "r.json"]
    options += ["--logdir", "logs", "--profile-steps", 0, 8]
    assert run_main(modules[script], *options, *more).status == 0
    results = read_results(Path("r.json"))
    assert (results["warmup_steps"], results["steps_timed"]) == (10, 14)
    assert results["compile_s"] > 5 * results["step_ms_median"] / 1000
    assert len(list(Path("logs").rglob("*.xplane.pb"))) == 1


def test_threads_reach_tensorflow(modules, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it runs already, and would refuse; a process of its own is tested above."""
    asked: list[int | None] = []
    name = "set_intra_op_parallelism_threads"
    monkeypatch.setattr(tf.config.threading, name, asked.append)
    options = ["--data", tiny(16), "--batch-size", 4, "--steps", 1]
    for more in (["--threads", 1], []):
        assert run_main(modules[LAST], *options, *more).status == 0
    assert asked == [1, None]


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_help_names_the_options(modules, script) -> None:
    ended = run_main(modules[script], "--help")
    names = re.findall(r"--[a-z-]+", ended.stdout)
    assert (ended.status, ended.stderr) == (0, "")
    since = {f"--{name.replace('_', '-')}" for name in SINCE if name in keys_of(script)}
    assert set(names) == OPTIONS | since | {"--help", "--batch"}  # --batch_size
