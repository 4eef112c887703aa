"""What the report reads from the events themselves: made-up profiles with known answers."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from test_report import (
    GPU_PROFILE,
    as_json,
    made_steps,
    made_up,
    needs_gpu_profile,
    only_file,
    operation,
)
from xspaces import Made, many_events

from tfworkshop.problem import Problem
from tfworkshop.report import (
    command,
    compare,
    events,
    gaps,
    horovod_timeline,
    intervals,
    layers,
    memory,
    profile,
    recording,
    tables,
    trace,
    verdict,
    xspace,
)
from tfworkshop.report.intervals import NONE
from tfworkshop.report.screenshots import SAMPLE
from tfworkshop.stages import ROOT

TIMELINE = ROOT / "06_optimized" / "timeline_2_ranks.json.gz"


def read(made: Made) -> recording.Host:
    space = xspace.read(made.space.SerializeToString())
    return recording.Host(space.hosts[0], Path("made.xplane.pb"), space)


# --- the file ---


@pytest.mark.parametrize("file", [SAMPLE, pytest.param(GPU_PROFILE, marks=needs_gpu_profile)])
def test_the_columns_are_what_tensorflow_reads(file: Path) -> None:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    data = file.read_bytes()
    mine, theirs = xspace.read(data), xplane_pb2.XSpace.FromString(data)
    assert mine.hosts == list(theirs.hostnames)
    assert [plane.name for plane in mine.planes] == [plane.name for plane in theirs.planes]
    for plane, other in zip(mine.planes, theirs.planes):
        stats = {i: entry.name for i, entry in other.stat_metadata.items()}
        assert plane.stat_names == stats
        assert [line.id for line in plane.lines] == [line.id for line in other.lines]
        for line, known in zip(plane.lines, other.lines):
            zero = known.timestamp_ns * 1000
            assert line.name_id.tolist() == [e.metadata_id for e in known.events]
            assert line.start_ps.tolist() == [e.offset_ps + zero for e in known.events]
            assert line.duration_ps.tolist() == [e.duration_ps for e in known.events]
            expected = [
                (i, stats[s.metadata_id], stat_value(s, stats))
                for i, e in enumerate(known.events)
                for s in e.stats
            ]
            assert list(plane.by_event(line.stats())) == expected


def stat_value(stat, names: dict[int, str]) -> object:
    which = stat.WhichOneof("value")
    value = getattr(stat, which)
    return names.get(value, "") if which == "ref_value" else value


def test_a_million_and_a_half_events_are_all_there(tmp_path: Path) -> None:
    """TensorFlow's own trace converter ends at a million."""
    space = xspace.read(many_events(1_500_000))
    host = recording.Host("many", Path("many.xplane.pb"), space)
    (line,) = space.planes[0].lines
    assert len(line) == 1_500_000
    assert (line.start_ps[-1], line.duration_ps[-1]) == (1_499_999 * 2_000_000, 1_000_000)
    shown = trace.timeline([host])
    assert shown["events"] + shown["left_out"] == 1_500_000
    file = tmp_path / "trace.json"
    trace.write_chrome([host], file, file)
    with file.open() as lines:
        assert sum('"ph":"X"' in line for line in lines) == 1_500_000


# --- where a device waits ---


def waiting() -> Made:
    """Four kernels of 10 µs; gaps of 5 (launching), 100 (Python) and 2,000 µs (tf.data)."""
    made = Made()
    begins = (1000, 1015, 1125, 3135)
    for i, at in enumerate(begins):
        made.kernel("matmul_kernel", at, 10, correlation_id=i)
        made.host("tf_gpu_private_0/1", "matmul_kernel", at - 6, 4, correlation_id=i)
    made.host("tf_gpu_private_0/1", "ExecutorState::Process", 1008, 9)
    made.host("python", "train", 1000, 2200, step_num=3)
    made.host("python", "EagerExecute", 1000, 20)
    made.host("tf_data_iterator_get_next/1", "IteratorGetNextOp::DoCompute", 1135, 1990)
    made.host("tf_data_private_threadpool/2", "DecodePng", 1000, 2200)  # nobody waits for it
    made.event("/device:GPU:0", "Stream #2(MemcpyH2D)", "MemcpyH2D", 1000, 5)
    made.event("/device:GPU:0", "Stream #2(MemcpyH2D)", "MemcpyH2D", 1120, 5)
    made.kernel("ncclKernel_AllReduce", 1020, 30, stream="3")
    return made


def test_gaps_and_what_the_host_did() -> None:
    (device,) = gaps.devices("made", read(waiting()).space, NONE)
    assert (device.kernels, device.copies) == (4, 2)
    assert device.window_ms == pytest.approx(2.145)
    assert device.busy_ms == pytest.approx(0.040)
    by_size = {item.size: (item.count, round(1000 * item.total_ms)) for item in device.gaps}
    assert by_size == {
        "under 20 µs": (1, 5),
        "20 to 100 µs": (0, 0),
        "100 µs to 1 ms": (1, 100),
        "over 1 ms": (1, 2000),
    }
    spent = {name: round(1000 * value, 3) for name, value in device.waiting_ms.items()}
    # 1010-1015 launching; 1025-1050 exchange; 1119-1120, 1120-1123 launch or copy; the rest of the
    # gap Python; then the copy; 1135-3125 tf.data; 3125-3129 Python; 3129-3133 launching.
    assert spent["exchange"] == 25
    assert spent["copy"] == 5
    assert spent["launch"] == 5 + 1 + 4
    assert spent["input"] == 1990
    assert spent["python"] == 2105 - 25 - 5 - 10 - 1990
    assert sum(spent.values()) == pytest.approx(2105)
    assert device.copy_hidden == pytest.approx(0.5)
    assert device.exchange_hidden == pytest.approx(5 / 30)
    assert (device.kernel_us, device.launch_us, device.launch_delay_us) == (10, 4, 6)
    assert device.shorter_than_launch == 0
    assert device.queue == 0


def test_the_queue_of_a_host_that_is_ahead() -> None:
    made = Made()
    for i in range(10):
        made.host("tf_gpu_private_0/1", "k", i, 0.5, correlation_id=i)
        made.kernel("k", 100 + 10 * i, 9, correlation_id=i)
    (device,) = gaps.devices("made", read(made).space, NONE)
    assert device.queue == 4.5  # nine when the first begins, none when the last does


def test_the_first_step_counts_from_its_marker() -> None:
    made = Made().kernel("k", 500, 100)
    (late,) = gaps.devices("made", read(made).space, NONE)
    made.host("python", "train", 100, 600, step_num=0)
    host = read(made)
    (whole,) = gaps.devices("made", host.space, host.marked())
    assert (late.window_ms, whole.window_ms) == (pytest.approx(0.1), pytest.approx(0.5))


def made_device(queue: float, waiting_ms: dict[str, float]) -> gaps.Device:
    idle = sum(waiting_ms.values())
    spent = {**dict.fromkeys(gaps.ACTIVITIES, 0.0), **waiting_ms}
    made = gaps.Device("host", "/device:GPU:6", 665, 0, 21.0, 21.0 - idle, idle, queue=queue)
    made.gaps = [gaps.GapClass("under 20 µs", 650, idle, spent)]
    made.gaps += [gaps.GapClass("over 1 ms", 14, 0, {})]
    made.waiting_ms = spent
    return made


@pytest.mark.parametrize(
    ("waited", "queue", "kind", "helps"),
    [
        ({"launch": 6.0, "nothing": 0.4}, 11, "launch-bound", "XLA fuses them"),
        ({"launch": 6.0, "nothing": 0.4}, 0, "launch-bound", "many steps in one call"),
        ({"launch": 2.0, "input": 9.0}, 0, "input-bound", "01_line_profiler"),
        ({"launch": 2.0, "python": 9.0}, 0, "host-bound", "01_line_profiler"),
        ({"launch": 2.0, "nothing": 9.0}, 0, "host-bound", "06_optimized"),
        ({"exchange": 9.0}, 0, "communication-bound", "larger batch"),
        ({"copy": 9.0}, 0, "copy-bound", "06_optimized"),
        ({"launch": 1.0}, 0, "compute-bound", "05_reduced_precision"),
    ],
)
def test_the_verdict_rests_on_the_gaps(
    waited: dict[str, float], queue: float, kind: str, helps: str
) -> None:
    found = made_up({}, steps=0)
    found.devices = [made_device(queue, waited)]
    told = verdict.judge(found)
    assert told["kind"] == kind
    assert helps in told["next"]
    if kind == "launch-bound":
        assert told["evidence"].startswith("650 of 664 gaps under 20 µs; the executor busy in 94 %")
    found.framework = "JAX"
    assert "tf.function" not in verdict.judge(found)["next"]


def test_advice_on_markers_in_the_words_of_the_framework() -> None:
    found = made_up({}, steps=0)
    assert "tf.profiler.experimental.Trace" in verdict.judge(found)["next"]
    found.framework = "JAX"
    assert "StepTraceAnnotation" in verdict.judge(found)["next"]
    assert "tf." not in verdict.judge(found)["next"]


def test_kernels_are_joined_to_operations_on_the_timeline() -> None:
    made = Made()
    for at, name in ((0, "a/MatMul:MatMul"), (20, "a/MatMul:MatMul"), (40, "b/Relu:Relu")):
        made.kernel("kernel", at, 10, tf_op=name)
    shown = trace.timeline([read(made)])
    lane = shown["processes"][0]["lanes"][0]
    starts, lengths, names, _ = lane["rows"][0]
    assert lane["name"] == "Operations"
    assert [shown["strings"][i] for i in names] == ["a/MatMul", "b/Relu"]
    assert (starts, lengths) == ([0, 40_000], [30_000, 10_000])


def test_threads_are_sorted_by_their_numbers() -> None:
    made = Made()
    for name in ("tf_Compute/10", "tf_Compute/9", "²", "python"):
        made.host(name, "x", 0, 1)
    (process,) = trace.timeline([read(made)])["processes"]
    names = [lane["name"] for lane in process["lanes"]]
    assert names == ["python", "tf_Compute/9", "tf_Compute/10", "²"]


# --- layers, kinds, operations ---


def test_time_by_layer() -> None:
    found = layers.layers(
        [
            ("model/conv_1/convolution", 3.0),
            ("gradient_tape/model/conv_1/convolution/Conv2DBackpropFilter", 5.0),
            ("replica_1/model/dense/MatMul", 2.0),
            ("gradient_tape/replica_1/model/dense/MatMul_1", 1.0),
            ("adam/mul_3", 0.5),
            ("StatefulPartitionedCall/adam/Sqrt", 0.25),
            ("Cast_2", 0.1),
            ("resize/ResizeBilinear", 1.0),
        ]
    )
    rows = {item.name: (item.forward_ms, item.backward_ms, item.optimizer_ms) for item in found}
    assert rows == {
        "conv_1": (3.0, 5.0, 0.0),
        "dense": (2.0, 1.0, 0.0),
        "optimizer": (0.0, 0.0, 0.75),
        "outside the model": (1.1, 0.0, 0.0),
    }
    assert [item.name for item in found][:2] == ["conv_1", "dense"]


@pytest.mark.parametrize(
    ("kernel", "operation", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_half", "", "communication"),
        ("cudnn::winograd_nonfused::winogradForwardData4x4", "", "convolution"),
        ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp", "m/Conv2D", "convolution"),
        ("volta_h884gemm_64x128_ldg8_tn", "", "matrix multiply"),
        ("Cijk_Ailk_Bljk_HHS_BH", "", "matrix multiply"),
        ("void tensorflow::functor::FillPhiloxRandomKernelLaunch<...>", "", "random numbers"),
        ("void tensorflow::functor::SwapDimension1And2InTensor3<...>", "", "copy and layout"),
        ("void Eigen::internal::EigenMetaKernel<...>", "model/add", "elementwise"),
        ("something", "", "other"),
    ],
)
def test_kernels_by_kind(kernel: str, operation: str, kind: str) -> None:
    assert layers.kind_of(kernel, operation) == kind


def test_operations_from_events_by_self_time() -> None:
    """As JAX records them on a CPU: no table has them."""
    made = Made()
    for i in range(2):
        at = 100 * i
        told = {"hlo_op": "x", "hlo_module": "jit_step"}
        made.host("tf_XLAEigen/1", "while.1", at, 50, **told)
        made.host("tf_XLAEigen/1", "dot.3", at + 10, 30, **told)
        made.host("tf_XLAEigen/1", "ThunkExecutor::Execute", at, 90)
    found = {op.name: (op.count, op.self_ms) for op in events.operations([read(made)])}
    assert found == {
        "jit_step/while.1": (2, pytest.approx(0.04)),
        "jit_step/dot.3": (2, pytest.approx(0.06)),
    }


def test_eager_operations_are_listed_by_type() -> None:
    made = Made()
    for at in (0, 10):
        made.host("python", "EagerLocalExecute: MatMul", at, 4)
        made.host("python", "EagerLocalExecute: __inference_step_1", at + 5, 4)
    (found,) = events.operations([read(made)])
    assert (found.type, found.mode, found.count, found.self_ms) == ("MatMul", "eager", 2, 0.008)


# --- steps and hosts ---


def test_median_p95_and_outliers() -> None:
    found = made_steps(*[10.0] * 18, 11.0, 40.0)
    assert (found.median_ms, found.p95_ms, found.max_ms) == (10.0, 11.0, 40.0)
    assert found.outliers == ["train 19"]
    unlike = made_steps(10.0, input=4.0).per_step + made_steps(30.0, input=6.0).per_step
    assert profile.Steps.of(unlike).split["input"] == 5


def test_the_straggler_is_named() -> None:
    found = made_up({}, steps=0)
    quick, slow = (made_steps(20.0, 20.0, collectives=ms).per_step for ms in (9.0, 1.0))
    tables.add_hosts(found, [("a", quick), ("b", quick), ("slow", slow)])  # the quick ones wait
    assert [round(item.lag, 2) for item in found.host_steps] == [0, 0, 0.73]
    assert found.notes[0].startswith("slow is the straggler: 19.0 ms of its own work")


def test_eight_hosts_one_at_half_speed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The shares are TensorFlow's own, and the parts add up."""
    from tensorboard_plugin_profile.protobuf import input_pipeline_pb2, overview_page_pb2
    from tensorflow.python.profiler.internal import _pywrap_profiler
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    spaces, names = [], []
    for i in range(8):
        space = xplane_pb2.XSpace.FromString(SAMPLE.read_bytes())
        space.hostnames[:] = [f"host{i}"]
        for plane in space.planes if i == 5 else []:
            for line in plane.lines:
                line.timestamp_ns *= 2
                for event in line.events:
                    event.offset_ps *= 2
                    event.duration_ps *= 2
        names.append(f"host{i}.xplane.pb")
        spaces.append(space.SerializeToString())
        (tmp_path / names[-1]).write_bytes(spaces[-1])
    made = as_json(tmp_path, tmp_path)
    data, _ = _pywrap_profiler.xspace_to_tools_data_from_byte_string(
        spaces, names, "overview_page", {}
    )
    advice = input_pipeline_pb2.BottleneckAnalysis()
    page = overview_page_pb2.OverviewPage.FromString(data)
    page.input_analysis.recommendation.bottleneck_analysis.Unpack(advice)
    theirs = advice.input_percent
    # TensorFlow leaves out the first step, which it cannot align with the slow host's.
    four = [step for step in made["steps"]["per_step"] if step["name"] != "train 8"]
    shares = sum(s["split"]["input"] for s in four) / sum(s["total_ms"] for s in four)
    assert 100 * shares == pytest.approx(theirs, abs=0.05)
    assert sum(made["steps"]["split"].values()) == pytest.approx(made["steps"]["average_ms"])
    assert any(note.startswith("host5 is the straggler") for note in made["notes"])
    assert len(made["host_steps"]) == 8
    assert "+100 %" in capsys.readouterr().out


def test_ranks_that_recorded_into_folders_of_their_own(tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / f"rank{rank}" / "plugins" / "profile" / "2026_01_01_00_00_00"
        folder.mkdir(parents=True)
        Made("node").host("python", "train", 0, 10, step_num=rank).write(folder, "node")
    (newest,) = profile.find(tmp_path).files  # of the same second: the last by name
    assert newest.is_relative_to(tmp_path / "rank1")
    found, _ = recording.read(profile.find(tmp_path, ranks=True))
    assert [host.name for host in found] == ["node rank0", "node rank1"]


# --- memory, retracing ---


def test_what_was_held_at_the_peak() -> None:
    def snapshot(at: int, used: int, name: str, held: int) -> dict:
        return {
            "timeOffsetPs": str(at),
            "aggregationStats": {"heapAllocatedBytes": str(used)},
            "activityMetadata": {"allocationBytes": str(held), "tfOpName": name},
        }

    entry = {
        "profileSummary": {"peakStats": {"peakBytesInUse": "300"}, "memoryCapacity": "1100"},
        "memoryProfileSnapshots": [snapshot(1, 100, "weights", 100), snapshot(2, 300, "relu", 100)],
        "activeAllocations": [
            {"snapshotIndex": "1", "numOccurrences": "2"},
            {"snapshotIndex": "-1", "specialIndex": "0", "numOccurrences": "1"},
        ],
        "specialAllocations": [{"allocationBytes": "100", "tfOpName": "preallocated"}],
    }
    found = memory.allocator("host", "GPU_0_bfc", entry)
    held = [(item.operation, item.count, item.total_bytes) for item in found.at_peak]
    assert held == [("relu", 2, 200), ("preallocated", 1, 100)]
    assert found.headroom == 5  # 1,000 free above the weights, 200 of it used


def test_retracing() -> None:
    made = Made()
    for i in range(4):
        told = {"tf_function_call": "traced-nonXla" if i < 3 else "notTraced-nonXla"}
        made.host("python", "step", 10 * i, 5, tracing_count=min(i + 1, 3), **told)
        made.host("python", "steady", 10 * i, 5, tracing_count=1, tf_function_call="notTraced")
    (found,) = read(made).retraced()
    assert (found.name, found.calls, found.traced, found.tracings) == ("step", 4, 3, 3)


# --- Horovod's timeline ---


def test_horovods_timeline(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The figures of 06_optimized/SCALING.md."""
    found = horovod_timeline.read(TIMELINE)
    assert (found.steps, found.tensors) == (30, 9)
    assert found.exchanges_per_step == pytest.approx(1)
    assert found.buffer_bytes == pytest.approx(4.8e6, rel=0.01)
    medians = {phase.name: phase.median_ms for phase in found.phases}
    assert medians["NEGOTIATE_ALLREDUCE"] == pytest.approx(12.4, abs=0.5)
    assert medians["GLOO_ALLREDUCE"] == pytest.approx(7.0, abs=0.1)
    cut = tmp_path / "cut.json"
    cut.write_bytes(gzip.decompress(TIMELINE.read_bytes())[:150_000])
    assert horovod_timeline.read(cut).exchanges_per_step == pytest.approx(1)
    assert command.run(cut, None, json=Path("-")) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == 9
    for content, message in ((b"no json", "is not JSON"), (b"[]", "no exchange")):
        cut.write_bytes(content)
        with pytest.raises(Problem, match=message):
            horovod_timeline.read(cut)


def phase(name: str, at: int, length: int, pid: int = 1, **told: str) -> list[dict]:
    begin = {"ph": "B", "name": name, "ts": at, "pid": pid}
    return [begin, {"ph": "E", "ts": at + length, "pid": pid, "args": told}]


def ready(times: dict[str, int], pid: int = 1) -> list[dict]:
    """When each rank was."""
    return [{"ph": "X", "name": rank, "ts": at, "pid": pid} for rank, at in times.items()]


def one_tensor(waits: int, travels: int, rounds: int = 5) -> list[dict]:
    made, at = [], 0
    for _ in range(rounds):
        made += phase("NEGOTIATE_ALLREDUCE", at, waits) + ready({"0": at, "3": at + waits})
        made += phase("ALLREDUCE", at + waits, travels, dtype="float16", shape="[8]")
        at += 1000
    return made


@pytest.mark.parametrize(
    ("waits", "travels", "kind"),
    [(500, 100, "waiting"), (100, 500, "communication-bound"), (20, 30, "compute-bound")],
)
def test_the_verdict_on_a_timeline(tmp_path: Path, waits: int, travels: int, kind: str) -> None:
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps(one_tensor(waits, travels)))
    found = horovod_timeline.read(file)
    assert found.verdict["kind"] == kind
    assert found.waiting == pytest.approx(waits * 4 / (3000 + waits + travels), rel=0.01)
    assert found.buffer_bytes == 16
    assert found.last_ranks == {"3": 4}  # of five: the first is set-up


def test_who_came_last_is_told_of_the_steps(tmp_path: Path) -> None:
    """Not of a broadcast at the start; and with Horovod's cache nobody knows it."""
    file, steps = tmp_path / "timeline.json", one_tensor(500, 100)
    start = phase("NEGOTIATE_BROADCAST", 0, 90, pid=2) + ready({"3": 0, "0": 90}, pid=2)
    start += phase("BROADCAST", 90, 5, pid=2)
    file.write_text(json.dumps(start + steps))
    found = horovod_timeline.read(file)
    assert found.last_ranks == {"3": 4} and "CACHE" not in found.verdict["next"]
    cached = [event for event in steps if event["ph"] != "X" or event["ts"] <= 500]
    file.write_text(json.dumps(start + cached))
    assert "HOROVOD_CACHE_CAPACITY=0" in horovod_timeline.read(file).verdict["next"]


# --- two profiles ---


def test_a_comparison_says_what_came_and_went() -> None:
    a, b = made_up({"input": 10}, steps=10), made_up({"input": 6}, steps=10)
    a.operations = [operation("same", 40), operation("gone", 30), operation("often", 20, count=40)]
    b.operations = [operation("same", 40), operation("new", 10), operation("often", 2)]
    found = compare.compare(a, b)
    assert "1 added (+1.0 ms), 1 removed (-3.0 ms), 1 run more or less often" in found.notes[0]
    assert found.notes[1] == (
        "A step changed by -4.0 ms, the operations listed by -3.8: 95 % of it."
    )
    often = next(item for item in found.operations if item.name == "often")
    assert (often.a_count, often.b_count) == (4, 1)


def test_two_programs_that_have_nothing_in_common() -> None:
    a, b = made_up({}, steps=0), made_up({}, steps=0)
    a.operations = [operation(f"bert/{c}", 1) for c in "abcdef"]
    b.operations = [operation(f"cnn/{c}", 1) for c in "abcdef"]
    assert "look like two programs" in compare.compare(a, b).notes[0]
    assert not any("two programs" in note for note in compare.compare(a, a).notes)


# --- faults ---


def test_a_broken_file_beside_good_ones(tmp_path: Path, profiled: Path) -> None:
    good = only_file(profiled).read_bytes()
    (tmp_path / "good.xplane.pb").write_bytes(good)
    (tmp_path / "broken.xplane.pb").write_bytes(good[:-500])
    (tmp_path / "empty.xplane.pb").touch()
    os.mkfifo(tmp_path / "pipe.xplane.pb")
    made = as_json(tmp_path, tmp_path)
    assert made["steps"]["count"] == 10
    left_out = " ".join(made["notes"])
    assert "broken.xplane.pb is not a profile" in left_out
    assert "empty.xplane.pb is empty" in left_out
    assert "pipe" not in left_out
    with pytest.raises(Problem, match="is no file"):
        profile.find(tmp_path / "pipe.xplane.pb")


def test_names_that_are_not_utf8(tmp_path: Path, profiled: Path) -> None:
    """In a host's name, a thread's, an event's, and in what is told of an event."""
    data = only_file(profiled).read_bytes()
    for name in (b"train", b"python", b"tf_Compute", b"notTraced-"):
        assert name in data
        data = data.replace(name, name[:-2] + b"\xff\xfe")
    file = tmp_path / "odd.xplane.pb"
    file.write_bytes(data)
    made = as_json(tmp_path, file)
    assert made["steps"]["count"] == 10 and made["operations"]
    page = tmp_path / "page.html"
    assert command.make([file], {"html": page, "trace": tmp_path / "trace.json"}) == 0
    assert "\ufffd" in page.read_text() or "\\ufffd" in page.read_text()


def test_files_that_would_overwrite_each_other(
    tmp_path: Path, profiled: Path, capsys: pytest.CaptureFixture
) -> None:
    both, own = tmp_path / "both", only_file(profiled)
    before = own.read_bytes()
    for files, message in (
        ({"html": both, "json": both}, "named for two outputs"),
        ({"json": own}, "is the profile itself"),
        ({"html": Path("-")}, "only --json"),
    ):
        assert command.make([own], files) == 1
        out, err = capsys.readouterr()
        assert out == "" and message in err and err.count("\n") == 1
    assert not both.exists() and own.read_bytes() == before


def test_json_to_stdout_is_json_and_nothing_else(
    profiled: Path, capfd: pytest.CaptureFixture
) -> None:
    assert command.make([profiled], {"json": Path("-")}) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["steps"]["count"] == 10
    assert err == ""


def test_an_amd_gpu_says_not_known(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    made = Made()
    for i in range(4):
        told = {"correlation_id": i, "kernel_details": "regs:8 block:64,1,1 grid:1,1,1"}
        made.kernel("Cijk_Ailk_Bljk_HHS_BH_MT128x128", 100 * i, 90, **told)
        made.host("python", "PjitFunction(step)", 100 * i, 20, correlation_id=i)
    found = as_json(tmp_path, made.write(tmp_path))
    assert found["framework"] == "JAX"
    assert {kernel["tensor_core_used"] for kernel in found["kernels"]} == {None}
    assert found["precision"]["bits16_percent"] is None
    assert found["verdict"]["kind"] == "compute-bound"
    assert "not known" in capsys.readouterr().out


def test_events_without_a_length(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name, made in (
        ("device", Made().kernel("k", 10, 0)),
        ("host", Made().host("python", "EagerLocalExecute: MatMul", 1, 0)),
    ):
        assert command.make([made.write(tmp_path, name)], {}) == 0
        assert capsys.readouterr().out.startswith("Unknown: ")


def test_a_large_profile_is_announced(
    tmp_path: Path, profiled: Path, capsys: pytest.CaptureFixture, monkeypatch
) -> None:
    monkeypatch.setattr(recording, "LARGE", 1000)
    recording.read(profile.find(profiled))
    assert "MB of profile" in capsys.readouterr().err


def test_intervals() -> None:
    one = intervals.union(np.array([5, 0, 2]), np.array([9, 3, 4]))
    assert [part.tolist() for part in one] == [[0, 5], [4, 9]]
    two = intervals.union(np.array([3]), np.array([6]))
    assert intervals.both(one, two) == 2
    assert [part.tolist() for part in intervals.gaps(one, (-1, 12))] == [[-1, 4, 9], [0, 5, 12]]
