"""`./workshop report`: TensorBoard's converters as the oracle, real profiles, files, bad input."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle import Oracle, ask_tensorboard
from xspaces import Made

from tfworkshop.problem import Problem
from tfworkshop.report import command as report
from tfworkshop.report import compare, recording, trace
from tfworkshop.report.profile import LABELS, Operation, Profile, Step, Steps
from tfworkshop.report.screenshots import SAMPLE
from tfworkshop.stages import ROOT

GPU_PROFILE = ROOT.parent / "shared" / "data" / "gpu_multi_worker.xplane.pb"
needs_gpu_profile = pytest.mark.skipif(
    not GPU_PROFILE.exists(), reason="the published GPU profile is not here"
)


def only_file(logdir: Path) -> Path:
    (file,) = logdir.rglob("*.xplane.pb")
    return file


def as_json(tmp_path: Path, *paths: Path) -> dict[str, Any]:
    file = tmp_path / "report.json"
    assert report.make(list(paths), {"json": file}) == 0
    return json.loads(file.read_text())


def optimizer_operation(profile: dict[str, Any]) -> dict[str, Any]:
    """Keras 3.15 calls the second Adam of a process adam_1."""
    return next(op for op in profile["operations"] if re.match(r"adam(_\d+)?/", op["name"]))


def record(folder: Path, step: Callable[[int], object], count: int = 6) -> Path:
    """A real profile of a few small steps, made in this process."""
    import tensorflow as tf

    step(0)
    tf.profiler.experimental.start(str(folder))
    for i in range(count):
        with tf.profiler.experimental.Trace("train", step_num=i, _r=1):
            step(i)
    tf.profiler.experimental.stop()
    return folder


# --- the oracle ---


def synchronous_gpu() -> Made:
    """Three steps of 100 µs: data, launches, kernels in 16 and 32 bit."""
    made = Made()
    for i in range(3):
        at = 1000 + 120 * i
        made.step(i, at, 100, _r=1)
        made.host("python", "IteratorGetNext", at + 2, 20)
        for number, start, length, op, shape in (
            (2 * i, at + 36, 20, "d/MatMul:MatMul", "(half[8])"),
            (2 * i + 1, at + 60, 25, "d/Relu:Relu", "(float[8])"),
        ):
            stats = {
                "tf_op": op,
                "shape": shape,
                "kernel_details": "regs:32 grid:4,1,1 block:256,1,1",
            }
            made.host("python", "cuLaunchKernel", start - 8, 4, correlation_id=number)
            made.kernel("k", start, length, correlation_id=number, **stats)
    return made


PARTS = {  # ours, and TensorBoard's column
    "input": "infeedTimeMs",
    "device_compute": "deviceComputeTimeMs",
    "output": "outfeedTimeMs",
    "collectives": "deviceCollectivesTimeMs",
}


def compare_steps(ours: Steps, theirs: Oracle, parts: list[str]) -> None:
    """Ours knows more about the rest, on purpose: launching, compiling, Python inside a call."""
    assert len(theirs.steps) > 0
    expected = {row["stepnum"]: row["stepTimeMs"] for row in theirs.steps}
    same = [step for step in ours.per_step if step.name in expected or len(expected) == 1]
    assert len(same) == len(expected) >= ours.count - 2  # it may leave out the first and the last
    for step, total_ms in zip(same, expected.values()):
        assert step.total_ms == pytest.approx(total_ms, rel=0.01)
    total = sum(step["stepTimeMs"] for step in theirs.steps)
    for part in parts:
        spent = sum(step[PARTS[part]] for step in theirs.steps)
        assert ours.share(part) == pytest.approx(spent / total, abs=0.02), part


@pytest.mark.parametrize("name", ["sample", "stage", "made", "gpu"])
def test_the_figures_are_those_of_tensorboard(name: str, profiled: Path, tmp_path: Path) -> None:
    file = {"sample": SAMPLE, "stage": only_file(profiled), "gpu": GPU_PROFILE}.get(name)
    file = file or synchronous_gpu().write(tmp_path)
    if not file.exists():
        pytest.skip("the published GPU profile is not here")
    theirs, ours = ask_tensorboard(file), report.load(file)[0]
    if name != "made":  # TensorBoard ties no work to its markers
        compare_steps(ours.steps, theirs, ["device_compute"] if name == "gpu" else list(PARTS))
    found = {(op.name, op.type, op.where.title()): op for op in ours.operations}
    for key, (self_us, count) in theirs.operations.items():
        if key[0] != "(null)":
            assert found[key].self_ms * 1e3 == pytest.approx(self_us, rel=0.02, abs=0.1), key
            # It counts an operation again where other threads help with it.
            assert found[key].count <= count <= 2 * found[key].count
    kernels: Counter[str] = Counter()
    for kernel in ours.kernels:
        kernels[kernel.name] += round(kernel.total_ms * 1e6)
    assert kernels == theirs.kernels
    assert (ours.precision["bits16_percent"] or 0) == pytest.approx(theirs.bits16_percent, abs=0.1)
    assert {item.allocator: item.peak_bytes for item in ours.memory} == theirs.peaks


# --- real profiles ---


def test_json_and_terminal(profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made = as_json(tmp_path, profiled)
    steps = made["steps"]
    assert (steps["source"], steps["basis"]) == ("markers", "train")
    assert steps["min_ms"] <= steps["average_ms"] <= steps["max_ms"]
    assert sum(steps["split"].values()) == pytest.approx(steps["average_ms"], rel=0.01)
    assert [step["name"] for step in steps["per_step"]] == [f"train {i}" for i in range(5, 15)]
    assert made["verdict"]["kind"] == "compute-bound"
    assert made["verdict"]["confidence"] == "measured"
    assert {op["mode"] for op in made["operations"]} == {"graph", "tf.data", "XLA"}
    assert optimizer_operation(made)["count"] == 10
    assert sum(op["share"] for op in made["operations"]) == pytest.approx(1)
    (memory,) = made["memory"]
    assert sum(held["total_bytes"] for held in memory["at_peak"]) <= memory["peak_bytes"]
    assert made["precision"] == {"bits16_percent": None, "bits32_percent": None}
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100 and "\x1b" not in shown
    starts = re.findall(r"^(\S+):", shown, re.M)[:4]
    assert starts == ["Compute-bound", "Evidence", "Ceiling", "Next"]
    for step in steps["per_step"]:
        assert re.search(rf" {step['name']} [I#.*]+ ", shown)
    for op in made["operations"][:10]:
        assert op["name"][-20:] in shown


@pytest.mark.both_stacks
def test_slow_input_is_called_so(tmp_path: Path) -> None:
    import tensorflow as tf

    def slow(x: object) -> object:
        time.sleep(0.02)
        return x

    numbers = tf.data.Dataset.range(100)
    slowed = numbers.map(lambda x: tf.ensure_shape(tf.numpy_function(slow, [x], tf.int64), []))
    batches = iter(slowed.batch(1))
    work = tf.function(lambda x: tf.reduce_sum(tf.ones((100, 100)) * tf.cast(x, tf.float32)))
    found = report.load(record(tmp_path, lambda _: work(next(batches)).numpy()))[0]
    assert found.verdict["kind"] == "input-bound"
    assert found.steps.split["input"] > 8  # of each step's 20 ms of sleep
    assert found.causes[0].name == "input" and found.causes[0].factor > 1.5
    assert found.causes[0].gain_ms <= found.steps.split["input"] + 1e-9
    (bottleneck,) = found.input_pipeline
    assert "Map" in bottleneck.iterator and bottleneck.slowest_call_ms > 15


@pytest.mark.both_stacks
def test_eager_steps_and_retracing_are_called_so(tmp_path: Path) -> None:
    import tensorflow as tf

    x = tf.ones((10, 10))

    def eager(_: int) -> None:
        for _ in range(60):
            tf.matmul(x, x)
            sum(range(5000))

    found = report.load(record(tmp_path / "eager", eager))[0]
    assert found.verdict["kind"] == "host-bound" and "02_tf_function" in found.verdict["next"]
    assert {(op.type, op.mode, op.count) for op in found.operations} == {("MatMul", "eager", 360)}

    again = tf.function(lambda x: tf.reduce_sum(x), reduce_retracing=False)
    found = report.load(record(tmp_path / "again", lambda i: again(tf.ones(10 + i))))[0]
    assert found.verdict["kind"] == "compile-bound"
    assert found.steps.share("compilation") > 0.2
    assert [item.traced for item in found.retraced] == [5]


def test_an_empty_window(tmp_path: Path) -> None:
    logs = record(tmp_path / "logs", lambda _: None, 0)
    assert report.load(logs)[0].verdict["kind"] == "unknown"
    assert report.make([logs], {"html": tmp_path / "page.html"}) == 0


@needs_gpu_profile
def test_gpu_profile(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made = as_json(tmp_path, GPU_PROFILE)
    assert (made["device_type"], made["device_count"]) == ("GPU", 8)
    assert made["steps"]["source"] == "device"
    assert made["verdict"]["kind"] == "launch-bound"
    assert made["verdict"]["evidence"].startswith("652 of 664 gaps under 20 µs")
    computed = {d["name"]: d for d in made["devices"] if d["kernels"]}
    assert set(computed) == {"/device:GPU:4", "/device:GPU:6"}
    six = computed["/device:GPU:6"]
    assert six["idle_ms"] == pytest.approx(6.44, abs=0.01)
    assert made["causes"][0]["gain_ms"] == pytest.approx(six["waiting_ms"]["launch"], rel=0.01)
    assert list(made["kinds"]) == ["elementwise", "random numbers"]
    assert len([layer for layer in made["layers"] if layer["name"].startswith("layer_")]) == 24
    assert made["kernels"][1]["short"] == "Eigen TensorConversionOp<half, float>"
    assert made["setup"]["sixteen_bit"] is False
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


# --- finding a profile, several hosts ---


def test_any_folder_around_a_profile_will_do(profiled: Path) -> None:
    file = only_file(profiled)
    for path in (profiled.parent, profiled, profiled / "plugins", file.parent, file):
        assert recording.find(path).files[-1].resolve() == file.resolve()


def test_the_newest_run_is_taken(tmp_path: Path) -> None:
    for year in (2024, 2023):  # the newer one is written first
        folder = tmp_path / "plugins" / "profile" / f"{year}_01_01_00_00_00"
        folder.mkdir(parents=True)
        Made().step(year, 0, 10).write(folder)
    assert report.load(tmp_path)[0].run == "2024_01_01_00_00_00"


def test_ranks_that_recorded_into_folders_of_their_own(tmp_path: Path) -> None:
    for folder in (tmp_path / "plugins", tmp_path / "1" / "plugins"):
        folder.mkdir(parents=True)
        Made("node").step(0, 0, 10).write(folder, "node")
    hosts, _ = recording.read(recording.find(tmp_path, ranks=True))
    assert sorted(host.name for host in hosts) == ["node rank 0", "node rank 1"]


# --- bad input, output files ---


def test_bad_input(tmp_path: Path) -> None:
    cut, empty, both = (tmp_path / name for name in ("cut.xplane.pb", "0.xplane.pb", "both.json"))
    cut.write_bytes(SAMPLE.read_bytes()[:-1000])
    empty.touch()
    (tmp_path / "hollow").mkdir()
    cases: list[tuple[list[Path], dict[str, Path], str]] = [
        ([tmp_path / "nope"], {}, "no such folder"),
        ([tmp_path / "hollow"], {}, "no profile"),
        ([ROOT / "README.md"], {}, "is not a profile"),
        ([cut], {}, "is not a profile, or not a whole one"),
        ([empty], {}, "is empty"),
        ([SAMPLE, tmp_path / "nope"], {}, "no such folder"),
        ([SAMPLE], {"html": tmp_path / "there" / "page.html"}, "there is no folder"),
        ([SAMPLE], {"html": tmp_path / "page.txt"}, "must end in .html"),
        ([SAMPLE], {"html": Path("-")}, "only --json"),
        ([SAMPLE], {"json": both, "trace": both}, "named for two outputs"),
        ([SAMPLE, SAMPLE], {"trace": tmp_path / "x.json.gz"}, "one profile"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for paths, files, message in cases:
        with pytest.raises(Problem, match=message):
            report.make(paths, files)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_broken_file_beside_a_good_one(tmp_path: Path) -> None:
    good = Made().step(0, 0, 10).host("python", "x", 1, 5).write(tmp_path).read_bytes()
    (tmp_path / "broken.xplane.pb").write_bytes(good[:-5])
    found = report.load(tmp_path)[0]
    assert found.steps.count == 1 and "broken.xplane.pb is not a profile" in found.notes[0]


def test_json_to_stdout_is_json_and_nothing_else(capfd: pytest.CaptureFixture) -> None:
    assert report.make([SAMPLE], {"json": Path("-")}) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["steps"]["count"] == 5 and err == ""


# --- two profiles ---


def made_steps(*times: float, **split: float) -> Steps:
    """Steps of these times, each with the same split."""
    whole = {**dict.fromkeys(LABELS, 0.0), **split}
    return Steps.of([Step(f"train {i}", time, whole) for i, time in enumerate(times)])


def made_up(steps: Steps) -> Profile:
    profile = Profile("made up", "/nowhere", ["host"])
    profile.steps = steps
    return profile


def operation(name: str, self_ms: float, count: int = 10) -> Operation:
    return Operation(name, "MatMul", "host", "graph", count, self_ms, 0.5)


def test_comparison_counts_by_the_step() -> None:
    a = made_up(made_steps(*[100] * 10, host_compute=90, other=10))
    b = made_up(made_steps(*[50] * 2, host_compute=40, other=10))
    a.operations = [operation("same", 100), operation("faster", 300, 40), operation("gone", 20)]
    b.operations = [operation("same", 20, 2), operation("faster", 10, 2), operation("new", 14)]
    found = compare.compare(a, b)
    assert found.per_step
    rows = [(op.name, op.a_ms, op.b_ms, op.difference_ms) for op in found.operations]
    assert rows == [
        ("faster", 30, 5, -25),
        ("new", None, 7, 7),
        ("gone", 2, None, -2),
        ("same", 10, 10, 0),
    ]
    assert next((part.name, part.difference_ms) for part in found.split) == ("Host compute", -50)


@pytest.mark.parametrize(
    ("a", "b", "start"),
    [
        ((80, 81, 82, 83), (40, 41, 42, 43), "B is 1.96 times as fast"),
        ((40, 45, 90, 400), (42, 48, 95, 100), "No clear difference between A and B"),
        ((80, 200), (40, 41), "B is 3.46 times as fast"),  # too few to know their spread
        ((40, 40), (80, 80), "B is slower than A, 2.00 times the time"),
        ((40, 40), (), "B has no step time"),
    ],
)
def test_the_sentence_of_a_comparison(a: tuple[float], b: tuple[float], start: str) -> None:
    sides = [made_up(made_steps(*times)) for times in (a, b)]
    assert compare.sentence(*sides).startswith(start)


def test_a_profile_compared_with_itself(tmp_path: Path) -> None:
    made = as_json(tmp_path, SAMPLE, SAMPLE)
    assert set(made) == {"a", "b", "comparison"}
    assert {op["difference_ms"] for op in made["comparison"]["operations"]} == {0}


# --- the trace file, the timeline, speed ---


def test_trace_file(profiled: Path, tmp_path: Path) -> None:
    """What Perfetto and chrome://tracing read: complete events on named threads."""
    file = tmp_path / "trace.json.gz"
    assert report.make([profiled], {"trace": file}) == 0
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    named = [e for e in events if e["name"] == "thread_name"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in named}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"} <= set(threads)
    steps = [e for e in events if e["name"].startswith("train ")]
    assert [e["name"] for e in steps] == [f"train {i}" for i in range(5, 15)]
    assert all(threads[e["pid"], e["tid"]] == "python" for e in steps)


def test_timeline_keeps_the_longest_events(profiled: Path) -> None:
    _, hosts = report.load(profiled)
    whole, part = trace.timeline(hosts), trace.timeline(hosts, most=500)
    assert whole["left_out"] == 0 and whole["events"] > 2000
    assert part["events"] + part["left_out"] == whole["events"]
    assert 500 <= part["events"] < 600  # those as long as the 500th stay too
    assert [step[0] for step in part["steps"]] == [f"train {i}" for i in range(5, 15)]


def cpu_seconds(path: Path) -> float:
    """CPU time of a whole report, Python's start included; TensorFlow must not be loaded."""
    code = "import sys, time; from pathlib import Path; from tfworkshop.report import command; "
    code += f"command.make([Path({str(path)!r})], {{}}); assert 'tensorflow' not in sys.modules; "
    code += "print(time.process_time(), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return float(ran.stderr)


def test_it_is_quick(profiled: Path, tmp_path: Path) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    assert cpu_seconds(profiled) < 1.3  # on a busy machine, too; 0.7 on an idle one
    if GPU_PROFILE.exists():
        assert cpu_seconds(GPU_PROFILE) < 2
    space = xplane_pb2.XSpace.FromString(only_file(profiled).read_bytes())
    lines = [line for plane in space.planes for line in plane.lines]
    event_bytes = sum(line.ByteSize() for line in lines)
    for line in lines:
        line.events.extend(list(line.events) * (30_000_000 // event_bytes))
    large = tmp_path / "large.xplane.pb"
    large.write_bytes(space.SerializeToString())
    assert large.stat().st_size > 25_000_000
    assert cpu_seconds(large) < 6
