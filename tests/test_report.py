"""`./workshop report`: finding a profile, its figures, the verdict, the files, bad input."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tfworkshop.files import save
from tfworkshop.problem import Problem
from tfworkshop.report import command as report
from tfworkshop.report import compare, profile, text, trace, verdict
from tfworkshop.report.figures import ms
from tfworkshop.report.profile import LABELS, Kernel, Operation, Profile, Retraced, Step, Steps
from tfworkshop.stages import ROOT, STAGES

GPU_PROFILE = ROOT.parent / "shared" / "data" / "gpu_multi_worker.xplane.pb"
needs_gpu_profile = pytest.mark.skipif(
    not GPU_PROFILE.exists(), reason="the published GPU profile is not here"
)
KEYS = {
    *("run", "hosts", "device_type", "steps", "verdict", "operations", "kernels", "precision"),
    *("memory", "input_pipeline", "missing", "devices", "host_steps", "layers", "retraced"),
}


def only_file(logdir: Path) -> Path:
    (file,) = logdir.rglob("*.xplane.pb")
    return file


def as_json(tmp_path: Path, *paths: Path) -> dict:
    file = tmp_path / "report.json"
    assert report.make(list(paths), {"json": file}) == 0
    return json.loads(file.read_text())


def record(
    folder: Path, step: Callable[[int], object], steps: int = 6, marked: bool = True
) -> Path:
    """A real profile of a few small steps, made in this process."""
    import tensorflow as tf

    step(0)
    tf.profiler.experimental.start(str(folder))
    for i in range(steps):
        if marked:
            with tf.profiler.experimental.Trace("train", step_num=i, _r=1):
                step(i)
        else:
            step(i)
    tf.profiler.experimental.stop()
    return folder


@pytest.fixture(scope="module")
def unmarked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile without step markers."""
    import tensorflow as tf

    double = tf.function(lambda x: tf.matmul(x, x))
    matrix = tf.ones((200, 200))
    folder = tmp_path_factory.mktemp("unmarked")
    return record(folder, lambda _: double(matrix).numpy(), marked=False)


# --- a real profile ---


def test_the_figures_are_those_of_tensorflow(profiled: Path, tmp_path: Path) -> None:
    from tensorboard_plugin_profile.convert.raw_to_tool_data import (
        xspace_to_tools_data_from_byte_string,
    )

    made = as_json(tmp_path, profiled)
    file = only_file(profiled)
    files = [file.read_bytes()], [file.name]
    table = json.loads(xspace_to_tools_data_from_byte_string(*files, "overview_page^", {})[0])
    steps = next(part for part in table if part["cols"][0]["id"] == "stepnum")
    average = float(steps["p"]["steptime_ms_average"])
    assert made["steps"]["average_ms"] == pytest.approx(average, abs=0.06)
    assert len(steps["rows"]) == made["steps"]["count"] == 10
    columns = [column["id"] for column in steps["cols"]]
    for row, step in zip(steps["rows"], made["steps"]["per_step"]):
        cells = dict(zip(columns, (cell["v"] for cell in row["c"])))
        assert cells["stepnum"] == step["name"]
        assert cells["stepTimeMs"] == pytest.approx(step["total_ms"])
        assert cells["infeedTimeMs"] == pytest.approx(step["split"]["input"])
        assert cells["hostComputeTimeMs"] == pytest.approx(step["split"]["host_compute"])
        assert cells["otherTimeMs"] == pytest.approx(step["split"]["other"])


def test_json_has_what_tools_need(profiled: Path, tmp_path: Path) -> None:
    made = as_json(tmp_path, profiled)
    assert set(made) >= KEYS
    steps = made["steps"]
    assert steps["min_ms"] <= steps["average_ms"] <= steps["max_ms"]
    assert set(steps["split"]) == set(LABELS)
    assert sum(steps["split"].values()) == pytest.approx(steps["average_ms"], rel=0.01)
    assert [step["name"] for step in steps["per_step"]] == [f"train {i}" for i in range(5, 15)]
    assert made["device_type"] == "CPU"
    assert made["verdict"]["kind"] == "compute-bound"
    assert {op["where"] for op in made["operations"]} == {"host"}
    assert {op["mode"] for op in made["operations"]} == {"graph", "tf.data"}
    assert next(op["count"] for op in made["operations"] if op["name"].startswith("adam/")) == 10
    times = [op["self_ms"] for op in made["operations"]]
    assert times == sorted(times, reverse=True)
    assert sum(op["share"] for op in made["operations"]) == pytest.approx(1)
    (memory,) = made["memory"]["allocators"]
    assert memory["peak_bytes"] == made["memory"]["peak_bytes"] > 1e6
    assert max(point[1] for point in memory["curve"]) == memory["peak_bytes"]
    assert made["precision"] == {"bits16_percent": None, "bits32_percent": None}
    assert any("GPU kernels" in line for line in made["missing"])


def test_nothing_is_written_beside_the_profile(profiled: Path, tmp_path: Path) -> None:
    before = sorted(profiled.rglob("*"))
    as_json(tmp_path, profiled)
    assert sorted(profiled.rglob("*")) == before


def test_the_terminal_view(profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made = as_json(tmp_path, profiled)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown
    assert made["verdict"]["sentence"] in " ".join(shown.split())
    assert f"Step time: {ms(made['steps']['average_ms'])} ms, the mean of 10" in shown
    for step in made["steps"]["per_step"]:
        time_told = re.escape(ms(step["total_ms"]))
        assert re.search(rf" {step['name']} [I#.]+ {time_told}$", shown, re.M)
    for op in made["operations"][:10]:
        assert re.search(rf"{ms(op['self_ms'])} .*{re.escape(op['name'][-20:])}", shown)
    assert "XLA on a CPU are in no table" in shown  # stage 04 compiles with XLA


def test_a_pipe_that_closes_early(profiled: Path, tmp_path: Path) -> None:
    """`| head -n 1`: quiet, and the file is there all the same."""
    file = tmp_path / "report.json"
    command = f"{sys.executable} -m tfworkshop report {profiled} --json {file} | head -n 1"
    ran = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout.count("\n") == 1
    assert ran.stderr == ""
    assert json.loads(file.read_text())["steps"]["count"] == 10


def test_colour_on_a_terminal_only(profiled: Path, capsys: pytest.CaptureFixture) -> None:
    from rich.console import Console

    found, _ = report.load(profiled)
    console = Console(force_terminal=True, color_system="truecolor", width=100)
    text.show(found, console)
    shown = capsys.readouterr().out
    assert "\x1b[38;2;61;126;166m█" in shown  # host compute, in its colour
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert max(map(len, plain.splitlines())) <= 100


# --- other profiles ---


def test_without_markers(unmarked: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made = as_json(tmp_path, unmarked)
    assert made["steps"]["count"] == 0 and made["steps"]["average_ms"] is None
    assert made["verdict"]["kind"] == "unknown"
    assert "step_num=step" in made["verdict"]["next"]
    assert any(op["type"].endswith("MatMul") for op in made["operations"])
    assert "Step time: not known" in capsys.readouterr().out


def test_slow_input_is_called_so(tmp_path: Path) -> None:
    import tensorflow as tf

    def slow(x: object) -> object:
        time.sleep(0.02)
        return x

    batches = tf.data.Dataset.range(100).map(
        lambda x: tf.ensure_shape(tf.numpy_function(slow, [x], tf.int64), [])
    )
    batches = iter(batches.batch(1))
    work = tf.function(lambda x: tf.reduce_sum(tf.ones((100, 100)) * tf.cast(x, tf.float32)))
    made = as_json(tmp_path, record(tmp_path / "logs", lambda _: work(next(batches)).numpy()))
    assert made["verdict"]["kind"] == "input-bound"
    assert made["steps"]["split"]["input"] > 8  # of each step's 20 ms of sleep
    assert "01_line_profiler" in made["verdict"]["next"]
    (bottleneck,) = made["input_pipeline"]["bottlenecks"]
    assert "Map" in bottleneck["iterator"] and bottleneck["slowest_call_ms"] > 15
    assert "<a" not in bottleneck["suggestion"]


def test_python_in_the_way_is_called_so(tmp_path: Path) -> None:
    import tensorflow as tf

    x = tf.ones((10, 10))

    def eager(_: int) -> None:
        for _ in range(60):
            tf.matmul(x, x)
            sum(range(5000))

    made = as_json(tmp_path, record(tmp_path / "logs", eager))
    assert made["verdict"]["kind"] == "host-bound"
    assert "60 operations a step" in made["verdict"]["sentence"]
    assert "02_tf_function" in made["verdict"]["next"]
    assert any("eager" in note for note in made["notes"])


def test_steps_in_one_graph(tmp_path: Path) -> None:
    """As stage 06 does it: markers are there, but no step times."""
    import tensorflow as tf

    @tf.function
    def many(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(20):
            x = tf.matmul(x, x) / 100.0
        return x

    x = tf.ones((64, 64))
    made = as_json(tmp_path, record(tmp_path / "logs", lambda _: many(x).numpy(), steps=3))
    assert made["verdict"]["kind"] == "unknown"
    assert "3 step markers" in made["verdict"]["sentence"]
    assert made["operations"]


def test_an_empty_window(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """start() and stop() with nothing between: there is nothing to show, and that is said."""
    made = as_json(tmp_path, record(tmp_path / "logs", lambda _: None, steps=0))
    assert made["operations"] == [] and made["verdict"]["kind"] == "unknown"
    assert "No operations recorded." in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert report.make([tmp_path / "logs"], {"html": page}) == 0 and page.exists()


def test_several_hosts(profiled: Path, tmp_path: Path) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    data = only_file(profiled).read_bytes()
    for name in ("first:1", "second:2"):
        space = xplane_pb2.XSpace.FromString(data)
        space.hostnames[:] = [name]
        (tmp_path / f"{name.replace(':', '_')}.xplane.pb").write_bytes(space.SerializeToString())
    made = as_json(tmp_path, tmp_path)
    assert made["hosts"] == ["first:1", "second:2"]
    assert {item["host"] for item in made["memory"]["allocators"]} == {"first:1", "second:2"}
    events = tmp_path / "trace.json"
    assert report.make([tmp_path], {"trace": events}) == 0
    names = {e["args"]["name"] for e in named(events.read_text(), "process_name")}
    assert names == {"first:1 /host:CPU", "second:2 /host:CPU"}


@needs_gpu_profile
def test_gpu_profile(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    before = sorted(GPU_PROFILE.parent.iterdir())
    made = as_json(tmp_path, GPU_PROFILE)
    assert sorted(GPU_PROFILE.parent.iterdir()) == before
    assert (made["device_type"], made["device_count"]) == ("GPU", 8)
    assert made["precision"]["bits16_percent"] == pytest.approx(30.47, abs=0.01)
    assert made["steps"]["split"]["device_compute"] == pytest.approx(14.876, abs=0.001)
    assert made["verdict"]["kind"] == "launch-bound"
    assert made["verdict"]["evidence"].startswith("652 of 664 gaps under 20 µs; the executor")
    computed = {d["name"]: d for d in made["devices"] if d["kernels"]}
    assert set(computed) == {"/device:GPU:4", "/device:GPU:6"}
    six = computed["/device:GPU:6"]
    assert six["idle_ms"] == pytest.approx(6.44, abs=0.01)
    assert six["waiting_ms"]["launch"] == pytest.approx(5.92, abs=0.05)
    notes = " ".join(made["notes"])
    assert "Only one step was recorded" in notes and "GPU:1 only copies" in notes
    assert "GPU:0, GPU:2, GPU:3, GPU:5, GPU:7 recorded nothing" in notes
    assert list(made["kinds"]) == ["elementwise", "random numbers"]
    layers = [layer["name"] for layer in made["layers"]]
    assert len([name for name in layers if name.startswith("layer_")]) >= 20
    kernel, short = made["kernels"][0], "UniformDistribution<PhiloxRandom, half>"
    assert kernel["short"] == f"FillPhiloxRandomKernelLaunch<{short}>"
    assert kernel["count"] == 194 and not kernel["tensor_core_used"]
    assert made["kernels"][1]["short"] == "Eigen TensorConversionOp<half, float>"
    assert len(made["memory"]["allocators"]) == 4
    lanes = trace.timeline(report.load(GPU_PROFILE)[1])
    assert made["kernels"][1]["short"] in lanes["strings"]
    assert "/device:GPU:4" in [process["name"] for process in lanes["processes"]]
    shown = capsys.readouterr().out
    assert "16 bit 30.5 %" in shown
    first = shown.splitlines()[:3]  # the verdict, its evidence, what to try
    for line, start in zip(first, ("Launch-bound: GPU:6", "Evidence: 652 of 664", "Next: Fewer")):
        assert line.startswith(start)
    assert max(map(len, shown.splitlines())) <= 100


def test_a_device_comes_before_its_host(capsys: pytest.CaptureFixture) -> None:
    """Long names and large counts leave the table within 100 columns."""
    from rich.console import Console

    found = made_up({"device_compute": 90, "other": 10}, bits32=40)
    found.verdict = verdict.judge(found)
    name = "a/very/long/scope" * 9
    found.operations = [
        Operation(name, "Conv2DBackpropFilter" * 3, where, "graph", 1_234_567, 98_765.4, 1, 0)
        for where in ("host", "device")
    ]
    figures = 1_234_567, 98_765, 12.3, 1, 1, 0.5
    found.kernels = [
        Kernel("k" * 200, "k" * 200, name, *figures, True, used, 1, 1, [], [])
        for used in (True, False)
    ]
    text.show(found, Console(width=100))
    shown = capsys.readouterr().out
    assert shown.index("operations on the device") < shown.index("operations on the host")
    assert max(map(len, shown.splitlines())) <= 100
    for figure in ("98,765", "1,234,567", "100.0 %", " used ", " eligible ", "16 bit 60.0 %"):
        assert figure in shown


# --- the verdict ---

TABLE = [  # the split of a step of 100 ms, 32-bit share, what it is called, a stage that helps
    ({"host_compute": 97, "other": 2, "input": 1}, None, "compute-bound", "03_xla"),
    ({"host_compute": 60, "input": 40}, None, "input-bound", "01_line_profiler"),
    ({"host_compute": 81, "input": 19}, None, "compute-bound", "03_xla"),
    ({"host_compute": 60, "other": 40}, None, "host-bound", "01_line_profiler"),
    ({"host_compute": 50, "other": 24, "input": 26}, None, "input-bound", "04_tf_profiler"),
    ({"device_compute": 90, "other": 10}, 100, "compute-bound", "05_reduced_precision"),
    ({"device_compute": 90, "other": 10}, 8, "compute-bound", "03_xla"),
    ({"device_compute": 80, "kernel_launch": 20}, 100, "launch-bound", "06_optimized"),
    ({"device_compute": 50, "host_compute": 50}, 100, "launch-bound", "02_tf_function"),
    ({"device_compute": 70, "collectives": 30}, 100, "communication-bound", "larger batch"),
    ({"device_compute": 30, "compilation": 70}, 100, "compile-bound", "--profile-steps"),
    ({"device_compute": 40, "other": 60}, 100, "host-bound", "06_optimized"),
]


def made_steps(*times: float, **split: float) -> Steps:
    """Steps of these times, each with the same split."""
    whole = {**dict.fromkeys(LABELS, 0.0), **split}
    return Steps.of([Step(f"train {i}", time, whole) for i, time in enumerate(times)])


def made_up(split: dict[str, float], bits32: float | None = None, steps: int = 2) -> Profile:
    found = Profile("made up", "/nowhere", [], ["host"], "GPU", 1)
    found.steps = made_steps(*[sum(split.values())] * steps, **split)
    bits16 = None if bits32 is None else 100 - bits32
    found.precision = {"bits16_percent": bits16, "bits32_percent": bits32}
    found.memory = {"peak_bytes": None, "allocators": []}
    return found


@pytest.mark.parametrize(("split", "bits32", "kind", "helps"), TABLE)
def test_verdict(split: dict[str, float], bits32: float | None, kind: str, helps: str) -> None:
    found = verdict.judge(made_up(split, bits32))
    assert found["kind"] == kind
    assert helps in found["next"]


def test_traced_at_every_step_is_compiling_whatever_the_split_says() -> None:
    found = made_up({"host_compute": 99, "other": 1}, steps=10)
    found.retraced = [Retraced("inner", 10, 10, 1), Retraced("train_step", 10, 10, 20)]
    told = verdict.judge(found)
    assert told["kind"] == "compile-bound" and "train_step is traced again" in told["sentence"]
    found.retraced = [Retraced("train_step", 10, 1, 2)]  # once is no habit
    assert verdict.judge(found)["kind"] == "compute-bound"


@pytest.mark.parametrize(("mode", "helps"), [("graph", "01_line"), ("eager", "Make the step one")])
def test_a_graph_is_not_told_to_become_one(mode: str, helps: str) -> None:
    found = made_up({"host_compute": 60, "other": 40})
    found.eager_calls = 2 * verdict.MANY_CALLS
    found.operations = [Operation("conv", "Conv2D", "host", mode, 2, 50.0, 1.0, None)]
    assert helps in verdict.judge(found)["next"]


@pytest.mark.parametrize(
    ("a", "b", "told"),
    [
        ((80, 81, 82, 83), (40, 41, 42, 43), "B is 1.96 times as fast"),
        ((40, 45, 90, 400), (42, 48, 95, 100), "No clear difference between A and B"),
        ((80, 200), (40, 41), "B is 3.46 times as fast"),  # too few to know their spread
    ],
)
def test_steps_that_overlap_are_no_difference(a: tuple, b: tuple, told: str) -> None:
    sides = [made_up({}) for _ in "ab"]
    for side, times in zip(sides, (a, b)):
        side.steps = made_steps(*times)
    assert compare.sentence(*sides).startswith(told)


def test_every_stage_that_a_verdict_names_is_there() -> None:
    cases = [verdict.judge(made_up(split, bits)) for split, bits, _, _ in TABLE]
    cases += [verdict.judge(made_up({}, steps=0)), verdict.judge(made_up({}, steps=0), markers=3)]
    named = {name for case in cases for name in re.findall(r"\b0\d_\w+", case["next"])}
    assert named <= {stage.folder for stage in STAGES}
    assert len(named) >= 5


def test_verdict_agrees_with_tensorflow_where_it_says_input(tmp_path: Path, profiled: Path) -> None:
    statement = as_json(tmp_path, profiled)["input_pipeline"]["statement"]
    assert "NOT input-bound" in statement


# --- finding a profile ---


def test_any_folder_around_a_profile_will_do(profiled: Path, tmp_path: Path) -> None:
    file = only_file(profiled)
    for path in (profiled.parent, profiled, profiled / "plugins", file.parent, file):
        assert profile.find(path).files[-1].resolve() == file.resolve()
    moved = tmp_path / "renamed.xplane.pb"
    moved.write_bytes(file.read_bytes())
    assert as_json(tmp_path, moved)["steps"]["count"] == 10  # the name need not be the host's
    assert as_json(tmp_path, moved)["run"] == "renamed"


def test_the_newest_run_is_taken_and_that_is_said(
    profiled: Path, unmarked: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    old, new = (tmp_path / "plugins" / "profile" / f"{y}_01_01_00_00_00" for y in (2023, 2024))
    for folder, source in ((new, profiled), (old, unmarked)):  # the newer one is written first
        folder.mkdir(parents=True)
        (folder / "host.xplane.pb").write_bytes(only_file(source).read_bytes())
    assert as_json(tmp_path, tmp_path)["run"] == "2024_01_01_00_00_00"
    assert "newest of the 2 runs" in " ".join(capsys.readouterr().out.split())


# --- bad input ---


def bad_inputs(tmp_path: Path, file: Path) -> dict[str, tuple[list, dict, str]]:
    garbage, short, empty = (tmp_path / f"{name}.xplane.pb" for name in ("garbage", "cut", "empty"))
    garbage.write_bytes(os.urandom(3000))
    short.write_bytes(file.read_bytes()[:-1000])
    empty.touch()
    hollow, there, pipe = (tmp_path / name for name in ("hollow", "there", "pipe"))
    hollow.mkdir()
    os.mkfifo(pipe)
    return {
        "missing": ([tmp_path / "nope"], {}, "no such folder"),
        "hollow": ([hollow], {}, "no profile"),
        "text": ([ROOT / "README.md"], {}, "is not a profile"),
        "garbage": ([garbage], {}, "is not a profile, or not a whole one"),
        "cut": ([short], {}, "is not a profile, or not a whole one"),
        "empty": ([empty], {}, "is empty"),
        "second": ([file, tmp_path / "nope"], {}, "no such folder"),
        "html": ([file], {"html": there / "page.html"}, "there is no folder"),
        "json": ([file], {"json": there / "report.json"}, "there is no folder"),
        "folder": ([file], {"trace": hollow}, "is a folder"),
        "pipe": ([file], {"html": pipe}, "is not a file"),
        "trace of two": ([file, file], {"trace": tmp_path / "x.json.gz"}, "one profile"),
    }


def test_bad_input(profiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name, (paths, files, message) in bad_inputs(tmp_path, only_file(profiled)).items():
        before = sorted(tmp_path.rglob("*"))
        assert report.make(paths, files) == 1, name
        out, err = capsys.readouterr()
        assert out == "", name
        assert err.startswith("workshop: ") and err.count("\n") == 1 and message in err, name
        assert sorted(tmp_path.rglob("*")) == before, name


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """The page is written elsewhere first, and what was there stays."""
    page = tmp_path / "page.html"
    page.write_text("before")

    def half(part: Path) -> None:
        part.write_text("half a pa")
        Path("/dev/full").write_text("ge")

    with pytest.raises(Problem, match="No space left"):
        save(page, half)
    assert page.read_text() == "before" and list(tmp_path.iterdir()) == [page]


def test_an_unwritable_folder(profiled: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(Problem, match="not writable"):
        report.check_writable(tmp_path / "page.html")


def test_ctrl_c_is_quiet(profiled: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tfworkshop", "report", str(profiled)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    maps = Path(f"/proc/{process.pid}/maps")
    while "libtensorflow" not in maps.read_text():  # while TensorFlow is imported
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "workshop: interrupted"


def test_help_is_there() -> None:
    ran = subprocess.run(
        [sys.executable, "workshop", "report", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0
    for word in ("logdir", "--html", "--json", "--trace"):
        assert word in ran.stdout


# --- two profiles ---


def operation(name: str, self_ms: float, count: int = 10) -> Operation:
    return Operation(name, "MatMul", "host", "graph", count, self_ms, 0.5, None)


def test_comparison_counts_by_the_step() -> None:
    a = made_up({"host_compute": 90, "other": 10}, steps=10)
    b = made_up({"host_compute": 40, "other": 10}, steps=2)
    a.operations = [operation("same", 100), operation("faster", 300), operation("gone", 20)]
    b.operations = [operation("same", 20), operation("faster", 10), operation("new", 14)]
    found = compare.compare(a, b)
    assert found.per_step
    assert found.sentence == "B is 2.00 times as fast as A: 50.0 ms a step against 100.0 ms."
    rows = [(op.name, op.a_ms, op.b_ms, op.difference_ms) for op in found.operations]
    assert rows == [
        ("faster", 30, 5, -25),
        ("new", None, 7, 7),
        ("gone", 2, None, -2),
        ("same", 10, 10, 0),
    ]
    assert [(part.name, part.difference_ms) for part in found.split] == [
        ("Host compute", -50),
        ("All others", 0),
    ]
    slower = compare.compare(b, a).sentence
    assert slower == "B is slower than A, 2.00 times the time: 100.0 ms a step against 50.0 ms."


def test_comparison_without_steps_is_of_totals(
    profiled: Path, unmarked: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    made = as_json(tmp_path, profiled, unmarked)
    assert set(made) == {"a", "b", "comparison"}
    assert set(made["a"]) >= KEYS and set(made["b"]) >= KEYS
    assert made["comparison"]["per_step"] is False
    assert made["comparison"]["sentence"].startswith("B has no step time")
    changes = [abs(op["difference_ms"]) for op in made["comparison"]["operations"]]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0
    shown = capsys.readouterr().out
    assert "Operations, ms in all, sorted by the difference" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_profile_against_itself(profiled: Path, tmp_path: Path) -> None:
    made = as_json(tmp_path, profiled, profiled)["comparison"]
    assert made["sentence"].startswith("B is as fast as A")
    assert {op["difference_ms"] for op in made["operations"]} == {0}


# --- the trace file ---


def named(text: str, what: str) -> list[dict]:
    return [e for e in json.loads(text)["traceEvents"] if e["ph"] == "M" and e["name"] == what]


def test_trace_file(profiled: Path, tmp_path: Path) -> None:
    """What Perfetto and chrome://tracing read: complete events on named threads."""
    file = tmp_path / "trace.json.gz"
    assert report.make([profiled], {"trace": file}) == 0
    text = gzip.decompress(file.read_bytes()).decode()
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in named(text, "thread_name")}
    assert "python" in threads.values()
    assert any(name.startswith("tf_Compute") for name in threads.values())
    assert [e["args"]["name"] for e in named(text, "process_name")] == ["/host:CPU"]
    events = [e for e in json.loads(text)["traceEvents"] if e["ph"] != "M"]
    assert {(e["pid"], e["tid"]) for e in events} <= set(threads)
    assert {e["ph"] for e in events} <= {"X", "i"}
    assert all(e["dur"] > 0 for e in events if e["ph"] == "X")
    steps = [e for e in events if e["name"].startswith("train ")]
    assert [e["name"] for e in steps] == [f"train {i}" for i in range(5, 15)]
    assert all(threads[e["pid"], e["tid"]] == "python" for e in steps)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_may_replace_a_trace(profiled: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    for _ in range(2):
        assert report.make([profiled], {"trace": file}) == 0
    file.write_text("something else")
    assert report.make([profiled], {"trace": file}) == 1


def test_timeline_keeps_the_longest_events(profiled: Path) -> None:
    _, hosts = report.load(profiled)
    whole, part = trace.timeline(hosts), trace.timeline(hosts, most=500)
    assert whole["left_out"] == 0 and whole["events"] > 2000
    assert part["events"] + part["left_out"] == whole["events"]
    assert 500 <= part["events"] < 600  # those as long as the 500th stay too
    assert [step[0] for step in part["steps"]] == [f"train {i}" for i in range(5, 15)]
    for process in whole["processes"]:
        for lane in process["lanes"]:
            for starts, lengths, *_ in lane["rows"]:
                gaps = [start - length for start, length in zip(starts[1:], lengths)]
                assert min(gaps, default=0) >= -1  # nothing in a row overlaps, but for rounding


# --- speed ---


def seconds_for_all_files(path: Path, folder: Path) -> float:
    report.load(path)  # TensorFlow's import does not count
    files = {kind: folder / f"report.{kind}" for kind in ("html", "json", "trace")}
    started = time.process_time()
    assert report.make([path], files) == 0
    return time.process_time() - started


def test_it_is_quick(profiled: Path, tmp_path: Path) -> None:
    assert only_file(profiled).stat().st_size > 500_000
    assert seconds_for_all_files(profiled, tmp_path) < 3


@needs_gpu_profile
def test_the_gpu_profile_is_quick(tmp_path: Path) -> None:
    assert seconds_for_all_files(GPU_PROFILE, tmp_path) < 5
