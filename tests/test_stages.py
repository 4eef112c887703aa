"""Every script of the ladder as a reader meets it: log, summary, results, options."""

from __future__ import annotations

import re
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from oracle import step_rows

from tests.conftest import (
    LAST,
    LOG_LINE,
    SCRIPTS,
    Script,
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
from tfworkshop import results as results_format
from tfworkshop.stages import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.both_stacks]

STEPS, BATCH = 26, 16
PROFILING = stages("04", "05", "06")
SOME = [*stages("00", "02"), LAST]  # eager, graph, many steps a call
some_scripts = pytest.mark.parametrize("script", SOME, ids=script_id)


@pytest.fixture(scope="module")
def modules() -> dict[Script, ModuleType]:
    return {script: load_script(script) for script in SCRIPTS}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MNIST_NPZ", raising=False)


@pytest.fixture(scope="module")
def tiny(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes npz files with a few images, and more arrays if wanted."""
    folder = tmp_path_factory.mktemp("tiny")
    with np.load(small) as file:
        arrays = dict(file)

    def make(images: int, **more: object) -> Path:
        path = folder / f"{images}{''.join(more)}.npz"
        np.savez(path, **{name: array[:images] for name, array in arrays.items()}, **more)
        return path

    return make


# --- one run of each script, looked at by many tests ---


class Trained(NamedTuple):
    script: Script
    folder: Path
    stdout: str
    stderr: str
    results: dict
    log: list[dict[str, str]]


@pytest.fixture(scope="module", params=SCRIPTS, ids=script_id)
def trained(request, small: Path, warm_python: Path, tmp_path_factory) -> Trained:
    script = request.param
    folder = tmp_path_factory.mktemp(script_id(script))
    (folder / "cwd").mkdir()
    options = ["--steps", STEPS, "--data", small, "--batch-size", BATCH]
    options += ["--results", "../out/results.json"]
    if script in PROFILING:
        options += ["--logdir", "../logs"]
    if script in stages("06"):
        options += ["--steps-per-call", 3]
    process = run_script(script, *options, cwd=folder / "cwd", python=warm_python)
    assert process.returncode == 0, process.stderr
    log = [match.groupdict() for match in LOG_LINE.finditer(process.stdout)]
    results = read_results(folder / "out" / "results.json")
    return Trained(script, folder, process.stdout, process.stderr, results, log)


def test_a_run_says_nothing_but_its_log_and_its_summary(trained: Trained) -> None:
    assert said(trained.stderr) == []
    lines = trained.stdout.splitlines()
    summary = [f"{name:<15} {value}" for name, value in trained.results.items()]
    assert lines[-len(summary) :] == summary
    others = [line for line in lines[: -len(summary)] if not LOG_LINE.match(line)]
    assert len(others) == ("precision" in trained.results)  # which one was chosen


def test_one_log_line_a_step_in_order(trained: Trained) -> None:
    numbers = [(int(line["epoch"]), int(line["batch"])) for line in trained.log]
    assert numbers == [(0, step) for step in range(STEPS)]
    for line in trained.log:
        seconds = BATCH / float(line["speed"])
        assert seconds == pytest.approx(float(line["time"]), rel=1e-3, abs=1e-3)


def test_the_loss_falls(trained: Trained) -> None:
    curve = [float(line["loss"]) for line in trained.log]
    assert statistics.mean(curve[-5:]) < 0.8 * statistics.mean(curve[:5])
    assert trained.results["test_accuracy"] > 0.4  # a guess is right once in ten


def test_results_say_what_ran(trained: Trained) -> None:
    results = results_format.read_results(trained.folder / "out" / "results.json")
    folder, file = trained.script
    assert results.stage == ("06_device" if file == "train_MNIST_device.py" else folder)
    assert (results.ranks, results.batch_size, results.steps) == (1, BATCH, STEPS)
    assert (results.data, results.seed, results.interrupted) == ("mnist", 1, False)
    assert results.device.startswith("CPU, ") != bool(tf.config.list_physical_devices("GPU"))
    assert results.versions["tensorflow"] == tf.__version__


def test_results_agree_with_the_log(trained: Trained) -> None:
    """Not timed: the first ten steps, the profiled ones, in 06 the first call of a length."""
    times = [float(line["time"]) for line in trained.log]
    warmup, timed = times[:10], times[10:]
    if trained.script in PROFILING:
        timed = times[20:]
    if trained.script in stages("06"):
        warmup, timed = warmup + timed[:3], timed[3:]
    results = trained.results
    assert (results["warmup_steps"], results["steps_timed"]) == (len(warmup), len(timed))
    median = results["step_ms_median"]
    assert median == pytest.approx(1000 * statistics.median(timed), abs=0.51)
    assert results["img_per_s"] == pytest.approx(1000 * BATCH / median, rel=1e-4, abs=0.1)
    compiling = sum(warmup) - len(warmup) * median / 1000
    assert results["compile_s"] == pytest.approx(max(0, compiling), abs=0.02)
    assert f"{results['final_loss']:.3f}" == trained.log[-1]["loss"]


def test_a_run_leaves_its_results_and_its_profile_only(trained: Trained) -> None:
    files = files_in(trained.folder) - {"out/results.json"}
    assert all(name.startswith("logs/plugins/profile/") for name in files)
    assert bool(files) == (trained.script in PROFILING)


def test_the_profile_has_every_step_of_its_window(trained: Trained) -> None:
    profiles = list(trained.folder.glob("logs/plugins/profile/*/*.xplane.pb"))
    assert len(profiles) == (trained.script in PROFILING)
    for profile in profiles:
        marked = {row["stepnum"] for row in step_rows(profile)}
        assert marked == {f"train {step}" for step in range(10, 20)}


# --- options ---


@pytest.mark.parametrize("script", SCRIPTS, ids=script_id)
def test_help_is_a_whole_sentence(modules, script) -> None:
    ended = run_main(modules[script], "--help")
    sentence = modules[script].__doc__.splitlines()[0]
    assert sentence in " ".join(ended.stdout.split())
    assert sentence.endswith((".", "?"))


@some_scripts
def test_data_is_the_options_then_the_environments_then_the_repositorys(
    modules, tiny, mnist, script, monkeypatch
) -> None:
    """Told apart by length: an epoch of 2 steps, and one of 3."""
    monkeypatch.setattr(sys, "argv", ["train_MNIST.py"])
    assert modules[script].parse_args().data.samefile(mnist)
    monkeypatch.setenv("MNIST_NPZ", str(tiny(32, synthetic=True)))
    options = ["--batch_size", 16, "--epochs", 1, "--steps", 9, "--results", "r.json"]
    assert len(losses(run_main(modules[script], *options).stdout)) == 2
    results = read_results(Path("r.json"))
    assert (results["data"], results["batch_size"]) == ("synthetic", 16)
    assert (results["warmup_steps"], results["img_per_s"]) == (2, None)  # too short to time
    assert len(losses(run_main(modules[script], *options, "--data", tiny(48)).stdout)) == 3
    assert read_results(Path("r.json"))["data"] == "mnist"


@pytest.mark.parametrize("script", [*stages("00", "01", "02"), LAST], ids=script_id)
def test_a_seed_fixes_the_losses(modules, tiny, script) -> None:
    """0 is a seed as any other."""
    options = ["--data", tiny(256), "--batch-size", 32, "--steps", 4, "--seed"]
    once, again, other = (losses(run_main(modules[script], *options, n).stdout) for n in (0, 0, 6))
    assert len(once) == 4
    assert once == again != other


WAYS = [(script, []) for script in stages("00", "02", "04")]
WAYS += [(LAST, ["--steps-per-call", 3, "--xla", xla]) for xla in ("off", "on")]


@pytest.mark.parametrize(("script", "more"), WAYS, ids=["00", "02", "04", "06", "06-xla"])
def test_epochs_end_where_the_data_does(tiny, script, more, monkeypatch) -> None:
    """18 images are 4 batches of 4, and 2 images that no batch gets; calls of 3 and 1 steps."""
    module = load_script(script)
    calls = []  # of forward_pass by Python: each step, or each time a graph is traced
    forward_pass = module.forward_pass
    module.forward_pass = lambda *args: calls.append(None) or forward_pass(*args)
    options = ["--data", tiny(18), "--batch-size", 4, "--log-every", 2, *more]
    ended = run_main(module, *options, "--epochs", 3, "--steps", 11)
    numbers = [(int(m["epoch"]), int(m["batch"])) for m in LOG_LINE.finditer(ended.stdout)]
    assert numbers == [(0, 0), (0, 2), (1, 0), (1, 2), (2, 0), (2, 2)]
    assert len(calls) == (11 if script in stages("00") else 1)


@pytest.mark.parametrize("script", [*stages("04"), LAST], ids=script_id)
def test_a_profiled_compilation_is_no_step_time(modules, tiny, script) -> None:
    """The first ten steps are warm-up by number, profiled or not."""
    options = ["--data", tiny(64), "--batch-size", 8, "--steps", 14, "--results", "r.json"]
    options += ["--logdir", "logs", "--profile-steps", 0, 8]
    if script == LAST:
        options += ["--steps-per-call", 1]
    assert run_main(modules[script], *options).status == 0
    results = read_results(Path("r.json"))
    assert (results["warmup_steps"], results["steps_timed"]) == (10, 4)


def test_without_horovod_and_on_one_thread(tiny, tmp_path: Path) -> None:
    """A laptop's case, wherever this runs: a package that cannot be imported hides the real one."""
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ImportError")
    options = ["--data", tiny(64), "--batch-size", 16, "--steps", 3, "--threads", 1]
    extra = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    process = run_script(LAST, *options, cwd=tmp_path, **extra)
    assert (process.returncode, said(process.stderr)) == (0, [])
    assert len(losses(process.stdout)) == 3
    assert files_in(tmp_path) == {"horovod/__init__.py"}


# --- what an attendee writes ---


def edited(script: Script, folder: Path, old: str, new: str) -> Script:
    """A copy of a stage with one line changed."""
    source = (ROOT / script[0] / script[1]).read_text()
    assert source.count(old) == 1
    (folder / script[1]).write_text(source.replace(old, new))
    return str(folder), script[1]


@some_scripts
def test_an_attendees_own_bug_shows_its_traceback(script, tiny, warm_python, tmp_path) -> None:
    bug = "x = tf.reshape(x, [-1, 9000])"
    copy = edited(script, tmp_path, "x = self.flatten(x)", bug)
    options = ["--data", tiny(64), "--results", "r.json"]
    process = run_script(copy, *options, cwd=tmp_path, python=warm_python)
    assert process.returncode == 1
    assert process.stderr.startswith("Traceback (most recent call last)")
    assert bug in process.stderr
    assert "final_loss" not in process.stdout and not Path("r.json").exists()


def test_an_option_that_an_attendee_adds(tiny, tmp_path: Path) -> None:
    line = '    parser.add_argument("--seed", type=int, default=1)\n'
    flag = line + '    parser.add_argument("--nesterov", action="store_true")\n'
    module = load_script(edited(SCRIPTS[0], tmp_path, line, flag))
    for words, value in ([], False), (["--nesterov"], True):
        options = ["--data", tiny(16), "--batch-size", 8, "--steps", 1, "--results", "r.json"]
        assert run_main(module, *options, *words).status == 0
        assert read_results(Path("r.json"))["nesterov"] is value


# --- what TensorFlow makes of it ---


def test_xla_call_compiles_once_for_many_calls(tiny, tmp_path: Path) -> None:
    """By TensorFlow's own log, which it must be asked for before it loads."""
    log = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "device_compilation_profiler=1"}
    options = ["--data", tiny(32), "--batch-size", 4, "--steps", 6, "--steps-per-call", 2]
    process = run_script(LAST, *options, "--xla", "call", cwd=tmp_path, **log)
    assert len(losses(process.stdout)) == 6
    counts = re.findall(r"Compiled __inference_train_steps_\d+ (\d+) times", process.stderr)
    assert counts == ["1"]


@pytest.mark.parametrize("script", [*stages("01")[1:], *stages("02", "05")], ids=script_id)
def test_the_images_stay_in_the_hosts_memory(modules, script) -> None:
    """A GPU would get all of them and keep them; batches are copied to it as they are used."""
    images, labels = np.zeros([64, 28, 28, 1], np.float32), np.zeros(64, np.int64)
    args = Namespace(seed=1, batch_size=8, steps_per_epoch=8)
    modules[script].hvd.init()

    @tf.function
    def traced():
        return next(modules[script].make_batches(args, images, labels))

    operations = traced.get_concrete_function().graph.get_operations()
    (slices,) = [operation for operation in operations if operation.type == "TensorSliceDataset"]
    assert ["CPU" in tensor.op.device for tensor in slices.inputs] == [True, True]
