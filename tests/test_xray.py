"""xray: its figures for every stage, the mistakes that it must find, and a reader's own code."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys

import pytest
from conftest import stage_environment

from tfworkshop.machine import TENSORFLOW_VERSION
from tfworkshop.stages import ROOT, STAGES

# Kernels, compiled calls and copies of a step, by stage, precision and XLA.
BATCH = ["images", "labels"]  # a step's batch, out of tf.data
SEEDS = ["seed", "seed", "key", "counter", "key", "counter"]  # Keras's dropout asks the host
SCALE = ["All", "Equal"]  # float16: LossScaleOptimizer asks the host
WHOLE = ["first", "count"]  # where a whole call is compiled, once a call: its bounds
FIGURES: dict[tuple[str, str, str], tuple] = {
    ("00_baseline", "float32", "off"): (None, None, None),
    ("01_line_profiler", "float32", "off"): (None, None, None),
    ("02_tf_function", "float32", "off"): (217, 0, [*BATCH, *SEEDS, "loss"]),
    ("03_xla", "float32", "on"): (169, 1, [*BATCH, "loss"]),
    ("04_tf_profiler", "float32", "on"): (169, 1, [*BATCH, "loss"]),
    ("04_tf_profiler", "float32", "off"): (217, 0, [*BATCH, *SEEDS, "loss"]),
    ("05_reduced_precision", "float32", "on"): (169, 1, [*BATCH, "loss"]),
    ("05_reduced_precision", "float32", "off"): (217, 0, [*BATCH, *SEEDS, "loss"]),
    ("05_reduced_precision", "mixed_float16", "on"): (199, 1, [*BATCH, *SCALE, "loss"]),
    ("05_reduced_precision", "mixed_float16", "off"): (270, 0, [*BATCH, *SEEDS, *SCALE, "loss"]),
    ("05_reduced_precision", "mixed_bfloat16", "on"): (169, 1, [*BATCH, "loss"]),
    ("05_reduced_precision", "mixed_bfloat16", "off"): (232, 0, [*BATCH, *SEEDS, "loss"]),
    ("06_device", "float32", "on"): (172, 1, []),
    ("06_device", "float32", "off"): (220, 0, SEEDS),
    ("06_device", "float32", "call"): (0, 0, []),
    ("06_device", "mixed_float16", "on"): (202, 1, SCALE),
    ("06_device", "mixed_float16", "off"): (273, 0, [*SEEDS, *SCALE]),
    ("06_device", "mixed_float16", "call"): (0, 0, []),
    ("06_device", "mixed_bfloat16", "on"): (172, 1, []),
    ("06_device", "mixed_bfloat16", "off"): (235, 0, SEEDS),
    ("06_device", "mixed_bfloat16", "call"): (0, 0, []),
    ("06_optimized", "float32", "on"): (16, 1, []),
    ("06_optimized", "float32", "off"): (68, 0, []),
    ("06_optimized", "float32", "call"): (0, 0, []),
    ("06_optimized", "mixed_float16", "on"): (46, 1, SCALE),
    ("06_optimized", "mixed_float16", "off"): (113, 0, SCALE),
    ("06_optimized", "mixed_float16", "call"): (0, 0, []),
    ("06_optimized", "mixed_bfloat16", "on"): (16, 1, []),
    ("06_optimized", "mixed_bfloat16", "off"): (75, 0, []),
    ("06_optimized", "mixed_bfloat16", "call"): (0, 0, []),
}
BYTES = {"images": 64 * 28 * 28 * 4, "labels": 64 * 8, "loss": 4, "losses": 40}
BYTES |= {"seed": 8, "key": 8, "counter": 16, "All": 1, "Equal": 1, "first": 4, "count": 4}

# 06 with a mistake in it, trained in one way.
ONE_WAY = {
    "choices=kinds": 'choices=["mixed_bfloat16"]',
    'choices=["on", "off", "call"]': 'choices=["off"]',
}
MUTANTS = {
    "bytes": {
        "for part in (x_train, y_train)]": "for part in (np.uint8(255 * x_train), y_train)]",
        "return [tf.gather(part, order[i_batch]) for part in data]": (
            "images, labels = (tf.gather(part, order[i_batch]) for part in data)\n"
            "    return tf.cast(images, tf.float32) / 255, labels"
        ),
    },
    "int32": {"y_train.astype(np.int64)": "y_train.astype(np.int32)"},
    "dropout": {"= DeviceDropout(": "= keras.layers.Dropout("},
}

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


@tf.function(input_signature=[tf.TensorSpec([3], tf.float32)])
def pinned(x):
    with tf.device("/cpu:0"):
        y = tf.sin(x)
    return tf.cos(y)


@tf.function(jit_compile=True, input_signature=[tf.TensorSpec([3], tf.int32)])
def compiled(x):
    return tf.strings.as_string(2 * x)


counter = tf.Variable(0.0)


@tf.function
def counts():
    counter.assign_add(1.0)
    tf.print(counter)


counts()


@tf.function
def never(x):
    return x


def plain(x):
    return x
"""

# All that needs TensorFlow, in one process: it prints what each run printed, as JSON.
PROCESS = """\
import contextlib, io, json, logging, signal, sys
from pathlib import Path
from tfworkshop.problem import Problem
from tfworkshop.xray import command

def state():
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return str([signals, logging.getLogger().handlers, logging.getLogger().level, sys.argv])

def run(what):
    out, file = io.StringIO(), folder / "out.json"
    try:
        with contextlib.redirect_stdout(out):
            status = command.run(what, file)
    except Problem as problem:
        return {"problem": str(problem)}
    return {"status": status, "text": out.getvalue(), **json.loads(file.read_text())}

folder, before = Path(sys.argv[1]), state()
runs = {"": run("")}
runs |= {name: run(f"{folder}/own.py:{name}") for name in sys.argv[2].split()}
runs |= {name: run(f"{folder}/{name}.py:f") for name in ("raises", "exits")}
from tfworkshop.xray import predict
for path in sorted(folder.glob("mutants/*.py")):
    runs[path.stem] = list(predict.script(path, folder))
import tensorflow as tf
tf.__version__ = "2.18.0"
runs["version"] = run("02")
runs["state"] = [before, state()]
print(json.dumps(runs))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("xray")
    (folder / "own.py").write_text(OWN)
    (folder / "raises.py").write_text("import no_such_module\n")
    (folder / "exits.py").write_text("import sys\nsys.exit('no data')\n")
    (folder / "mutants").mkdir()
    for name, changes in MUTANTS.items():
        text = (ROOT / "06_optimized" / "train_MNIST.py").read_text()
        for old, new in {**ONE_WAY, **changes}.items():
            assert old in text
            text = text.replace(old, new)
        (folder / "mutants" / f"{name}.py").write_text(text)
    names = "called given pinned compiled counts never plain missing"
    command = [sys.executable, "-c", PROCESS, str(folder), names]
    process = subprocess.run(
        command, cwd=ROOT, env=stage_environment(), capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def short(copy: dict) -> str:
    """A word for a copy: the argument that is copied, or what its cause is about."""
    if copy["from"].startswith("argument "):
        return copy["from"].split()[1]
    words = copy["cause"].replace(",", "").split()
    return next(word for word in words if word in BYTES)


def test_the_figures_of_every_stage(runs: dict) -> None:
    found = {
        (case["name"], case["precision"], case["xla"]): (
            case["kernels"],
            case["compiled_calls"],
            case["copies"] and sorted(map(short, case["copies"])),
        )
        for case in runs[""]["cases"]
    }
    pinned = {
        key: (*counts, sorted(names or ()) or names) for key, (*counts, names) in FIGURES.items()
    }
    assert found == pinned


def test_every_stage_is_there_as_the_ladder_names_it(runs: dict) -> None:
    cases = [(case["name"], case["stage"], case["script"]) for case in runs[""]["cases"]]
    stages = [(stage.name, stage.folder, stage.file) for stage in STAGES]
    assert list(dict.fromkeys(cases)) == stages


def test_no_operation_of_a_stage_is_without_a_kernel(runs: dict) -> None:
    """Nor, where a function is compiled, without one that XLA has for a GPU."""
    graphs = [case for case in runs[""]["cases"] if case["kernels"] is not None]
    assert graphs and not any(case["without_kernel"] for case in graphs)


def test_the_last_stage_copies_nothing_in_a_step(runs: dict) -> None:
    mine = [case for case in runs[""]["cases"] if case["name"] == "06_optimized"]
    for case in mine:
        if case["precision"] != "mixed_float16":
            assert case["copies"] == []
        whole = case["xla"] == "call"
        assert case["once_a_call"]["kernels"] == (not whole)  # puts the losses together
        assert case["once_a_call"]["compiled_calls"] == whole
        names = [short(copy) for copy in case["once_a_call"]["copies"]]
        assert sorted(names) == sorted([*(WHOLE if whole else []), "losses"])
    assert len(mine) == 9


def test_the_bytes_of_a_copy(runs: dict) -> None:
    for case in runs[""]["cases"]:
        for copy in [*(case["copies"] or ()), *case["once_a_call"]["copies"]]:
            assert copy["bytes"] == BYTES[short(copy)], copy
            to_host = short(copy) in ("loss", "losses", "seed", "All", "Equal")
            assert copy["direction"] == ("device to host" if to_host else "host to device")


def test_gathering_bytes_is_found(runs: dict) -> None:
    (case,) = runs["bytes"]
    assert case["without_kernel"] == ["GatherV2(Taxis=int32, Tindices=int64, Tparams=uint8)"]
    assert ("device to host", 60_000 * 28 * 28) in ways(case)  # all images, at every step


def test_int32_labels_are_found(runs: dict) -> None:
    (case,) = runs["int32"]
    assert ways(case) == [("host to device", 60_000 * 4)]
    assert case["copies"][0]["dtype"] == "int32"
    assert case["copies"][0]["cause"].startswith("int32 stays in host memory, GatherV2")


def test_dropout_by_keras_is_found(runs: dict) -> None:
    (case,) = runs["dropout"]
    assert sorted(map(short, case["copies"])) == sorted(SEEDS)


def ways(case: dict) -> list[tuple[str, int]]:
    return [(copy["direction"], copy["bytes"]) for copy in case["copies"]]


def test_what_is_printed(runs: dict) -> None:
    text, words = runs[""]["text"], " ".join(runs[""]["text"].split())
    assert text.splitlines()[0].startswith("xray predicts placement, not time")
    assert max(map(len, text.splitlines())) <= 100
    assert "tf.debugging.set_log_device_placement(True)" in words and "profiler" in words
    assert "00, 01: Eager: each operation is a launch of its own, see 02." in words
    assert "02, 04, 05, 06_device: On a GPU TensorFlow will print" in words
    assert runs[""]["tensorflow"] == TENSORFLOW_VERSION


def test_a_function_that_was_called(runs: dict) -> None:
    """A row for each signature."""
    first, second = runs["called"]["cases"]
    assert (first["name"], second["name"]) == ("called(x: float32(5,))", "called(x: float64(5, 2))")
    assert first["without_kernel"] == ["RandomShuffle(T=float32)"]
    assert ways(first) == [("device to host", 20), ("host to device", 20)]
    assert "called(x: float32(5,))" in runs["called"]["text"]


def test_a_function_with_a_signature_and_a_loop(runs: dict) -> None:
    (case,) = runs["given"]["cases"]
    assert (case["kernels"], case["once_a_call"]["kernels"]) == (2, 0)  # of a turn: Sum, AddV2
    assert ways(case) == [("host to device", 16)]
    assert case["copies"][0]["cause"] == "IteratorGetNext runs on the host"
    assert "for one turn of its loop" in runs["given"]["text"]


def test_a_function_that_says_where(runs: dict) -> None:
    (case,) = runs["pinned"]["cases"]
    assert (case["kernels"], case["without_kernel"]) == (1, [])
    assert ways(case) == [("device to host", 12), ("host to device", 12)]
    assert {copy["cause"] for copy in case["copies"]} == {"Sin runs on the host"}


def test_a_compiled_function(runs: dict) -> None:
    (case,) = runs["compiled"]["cases"]
    assert (case["kernels"], case["compiled_calls"]) == (0, 1)
    assert case["without_kernel"] == ["AsString(T=int32) in XLA"]
    assert ways(case) == [("host to device", 12)]


def test_a_function_that_returns_nothing(runs: dict) -> None:
    (case,) = runs["counts"]["cases"]
    assert (case["kernels"], ways(case)) == (1, [("device to host", 4)])  # the sum; to print it
    assert case["without_kernel"] == ["StringFormat(T=float32)", "PrintV2"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("never", "never was not called while .*own.py was imported .* and has no signature"),
        ("plain", "plain in .*own.py is not a tf.function: put @tf.function before it"),
        ("missing", "own.py has no function missing"),
        ("raises", "raises.py cannot be imported: ModuleNotFoundError: No module named"),
        ("exits", "exits.py cannot be imported: SystemExit: no data"),
        ("version", "of TensorFlow 2.17.1, this is 2.18.0: tfworkshop/xray/dump_registry.py"),
    ],
)
def test_a_problem_is_one_line(runs: dict, name: str, told: str) -> None:
    assert re.search(told, runs[name]["problem"])
    assert "\n" not in runs[name]["problem"]


def test_it_leaves_all_as_it_was(runs: dict) -> None:
    before, after = runs["state"]
    assert before == after


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["07"], 2, "workshop: no stage 07. The stages are 00, 01, 02, 03, 04, 05, 06"),
        (["nowhere.py:f"], 1, "workshop: there is no file nowhere.py"),
        (["nowhere.py"], 1, "workshop: name the function too: ./workshop xray nowhere.py:FUNCTION"),
        (
            ["06", "--json", "no/x.json"],
            1,
            "workshop: cannot write no/x.json: there is no folder no",
        ),
    ],
)
def test_bad_words_are_told_at_once(words: list[str], status: int, told: str) -> None:
    command = [sys.executable, "-m", "tfworkshop", "xray", *words]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (process.returncode, process.stdout, process.stderr.strip()) == (status, "", told)


def test_the_registry_is_of_the_pinned_tensorflow() -> None:
    path = ROOT / "tfworkshop" / "xray" / "registry.json.gz"
    registry = json.loads(gzip.decompress(path.read_bytes()))
    kinds = {kernel[0] for kernels in registry["kernels"].values() for kernel in kernels}
    assert registry["tensorflow"] == TENSORFLOW_VERSION
    assert kinds == {"GPU", "DEFAULT", "XLA_GPU_JIT"}
    assert path.stat().st_size < 25_000
