"""Exercises and their check: right solutions pass, however written; wrong and slow ones do not.

Each file in tests/solutions/ is a patch of one of the stage scripts. The check runs as an attendee
would run it, with a python that has TensorFlow loaded already (tests/warm.py).
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.conftest import stage_environment
from tfworkshop import commands
from tfworkshop.exercises import attempt, judge, task, timing, trial
from tfworkshop.exercises.records import (
    CORRECT,
    NOT_YET,
    PASSED,
    Check,
    Graph,
    Observed,
    read_check,
)
from tfworkshop.stages import ROOT

pytestmark = pytest.mark.slow

SOLUTIONS = ROOT / "tests" / "solutions"
NUMBERS = [stage.number for stage in task.EXERCISES]
Workshop = Callable[..., subprocess.CompletedProcess[str]]

RIGHT = ["01_arrays_passed_on", "02_closure"]
WRONG = {
    "01_log_missing": "log-lines",
    "01_not_shuffled": "epoch-order",
    "01_updated_twice": "update",
    "01_wrong_images_evaluated": "accuracy",
    "02_no_dropout": "dropout",
    "02_python_number": "retraced",
    "02_tensor_loss": "results",
    "02_wrong_shape": "exception",
    "03_forward_only": "compiled-apart",
    "03_update_compiled": "update-compiled",
    "02_wrong_labels": "loss",
    "04_recorded_steps_timed": "recorded-steps-timed",
    "06_fed_by_the_host": "fed",
    "06_one_batch_per_call": "epoch-images",
}
UNEDITED = {
    "01": "reads",
    "02": "eager",
    "03": "not-compiled",
    "04": "exit",
    "05": "exit",
    "06": "exit",
}


@pytest.fixture
def workshop(warm_python: Path, tmp_path: Path, mnist: Path) -> Workshop:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [warm_python, "-m", "tfworkshop", *words],
            cwd=ROOT,
            env=stage_environment(WORKSHOP_MY=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=300,
        )

    return call


def script_in(folder: Path, number: str) -> Path:
    script = folder / number / "train_MNIST.py"
    script.parent.mkdir(exist_ok=True)
    return script


def apply_patch(name: str, folder: Path) -> Path:
    """Write the stage script that a patch is made for, patched, as an attendee's own."""
    patch = SOLUTIONS / f"{name}.patch"
    source = patch.read_text().splitlines()[0].removeprefix("--- a/")
    copy = folder / source
    copy.parent.mkdir()
    copy.write_text((ROOT / source).read_text())
    subprocess.run(["git", "apply", patch], cwd=folder, check=True)
    return copy.rename(script_in(folder, name[:2]))


def outcome(script: Path) -> Check:
    check = read_check(script)
    assert check
    return check


# --- ./workshop check ---


@pytest.mark.parametrize("number", NUMBERS)
def test_our_own_solution_passes(number: str, workshop: Workshop, tmp_path: Path) -> None:
    script = script_in(tmp_path, number)
    script.write_text(task.find_exercise(number).script.read_text())
    timed = number == "02"
    options = ["--repeats", "1"] if timed else ["--quick"]
    ended = workshop("check", number, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    check = outcome(script)
    assert check.status == (PASSED if timed else CORRECT)
    if timed:
        assert check.speeds["yours"] > check.speeds["before"]


@pytest.mark.parametrize("name", RIGHT)
def test_another_right_solution(name: str, workshop: Workshop, tmp_path: Path) -> None:
    script = apply_patch(name, tmp_path)
    ended = workshop("check", name[:2], "--quick")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcome(script).status == CORRECT


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_solution(name: str, workshop: Workshop, tmp_path: Path) -> None:
    script = apply_patch(name, tmp_path)
    ended = workshop("check", name[:2], "--quick")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert not ended.stderr
    check = outcome(script)
    assert (check.status, check.code) == (NOT_YET, WRONG[name]), ended.stdout
    if check.code == "exception":  # Python's own traceback, down to the line that was changed
        patched = re.findall(r"^\+ +(.*)", (SOLUTIONS / f"{name}.patch").read_text(), re.M)[-1]
        number = next(i for i, line in enumerate(script.open(), 1) if patched in line)
        assert f'File "{script}", line {number}, in' in ended.stdout


GRAPH = Graph("step", calls=16, bytes_fed=0, backward=2, updates=8)
COMPILED = msgspec.structs.replace(GRAPH, programs=[(2, 2)])
FED = msgspec.structs.replace(GRAPH, calls=6, has_iterator=True)
SIXTEEN = msgspec.structs.replace(GRAPH, conv_types=["float16"])
FLOAT = msgspec.structs.replace(GRAPH, conv_types=["float32"])
GRADIENTS = msgspec.structs.replace(GRAPH, updates=0)
LOGITS = Observed(graphs=[SIXTEEN], logits_type="float16")
LONG = Observed(has_profile=True, steps_in_profile=[11, 12, 13, 14, 15], root_markers=True)
PROFILED = Observed(has_profile=True, steps_in_profile=[11, 12, 13, 14])


def run_with(*graphs: Graph, observed: Observed | None = None) -> trial.Ran:
    return trial.Ran(observed or Observed(graphs=list(graphs)), None, {})


@pytest.mark.parametrize(
    ("code", "function", "arguments"),
    [
        ("model", judge.judge_model, [run_with()]),
        ("weight-types", judge.judge_model, [run_with(observed=Observed(weight_types=["half"]))]),
        ("update-outside", judge.judge_graph, [run_with(GRADIENTS)]),
        ("compiled", judge.judge_no_xla, [run_with(COMPILED), "Without --xla: "]),
        ("no-profile", judge.judge_profile, [run_with()]),
        ("window", judge.judge_profile, [run_with(observed=LONG)]),
        ("marker-not-root", judge.judge_profile, [run_with(observed=PROFILED)]),
        ("precision", judge.judge_format, [run_with(FLOAT), "float16"]),
        ("logits", judge.judge_format, [run_with(observed=LOGITS), "float16"]),
        ("unscaled", judge.judge_format, [run_with(SIXTEEN), "float16"]),
        ("default-precision", judge.judge_default_precision, [run_with(SIXTEEN), run_with(FLOAT)]),
        ("steps-per-call", judge.judge_loop, [run_with(GRAPH)]),
        ("iterator", judge.judge_loop, [run_with(FED)]),
    ],
)
def test_a_mistake_that_takes_long_to_run(code: str, function: Callable, arguments: list) -> None:
    with pytest.raises(trial.NotYet) as caught:
        function(*arguments)
    assert caught.value.code == code


def test_a_syntax_error(workshop: Workshop, tmp_path: Path) -> None:
    script = script_in(tmp_path, "02")
    script.write_text("def train(:\n")
    ended = workshop("check", "02")
    assert ended.returncode == 1
    assert outcome(script).code == "exception"
    assert f'File "{script}", line 1' in ended.stdout


def test_an_endless_loop(workshop: Workshop, tmp_path: Path) -> None:
    script = script_in(tmp_path, "01")
    script.write_text("while True:\n    pass\n")
    assert workshop("check", "01", "--limit", "5").returncode == 1
    assert outcome(script).code == "timeout"


def test_the_mistakes_of_the_modules_are_those_of_the_text() -> None:
    sources = [path.read_text() for path in Path(trial.__file__).parent.glob("*.py")]
    codes = {code for text in sources for code in re.findall(r'mistake\(\s*"([^"]+)"', text)}
    assert codes == set(trial.read_mistakes())


def test_every_patch_is_used() -> None:
    assert {path.stem for path in SOLUTIONS.iterdir()} == {*RIGHT, *WRONG}


def test_ctrl_c_ends_the_script_too(mnist: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    script_in(tmp_path, "01").write_text(f"open('{started}', 'w')\nwhile True:\n    pass\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "tfworkshop", "check", "01"],
        cwd=ROOT,
        env=stage_environment(WORKSHOP_MY=str(tmp_path), TMPDIR=str(tmp_path)),
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 120
    while not started.exists() and time.monotonic() < limit:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not list(tmp_path.glob("workshop_check_*"))
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(str(tmp_path).encode() in command for command in commands)


# --- its speed ---


def test_the_wall_clock_reads_steps_and_bursts() -> None:
    steady = [0.1 * i for i in range(40)]
    assert timing.wall_speed(steady) == pytest.approx(640)
    stalled = [*steady[:30], *(moment + 5 for moment in steady[30:])]
    claims = [64 / (later - earlier) for earlier, later in zip([-0.1, *stalled], stalled)]
    claimed = timing.claimed_speed(stalled, claims)
    assert claimed == pytest.approx(timing.wall_speed(stalled)) and claimed < 500
    bursts = [1.0 * (i // 10) + 0.0001 * (i % 10) for i in range(40)]  # ten steps a call
    assert timing.wall_speed(bursts) == pytest.approx(640, rel=0.01)
    long = [1.0 * (i // 15) for i in range(45)]  # a call goes past the warm-up
    assert timing.wall_speed(long) == pytest.approx(64 * 15)


def entry(*speeds: float, claims: tuple[float, ...] = ()) -> timing.Entry:
    return timing.Entry("name", Path("script"), speeds=list(speeds), claims=list(claims))


@pytest.mark.parametrize(
    ("number", "mine", "before", "ours", "code"),
    [
        ("02", (3, 4), (1, 2), (3, 4), None),
        ("02", (1, 2), (3, 4), (3, 4), "slower"),
        ("02", (1, 4), (2, 3), (3, 4), "unclear"),
        ("02", (3, 3), (1, 2), (9, 9), None),
        ("04", (1, 2), (3, 4), (1, 2), None),
        ("04", (1, 2), (1, 2), (4, 5), "costs-time"),
        ("04", (1, 3), (1, 2), (4, 5), None),  # one repeat is near enough
    ],
)
def test_what_a_speed_means(number, mine, before, ours, code) -> None:
    stage = task.find_exercise(number)
    entries = entry(*mine), entry(*before), entry(*ours)
    if code is None:
        assert timing.judge_comparison(stage, False, *entries)
        return
    with pytest.raises(trial.NotYet) as caught:
        timing.judge_comparison(stage, False, *entries)
    assert caught.value.code == code


def test_what_a_clock_says() -> None:
    timing.judge_clock(entry(100, 110, claims=(200, 111)))  # one repeat is near enough
    for claims, code in [((200, 210), "clock-stops-early"), ((10, 11), "clock-counts-twice")]:
        with pytest.raises(trial.NotYet) as caught:
            timing.judge_clock(entry(100, 110, claims=claims))
        assert caught.value.code == code


# --- ./workshop exercise ---


@pytest.mark.parametrize("number", NUMBERS)
def test_the_walk_of_an_exercise(number: str, workshop: Workshop, tmp_path: Path) -> None:
    """What the READMEs say to type, before anything is edited."""
    lines = [["exercise", number], ["check", number], ["check", number, "--hint"], ["check"]]
    walk = [workshop(*words) for words in lines]
    assert [ended.stderr for ended in walk] == [""] * 4
    assert [ended.returncode for ended in walk] == [0, 1, 0, 0]
    script = tmp_path / number / "train_MNIST.py"
    assert (tmp_path / "data").resolve() == (ROOT / "data").resolve()
    assert outcome(script).code == UNEDITED[number]
    stage = task.find_exercise(number)
    title, *_ = task.read_task(stage)[0].splitlines()
    assert script.read_text().startswith(f"{title}\n")
    assert script.read_text().endswith(task.previous(stage).script.read_text())
    for ended in walk:
        for line in ended.stdout.splitlines():
            assert len(line) <= 100 or str(tmp_path) in line, line


def test_exercise_never_overwrites(workshop: Workshop, tmp_path: Path) -> None:
    script = script_in(tmp_path, "02")
    script.write_text("mine")
    assert workshop("exercise", "02_tf_function").returncode == 0
    assert script.read_text() == "mine"
    assert workshop("exercise", "02", "--fresh").returncode == 0
    script.write_text("mine too")
    assert workshop("exercise", "02", "--fresh").returncode == 0
    assert script.read_text().startswith("# Exercise 02")
    assert script.with_name("train_MNIST.1.py").read_text() == "mine"
    assert script.with_name("train_MNIST.2.py").read_text() == "mine too"


@pytest.mark.parametrize(
    "words",
    [
        ["exercise", "00"],
        ["exercise", "7"],
        ["check", "fast"],
        ["check", "03"],
        ["check", "--hint"],
        ["check", "02", "--repeats", "0"],
    ],
    ids=" ".join,
)
def test_bad_words_get_one_line(words: list[str], workshop: Workshop, tmp_path: Path) -> None:
    ended = workshop(*words)
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stderr
    assert not ended.stdout and not list(tmp_path.iterdir())


# --- the tasks ---


def names_in(text: str) -> list[str]:
    """What stands in backticks, without arguments."""
    return [name.split("(")[0].lstrip("@") for name in re.findall(r"`([^`]+)`", text)]


@pytest.mark.parametrize("number", NUMBERS)
def test_what_a_task_names_is_there(number: str) -> None:
    import keras
    import tensorflow as tf

    stage = task.find_exercise(number)
    before, after = task.previous(stage).script.read_text(), stage.script.read_text()
    text, hints = task.read_task(stage)
    assert len(hints) >= 3 and len(names_in(text)) >= 2
    for scripts, names in ((before, names_in(text)), (before + after, names_in(" ".join(hints)))):
        for name in names:
            first, *rest = name.split(".")
            if name.startswith("./workshop "):
                assert name.split()[1] in commands.NAMES, name
            elif first in ("tf", "keras"):
                module = {"tf": tf, "keras": keras}[first]
                for part in rest:
                    module = getattr(module, part)
            else:
                assert re.search(rf"(?<!\w){re.escape(name)}(?!\w)", scripts), name


def test_hints_come_one_at_a_time(workshop: Workshop) -> None:
    _, hints = task.read_task(task.find_exercise("03"))
    for hint in hints:
        shown = workshop("check", "03", "--hint").stdout
        assert [other for other in hints if other.splitlines()[0] in shown] == [hint]
    shown = workshop("check", "03", "--hint").stdout
    assert all(hint.splitlines()[0] in shown for hint in hints)


# --- the score card ---


def save(script: Path, mistake: trial.NotYet | None, quick: bool, **speeds: float) -> None:
    checked = attempt.Attempt(script, quick, repeats=1, limit=1)
    checked.speeds = speeds
    checked.save(task.digest(script), mistake)


def test_the_progress_table(workshop: Workshop, tmp_path: Path) -> None:
    for number in NUMBERS[:5]:
        script_in(tmp_path, number).write_text("pass\n")
    speeds = {"yours": 600.0, "before": 200.0, "ours": 500.0}
    save(tmp_path / "01" / "train_MNIST.py", None, False, **speeds)
    save(tmp_path / "02" / "train_MNIST.py", None, False, **speeds)
    (tmp_path / "02" / "train_MNIST.py").write_text("pass  # changed\n")
    save(tmp_path / "03" / "train_MNIST.py", trial.mistake("eager"), True)
    save(tmp_path / "04" / "train_MNIST.py", None, True)
    ended = workshop("check")
    rows = dict(line.split(maxsplit=1) for line in ended.stdout.splitlines() if line[:2] in NUMBERS)
    states = [PASSED, "changed since it passed", NOT_YET, CORRECT, "started", "not started"]
    for number, state in zip(NUMBERS, states, strict=True):
        assert f"  {state}  " in rows[number]
    assert rows["01"].split()[-3:] == ["600", "3.00x", "1.20x"]
    assert "1 of 6" in ended.stdout and "./workshop check 02" in ended.stdout


def test_a_quick_check_forgets_no_speed(tmp_path: Path) -> None:
    script = script_in(tmp_path, "02")
    script.write_text("pass\n")
    save(script, None, quick=False, yours=5.0)
    save(script, None, quick=True)
    assert (outcome(script).status, outcome(script).speeds) == (PASSED, {"yours": 5.0})
