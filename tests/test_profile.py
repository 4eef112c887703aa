"""`./workshop profile`: programs as people write them, unedited, on their own Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import stage_environment
from tfworkshop.files import read_record
from tfworkshop.problem import UsageProblem
from tfworkshop.profile import command
from tfworkshop.profile.summary import NAME, Kind, Summary
from tfworkshop.report.reader import load
from tfworkshop.stages import ROOT

PROGRAMS = ROOT / "tests" / "programs"
LOOP = """
import tensorflow as tf
v = tf.Variable(1.0)
@tf.function
def train_step():
    with tf.GradientTape() as tape:
        loss = v * v
    v.assign_sub(0.1 * tape.gradient(loss, v))
for i in range(40):
    train_step()
"""


class Profiled(NamedTuple):
    status: int
    stdout: str
    stderr: str
    summary: Summary
    logdir: Path


class Profiler:
    """Profiles programs in a folder of their own."""

    def __init__(self, python: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.python = str(python)
        self.folder = folder
        self.capfd = capfd

    def __call__(self, *program: str, **settings: object) -> Profiled:
        logdir = self.folder / "logs"
        self.capfd.readouterr()
        status = command.profile_program(
            ["python", *program],
            command.Settings(str(logdir), **settings),  # type: ignore[arg-type]
            stage_environment(),
            self.python,
        )
        output = self.capfd.readouterr()
        return Profiled(status, output.out, output.err, read_record(logdir / NAME, Summary), logdir)

    def text(self, text: str, **settings: object) -> Profiled:
        script = self.folder / "program.py"
        script.write_text(text)
        return self(str(script), **settings)


@pytest.fixture
def profiler(warm_python: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Profiler:
    return Profiler(warm_python, tmp_path, capfd)


def recorded_steps(kind: Kind) -> list[int]:
    steps = load(Path(kind.folder))[0].steps
    assert steps.source == "markers"
    return [int(step.name.split()[-1]) for step in steps.per_step]


EXPECTED = {
    "fit_arrays": ("batches of model.fit (sequential)", 32),
    "fit_dataset": ("batches of model.fit (sequential)", 16),
    "fit_executions": ("batches of model.fit (sequential)", 4 * 8),
    "custom_train_step": ("batches of model.fit (custom_model)", 32),
    "loop_function": ("calls of the tf.function train_step", 32),
    "loop_nested": ("calls of the tf.function train_step", 64),
    "loop_eager": ("updates by Adam", 24),
    "gan": ("calls of the tf.function train_discriminator", 32),
    "two_phases": ("batches of model.fit (head)", 8),
    "mirrored": ("calls of the tf.function train_step", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_every_step_is_counted_and_nothing_changes(name: str, profiler: Profiler) -> None:
    """The output has the losses to the last bit, and the program's own count of its steps."""
    script = str(PROGRAMS / f"{name}.py")
    alone = subprocess.run(
        [profiler.python, script], env=stage_environment(), capture_output=True, text=True
    )
    assert alone.returncode == 0, alone.stderr
    profiled = profiler(script)
    assert profiled.status == 0, profiled.stderr
    assert profiled.stdout == alone.stdout
    kind = command.choose(profiled.summary)
    assert kind
    steps = int(alone.stdout.split()[-1])
    assert (kind.name, kind.samples, kind.count) == (*EXPECTED[name], steps)
    recorded = recorded_steps(kind)
    expected = [step for step in range(20, 30) if name != "loop_function" or step != 25]
    assert recorded == expected  # step 25 of that loop has an evaluation in it
    assert kind.recorded == len(expected)
    assert kind.before.steps == 10
    assert kind.after.steps + kind.irregular >= steps - 32
    assert kind.name in profiled.stderr
    assert "-bound: " in profiled.stderr


@pytest.mark.slow
def test_kinds_of_steps(profiler: Profiler) -> None:
    """One inside another has no window of its own; one after another has."""
    gan = profiler(str(PROGRAMS / "gan.py")).summary.kinds
    assert [kind.inside for kind in gan] == ["", gan[0].name]
    assert [kind.recorded for kind in gan] == [10, 0]
    phases = profiler(str(PROGRAMS / "two_phases.py")).summary.kinds
    assert [(kind.count, kind.recorded) for kind in phases] == [(40, 10), (300, 10)]
    assert phases[0].folder != phases[1].folder


@pytest.mark.slow
def test_the_window(profiler: Profiler) -> None:
    given = profiler.text(LOOP, window=(5, 7)).summary.kinds[0]
    assert recorded_steps(given) == [5, 6, 7]
    assert (given.before.steps, given.after.steps) == (3, 32)
    stopped = profiler.text(LOOP + "print('the end')", stop=True)
    assert (stopped.status, stopped.stdout) == (0, "")
    assert stopped.summary.kinds[0].count == 30
    traced = profiler.text(LOOP.replace("()", "(n)").replace("_step(n):", "_step(n=0):").replace(
        "train_step(n)", "train_step(n=i // 22)"
    ))  # a Python number: traced again at step 22  # fmt: skip
    assert traced.status == 0, traced.stderr


@pytest.mark.slow
def test_programs_that_go_wrong(profiler: Profiler) -> None:
    early = profiler.text(LOOP, window=(100, 109))
    assert early.status == 1
    assert early.summary.kinds[0].count == 40
    assert "--steps 20 38" in early.stderr
    cut = profiler.text(LOOP.replace("    train_step()", "    train_step()\n    assert i < 25"))
    assert cut.status == 1
    assert "AssertionError" in cut.stderr
    assert recorded_steps(cut.summary.kinds[0]) == [20, 21, 22, 23, 24, 25]
    no_steps = profiler.text("import tensorflow as tf\nprint(float(tf.constant(1.0)))")
    assert (no_steps.status, no_steps.stdout, no_steps.summary.kinds) == (1, "1.0\n", [])
    failed = profiler.text("import sys\nsys.exit(3)")
    assert failed.status == 3


@pytest.mark.slow
def test_without_tensorflow(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profiled = Profiler(Path(sys.executable), tmp_path, capfd).text("print('hello')")
    assert (profiled.status, profiled.stdout) == (1, "hello\n")
    assert profiled.summary == Summary()


@pytest.mark.slow
def test_a_program_that_records_itself(profiler: Profiler, tmp_path: Path) -> None:
    own = f"""
    if i == 25:
        tf.profiler.experimental.start({str(tmp_path / "own")!r})
    if i == 30:
        tf.profiler.experimental.stop()
"""
    profiled = profiler.text(LOOP + own)
    assert profiled.status == 0, profiled.stderr
    assert recorded_steps(profiled.summary.kinds[0]) == [20, 21, 22, 23, 24, 25]
    assert list((tmp_path / "own").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_ctrl_c_is_the_programs_business(warm_python: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "tfworkshop",
        "profile",
        "--logdir",
        str(tmp_path / "logs"),
        "--",
    ]
    process = subprocess.Popen(
        [*words, str(warm_python), "-m", "interrupted"],
        cwd=PROGRAMS,
        env=stage_environment(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    for line in process.stdout:
        if line == "step 26\n":
            break
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    *_, saved, steps = stdout.splitlines()
    assert saved == "saved"
    kind = read_record(tmp_path / "logs" / NAME, Summary).kinds[0]
    assert f"steps {kind.count}" == steps
    assert recorded_steps(kind) == list(range(20, kind.count))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["0", "all"])
def test_two_ranks(ranks: str, warm_python: Path, tmp_path: Path) -> None:
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    words = [sys.executable, "-m", "tfworkshop", "profile", "--ranks", ranks, "--logdir", "logs"]
    ended = subprocess.run(
        [*words, "--", horovodrun, "--gloo", "-np", "2", str(warm_python), PROGRAMS / "ranks.py"],
        cwd=tmp_path,
        env=stage_environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "steps 40" in ended.stdout
    folders = [tmp_path / "logs", tmp_path / "logs" / "1"]
    summaries = [folder / NAME for folder in folders if (folder / NAME).exists()]
    assert len(summaries) == (2 if ranks == "all" else 1)
    for summary in summaries:
        kind = read_record(summary, Summary).kinds[0]
        assert (kind.count, recorded_steps(kind)) == (40, list(range(20, 30)))


def test_a_module_that_is_looked_for_before_it_is_imported(tmp_path: Path) -> None:
    """TensorFlow asks whether there is a Keras before it imports it."""
    (tmp_path / "sought.py").write_text("value = 1")
    code = f"""
import importlib.util, sys
sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
from tfworkshop.profile.hooks import AfterImport
sys.meta_path.insert(0, AfterImport({{"sought": lambda module: print(module.value)}}))
assert importlib.util.find_spec("sought")
import sought
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_where_the_runner_goes() -> None:
    environment = {"PATH": str(Path(sys.executable).parent)}
    settings = command.Settings("logs")

    def wrapped(*program: str, python: str | None = None) -> list[str]:
        words = command.wrap(list(program), settings, environment, python)
        place = words.index(str(command.RUNNER))
        return [*words[:place], "RUNNER", *words[place + 2 :]]

    assert wrapped("python", "train.py", "-m") == ["python", "RUNNER", "train.py", "-m"]
    assert wrapped("python", "-u", "-X", "dev", "-m", "a.b") == [
        *("python", "-u", "-X", "dev", "RUNNER", "-m", "a.b")
    ]
    assert wrapped("srun", "-n", "2", "python", "a.py")[:4] == ["srun", "-n", "2", "python"]
    assert wrapped("python", "a.py", python="/opt/python")[0] == "/opt/python"
    assert wrapped("python9.9", "a.py")[0] == sys.executable  # not there: ours
    for mistake in (["./train.py"], ["python"], ["python", "-c", "1"]):
        with pytest.raises(UsageProblem):
            wrapped(*mistake)


def test_the_users_own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As ./workshop found it: its own Python is not the first any more."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / "workshop.txt").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:{tmp_path}/bin")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}/their/modules")
    environment = command.users_environment()
    assert environment["PATH"] == f"/usr/bin:{tmp_path}/bin"
    assert environment["PYTHONPATH"] == "/their/modules"
