"""xray: its figures for every stage, a reader's own function, and its one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import stage_environment

from tfworkshop.stages import ROOT, STAGES

pytestmark = pytest.mark.slow

OWN = """\
import tensorflow as tf

batches = iter(tf.data.Dataset.from_tensors(tf.zeros([4])).repeat())


@tf.function
def called(x):
    return tf.random.shuffle(x)


called(tf.zeros([5]))
called(tf.zeros([5, 2], tf.float64))


@tf.function(input_signature=[tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int32)])
def given(x, n):
    for _ in tf.range(n):
        x += tf.reduce_sum(next(batches))
    return x


@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([3], tf.int32)])
def compiled(x):
    return tf.strings.as_string(2 * x)


@tf.function
def never(x):
    return x


def plain(x):
    return x
"""

# All that needs TensorFlow, in one process: it prints the cases of each run, or its problem.
PROCESS = """\
import contextlib, io, json, sys
from pathlib import Path
from tfworkshop.problem import Problem
from tfworkshop.xray import command

folder = Path(sys.argv[1])
runs = {}
for what in sys.argv[2:]:
    file = folder / "out.json"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            command.run(what, file)
    except Problem as problem:
        runs[what] = str(problem)
    else:
        runs[what] = json.loads(file.read_text())["cases"]
print(json.dumps(runs))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("xray")
    (folder / "own.py").write_text(OWN)
    (folder / "raises.py").write_text("import no_such_module\n")
    names = ["called", "given", "compiled", "never", "plain", "missing"]
    own = [f"{folder}/own.py:{name}" for name in names]
    command = [sys.executable, "-c", PROCESS, str(folder), "", *own, f"{folder}/raises.py:f"]
    process = subprocess.run(
        command, cwd=ROOT, env=stage_environment(), capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr
    cases = json.loads(process.stdout)
    return {Path(what).name.removeprefix("own.py:"): result for what, result in cases.items()}


def counts(case: dict) -> list:
    per_call = case["once_a_call"]
    figures = [case["name"], case["precision"], case["xla"]]
    figures += [case["kernels"], case["compiled_calls"], ways(case["copies"])]
    return [*figures, per_call["kernels"], per_call["compiled_calls"], ways(per_call["copies"])]


def ways(copies: list[dict] | None) -> list[tuple[str, int]]:
    """None are predicted for an eager step."""
    return sorted((copy["direction"], copy["bytes"]) for copy in copies or ())


def test_the_figures_of_every_stage(runs: dict) -> None:
    kept = json.loads((ROOT / "docs" / "measured" / "xray.json").read_text())["cases"]
    assert [counts(case) for case in runs[""]] == [counts(case) for case in kept]
    cases = [(case["name"], case["stage"], case["script"]) for case in kept]
    assert list(dict.fromkeys(cases)) == [
        (stage.name, stage.folder, stage.file) for stage in STAGES
    ]


def test_the_last_stage_copies_nothing_in_a_step(runs: dict) -> None:
    mine = [case for case in runs[""] if case["name"] == "06_optimized"]
    assert all(case["without_kernel"] == [] for case in mine)
    assert [case["copies"] for case in mine if case["precision"] != "mixed_float16"] == [[]] * 6


def test_a_function_that_was_called(runs: dict) -> None:
    """A row for each signature."""
    first, second = runs["called"]
    assert (first["name"], second["name"]) == ("called(x: float32(5,))", "called(x: float64(5, 2))")
    assert first["without_kernel"] == ["RandomShuffle(T=float32)"]
    assert ways(first["copies"]) == [("device to host", 20), ("host to device", 20)]


def test_a_function_with_a_signature_and_a_loop(runs: dict) -> None:
    (case,) = runs["given"]
    assert (case["kernels"], case["once_a_call"]["kernels"]) == (2, 0)  # of a turn: Sum, AddV2
    assert ways(case["copies"]) == [("host to device", 16)]


def test_a_compiled_function(runs: dict) -> None:
    (case,) = runs["compiled"]
    assert (case["kernels"], case["compiled_calls"]) == (0, 1)
    assert case["without_kernel"] == ["AsString(T=int32) in XLA"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("never", "has no signature"),
        ("plain", "put @tf.function before it"),
        ("missing", "has no function missing"),
        ("raises.py:f", "ModuleNotFoundError"),
    ],
)
def test_a_problem_is_one_line(runs: dict, name: str, part: str) -> None:
    assert part in runs[name] and "\n" not in runs[name]


@pytest.mark.parametrize(
    ("words", "status"),
    [(["07"], 2), (["nowhere.py:f"], 1), (["nowhere.py"], 1), (["06", "--json", "no/x.json"], 1)],
)
def test_a_mistake_is_reported_at_once(words: list[str], status: int) -> None:
    command = [sys.executable, "-m", "tfworkshop", "xray", *words]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (process.returncode, process.stdout) == (status, "")
    assert process.stderr.startswith("workshop: ") and process.stderr.count("\n") == 1
