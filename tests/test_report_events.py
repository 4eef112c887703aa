"""What the report reads from events: made-up profiles with known answers, a pitfall each."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_report import (
    GPU_PROFILE,
    made_steps,
    made_up,
    needs_gpu_profile,
    synchronous_gpu,
)
from xspaces import Made, many_events

from tfworkshop.problem import Problem
from tfworkshop.report import (
    command,
    gaps,
    horovod_timeline,
    kernels,
    layers,
    names,
    split,
    text,
    trace,
    verdict,
    xspace,
)
from tfworkshop.report.activity import HostActivity
from tfworkshop.report.profile import Device, GapClass, Profile, Retraced, Setup
from tfworkshop.report.recording import Host
from tfworkshop.report.screenshots import SAMPLE
from tfworkshop.report.steps import find_steps
from tfworkshop.stages import ROOT, STAGES

TIMELINE = ROOT / "06_optimized" / "timeline_2_ranks.json.gz"


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
        for line, known in zip(plane.lines, other.lines):
            zero, rows = known.timestamp_ns * 1000, np.arange(len(line))
            full = [plane.full_names[i] for i in line.event_name]
            assert full == [other.event_metadata[e.metadata_id].name for e in known.events]
            assert line.start_ps.tolist() == [e.offset_ps + zero for e in known.events]
            assert line.duration_ps.tolist() == [e.duration_ps for e in known.events]
            expected = [
                (i, stats[s.metadata_id], stat_value(s, stats))
                for i, e in enumerate(known.events)
                for s in e.stats
            ]
            assert list(plane.named_values(line.stats(rows))) == expected


def stat_value(stat: Any, names_of_stats: dict[int, str]) -> object:
    which = stat.WhichOneof("value")
    value = getattr(stat, which)
    return names_of_stats.get(value, "") if which == "ref_value" else value


def test_a_million_and_a_half_events_are_all_there() -> None:
    """TensorFlow's own trace converter ends at a million."""
    space = xspace.read(many_events(1_500_000))
    (line,) = space.planes[0].lines
    assert (line.start_ps[-1], line.duration_ps[-1]) == (1_499_999 * 2_000_000, 1_000_000)
    shown = trace.timeline([Host("many", Path("many.xplane.pb"), space)])
    assert shown["events"] + shown["left_out"] == len(line) == 1_500_000


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    data = SAMPLE.read_bytes()
    for name in (b"train", b"python", b"notTraced-"):
        data = data.replace(name, name[:-2] + b"\xff\xfe")
    file = tmp_path / "odd.xplane.pb"
    file.write_bytes(data)
    files = {"html": tmp_path / "page.html", "trace": tmp_path / "trace.json"}
    assert command.make([file], files) == 0
    assert command.load(file)[0].steps.count == 5


# --- steps ---


def test_a_synchronous_step_on_a_gpu() -> None:
    found = synchronous_gpu().profile()
    assert [step.name for step in found.steps.per_step] == ["train 0", "train 1", "train 2"]
    spent = {key: round(1000 * value) for key, value in found.steps.split.items() if value}
    assert spent == {"input": 20, "kernel_launch": 4, "device_compute": 45, "other": 31}


def test_a_device_that_goes_on_after_the_marker_sets_the_step() -> None:
    made = Made()
    for i in range(3):
        made.step(i, 10 * i, 10)
        made.launch(i, 10 * i + 2, 100 * i + 10, 90)
    assert [round(step.total_ms, 3) for step in made.profile().steps.per_step] == [0.09] * 3


def test_of_several_kinds_of_markers_the_dominant_one_counts() -> None:
    made = Made()
    for i in range(5):
        made.step(i, 100 * i, 80)
        made.step(i, 100 * i + 85, 10, name="evaluate")
    found = made.profile()
    assert (found.steps.basis, found.steps.count) == ("train", 5)
    assert "Not counted: 5 of evaluate" in found.notes[0]


def test_time_between_markers_is_named() -> None:
    """Fetching outside the marker is not in the step time: that changes the conclusion."""
    made = Made()
    for i in range(4):
        made.step(i, 100 * i, 40).host("python", "Mul:Mul", 100 * i, 40)
        made.host("python", "IteratorGetNext", 100 * i + 45, 50)
    found = made.profile()
    assert found.verdict["kind"] == "compute-bound"
    assert "0.06 ms pass that no marker covers, 0.05 ms of them waiting" in found.notes[0]


def called(made: Made, name: str, starts: list[float], length: float) -> Made:
    for at in starts:
        made.host("python", name, at, length, tf_function_call="notTraced-nonXla", tracing_count=1)
        made.host("tf_Compute/1", "d/MatMul:MatMul", at, length)
    return made


def test_steps_are_inferred_from_the_function_that_dominates() -> None:
    """Generator and discriminator take turns; from call to call, so the rest is inside."""
    starts = [float(100 * i) for i in range(10)]
    made = called(Made(), "generator", starts, 50)
    called(made, "discriminator", [at + 60 for at in starts], 20)
    found = made.profile()
    assert (found.steps.source, found.steps.basis) == ("inferred", "generator")
    assert (found.steps.count, found.steps.average_ms) == (9, pytest.approx(0.1))
    assert found.steps.irregularity == pytest.approx(0)
    assert found.verdict["confidence"] == "inferred"
    assert found.steps.split["other"] == pytest.approx(0.03)


def test_a_queueing_host_does_not_set_the_inferred_pace() -> None:
    """JAX dispatches ten steps at once, and the device works through them."""
    made = Made()
    for i in range(10):
        made.host("python", "PjitFunction(step)", 2 * i, 1)
        made.host("python", "cuLaunchKernel", 2 * i + 0.2, 0.5, correlation_id=i)
        made.kernel("k", 50 + 100 * i, 99, correlation_id=i)
    found = made.profile()
    assert (found.steps.basis, found.steps.count) == ("step", 9)
    assert found.steps.median_ms == pytest.approx(0.1)
    assert found.setup.framework == "JAX"


def test_steps_are_inferred_from_modules_on_a_device() -> None:
    made = Made()
    for i in range(6):
        made.event("/device:TPU:0", "XLA Modules", f"jit_step({i % 2})", 10 * i, 8)
        made.event("/device:TPU:0", "XLA Ops", "fusion.1", 10 * i, 8)
    found = made.profile()
    assert (found.steps.basis, found.steps.count) == ("jit_step", 5)
    assert (found.device_type, found.device_count) == ("TPU", 1)


def test_without_any_steps_the_verdict_rests_on_the_recording() -> None:
    made = Made().host("python", "IteratorGetNext", 0, 60).host("tf_Compute/1", "a:Mul", 60, 40)
    found = made.profile()
    assert found.steps.count == 0 and found.window and found.window.total_ms == pytest.approx(0.1)
    assert found.verdict["kind"] == "input-bound"
    assert "60 % of the recording" in found.verdict["sentence"]
    assert "step_num=step" in found.verdict["next"]
    assert found.causes[0].gain_ms == pytest.approx(0.06)


def test_median_p95_and_outliers() -> None:
    found = made_steps(*[10.0] * 18, 11.0, 40.0)
    assert (found.median_ms, found.p95_ms, found.max_ms) == (10.0, 11.0, 40.0)
    assert found.outliers == ["train 19"]


# --- hosts ---


def test_the_straggler_is_named_whatever_the_clocks_say(tmp_path: Path) -> None:
    """Rank 0 is not automatically the one to look at, and clocks of hosts are not aligned."""
    for rank in range(3):
        made = Made(f"host{rank}")
        own, hour = (90 if rank == 2 else 45), 3.6e9 * rank
        for i in range(3):
            at = hour + 100 * i
            made.step(i, at, 100).launch(i, at + 1, at + 6, own)
            made.kernel("ncclKernel_AllReduce", at + 6 + own, 94 - own, stream=2)
        made.write(tmp_path, f"host{rank}")
    found, hosts = command.load(tmp_path)
    assert found.steps.average_ms == pytest.approx(0.1)
    assert [round(row.lag or 0, 1) for row in found.host_steps] == [0, 0, 0.9]
    assert any(note.startswith("host2 is the straggler") for note in found.notes)
    assert trace.timeline(hosts)["length"] == 300_000  # not two hours


def test_the_mean_of_hosts_adds_up() -> None:
    sides = [made_steps(10.0, input=4.0).per_step, made_steps(30.0, input=6.0).per_step]
    (joined,) = split.join(sides)
    assert (joined.total_ms, joined.split["input"]) == (20, 5)


# --- where a device waits ---


def waiting() -> Made:
    """Four kernels of 10 µs; gaps of 5 (launching), 100 (Python) and 2,000 µs (tf.data)."""
    made = Made()
    begins = (1000, 1015, 1125, 3135)
    for i, at in enumerate(begins):
        made.launch(i, at - 6, at, 10)
    made.host("tf_gpu_private_0/1", "ExecutorState::Process", 1008, 9)
    made.step(3, 1000, 2200)
    made.host("python", "EagerExecute", 1000, 20)
    made.host("tf_data_iterator_get_next/1", "IteratorGetNextOp::DoCompute", 1135, 1990)
    made.host("tf_data_private_threadpool/2", "DecodePng", 1000, 2200)  # nobody waits for it
    made.event("/device:GPU:0", "Stream #2(MemcpyH2D)", "MemcpyH2D", 1000, 5)
    made.event("/device:GPU:0", "Stream #2(MemcpyH2D)", "MemcpyH2D", 1120, 5)
    made.kernel("ncclKernel_AllReduce", 1020, 30, stream=3)
    return made


def devices(made: Made) -> list[Device]:
    host = made.read()
    activity = HostActivity(host)
    return gaps.devices(host, activity, find_steps(host, activity).spans)


def test_gaps_and_what_the_host_did() -> None:
    (device,) = devices(waiting())
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
    assert (spent["exchange"], spent["copy"], spent["launch"]) == (25, 5, 10)
    assert spent["input"] == 1990
    assert sum(spent.values()) == pytest.approx(2105)  # every moment counts once
    assert device.copy_hidden == pytest.approx(0.5)
    assert device.exchange_hidden == pytest.approx(5 / 30)
    assert (device.kernel_us, device.launch_us) == (10, 4)


def test_streams_that_overlap_are_counted_once() -> None:
    """Summed kernels are not wall time, and the longest stream is not the step."""
    made = Made().step(0, 0, 100)
    made.launch(0, 2, 10, 60).launch(1, 4, 30, 60, stream=2)
    found = made.profile()
    assert found.devices[0].busy_ms == pytest.approx(0.08)
    assert found.steps.split["device_compute"] == pytest.approx(0.08)
    assert sum(kernel.total_ms for kernel in found.kernels) == pytest.approx(0.12)


def test_a_host_that_waits_is_not_a_device_that_stalls() -> None:
    made = Made().step(0, 0, 100).launch(0, 2, 6, 92)
    made.host("python", "cuCtxSynchronize", 8, 90)
    found = made.profile()
    assert found.verdict["kind"] == "compute-bound"
    assert found.devices[0].waiting_ms["wait"] == 0


def test_an_idle_device_that_nothing_explains_is_inferred() -> None:
    made = Made().step(0, 0, 300).launch(0, 2, 6, 10).launch(1, 250, 260, 10)
    made.lines["/host:CPU", "python"].name = "thread"  # no Python is recorded either
    found = made.profile()
    assert (found.verdict["kind"], found.verdict["confidence"]) == ("host-bound", "inferred")


def test_time_in_an_exchange_is_also_waiting() -> None:
    made = Made().step(0, 0, 100).launch(0, 2, 6, 30)
    made.kernel("ncclDevKernel_AllReduce_Sum_f32", 36, 64, stream=2)
    found = made.profile()
    assert found.verdict["kind"] == "communication-bound"
    assert "waits" in found.verdict["sentence"] and "last rank" in found.verdict["next"]
    assert found.steps.split["collectives"] == pytest.approx(0.064)


def test_the_queue_of_a_host_that_is_ahead() -> None:
    made = Made()
    for i in range(10):
        made.launch(i, 5 * i, 100 + 10 * i, 9)
    (device,) = devices(made)
    assert device.queue == 4.5  # nine when the first begins, none when the last does


def test_kernels_of_a_cuda_graph_have_no_launch_of_their_own() -> None:
    made = Made()
    made.step(0, 0, 200).launch(1, 5, 10, 10)
    made.host("python", "cuGraphLaunch", 20, 8, correlation_id=7)
    for i in range(9):
        made.kernel("k", 30 + 10 * i, 9, correlation_id=7)
    found = made.profile()
    (device,) = found.devices
    assert device.from_graphs == pytest.approx(0.9)
    assert (device.launch_us, device.queue) == (4, 0)
    assert found.setup.cuda_graphs and "CUDA graphs launch 90 %" in found.notes[-1]


# --- operations, kernels, layers ---


def test_operations_by_self_time() -> None:
    made = Made()
    for at in (0, 100):
        stats = {"hlo_op": "x", "hlo_module": "jit_step"}
        made.host("tf_XLAEigen/1", "while.1", at, 50, **stats)
        made.host("tf_XLAEigen/1", "dot.3", at + 10, 30, **stats)
        made.host("tf_XLAEigen/1", "ThunkExecutor::Execute", at, 90)
        made.host("python", "EagerLocalExecute: MatMul", at, 4)
        made.host("python", "EagerLocalExecute: __inference_step_1", at + 5, 4)
    found = {(op.name, op.mode): (op.count, op.self_ms) for op in made.profile().operations}
    assert found == {
        ("jit_step/while.1", "XLA"): (2, pytest.approx(0.04)),
        ("jit_step/dot.3", "XLA"): (2, pytest.approx(0.06)),
        ("MatMul", "eager"): (2, pytest.approx(0.008)),
    }


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


@pytest.mark.parametrize(
    ("kernel", "kind", "sixteen_bit", "tensor_core"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_half", "communication", False, False),
        ("volta_fp16_s884cudnn_fp16_256x64_ldg8_relu_f2f_exp", "convolution", True, True),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_nn", "matrix multiply", True, True),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32", "convolution", True, True),
        ("cutlass_80_tensorop_bf16_s16816gemm_relu", "matrix multiply", True, True),
        ("volta_sgemm_128x64_nn", "matrix multiply", False, False),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HA_S_SAV", "matrix multiply", True, None),
        ("Cijk_Ailk_Bljk_SB_MT128x128", "matrix multiply", False, None),
        ("triton_gemm_dot_bf16", "matrix multiply", True, None),
        ("loop_add_fusion", "elementwise", False, None),
        ("void Eigen::internal::EigenMetaKernel<Eigen::half>", "elementwise", False, False),
        ("something", "other", False, False),
    ],
)
def test_what_a_kernels_name_says(
    kernel: str, kind: str, sixteen_bit: bool, tensor_core: bool | None
) -> None:
    assert names.kind_of_kernel(kernel, "") == kind
    assert kernels.is_16_bit(kernel) == sixteen_bit
    assert kernels.uses_tensor_core(kernel) is tensor_core


def test_kernels_are_joined_to_operations_on_the_timeline() -> None:
    made = Made()
    for at, name in ((0, "a/MatMul:MatMul"), (20, "a/MatMul:MatMul"), (40, "b/Relu:Relu")):
        made.kernel("kernel", at, 10, tf_op=name)
    shown = trace.timeline([made.read()])
    lane = shown["processes"][0]["lanes"][0]
    starts, lengths, strings, _ = lane["rows"][0]
    assert lane["name"] == "Operations"
    assert [shown["strings"][i] for i in strings] == ["a/MatMul", "b/Relu"]
    assert (starts, lengths) == ([0, 40_000], [30_000, 10_000])


# --- memory, tf.data, retracing ---


def test_what_was_held_at_the_peak() -> None:
    made = Made()
    used = 100
    for at, event, size, address, name in (
        (1, "MemoryAllocation", 100, 1, "weights"),
        (2, "MemoryAllocation", 300, 2, "temporary"),
        (3, "MemoryDeallocation", 300, 2, ""),
        (4, "MemoryAllocation", 200, 3, "relu"),
        (5, "MemoryAllocation", 200, 4, "relu"),
    ):
        used += size if event == "MemoryAllocation" else -size
        stats = {"allocator_name": "GPU_0_bfc", "bytes_allocated": used, "tf_op": name}
        stats |= {"bytes_available": 1100 - used, "addr": address, "allocation_bytes": size}
        made.host("python", event, at, 0, **stats)
    (found,) = made.profile().memory.allocators
    assert (found.peak_bytes, found.capacity_bytes) == (600, 1100)
    held = [(item.operation, item.count, item.total_bytes) for item in found.at_peak]
    assert held == [
        ("relu", 2, 400),
        ("weights", 1, 100),
        ("allocated before the recording", 1, 100),
    ]
    assert found.headroom == pytest.approx(2.25)  # 900 above what stays, 400 of it used


def test_the_slow_part_of_a_pipeline_is_the_one_that_nothing_feeds() -> None:
    """Prefetch waits in the foreground; what it waits for works in the background."""
    made = Made()
    root = "Iterator::Root::Prefetch"
    made.host("tf_data_iterator_get_next/1", "Iterator::Root", 0, 100)
    made.host("tf_data_iterator_get_next/1", root, 1, 98)
    made.host("tf_data_iterator_resource/2", f"{root}::ParallelMapV2", 0, 95)
    made.host("tf_data_iterator_resource/3", f"{root}::ParallelMapV2::TensorSlice", 0, 10)
    (found,) = made.profile().input_pipeline
    assert found.iterator.endswith("::ParallelMapV2") and found.iterator_ms == pytest.approx(0.085)
    assert "cache()" in found.suggestion


def test_retracing() -> None:
    made = Made()
    for i in range(4):
        kind = "traced-nonXla" if i < 3 else "notTraced-nonXla"
        made.step(i, 10 * i, 6)
        made.host("python", "step", 10 * i, 5, tracing_count=i + 1, tf_function_call=kind)
    found = made.profile()
    assert found.retraced == [Retraced("step", 4, 3, 4)]
    assert found.verdict["kind"] == "compile-bound"
    assert "step is traced again in 3 of 4 calls" in found.verdict["sentence"]


# --- the verdict ---


def judged(split_ms: dict[str, float], setup: Setup | None = None, **more: object) -> Profile:
    total = sum(split_ms.values())
    found = made_up(made_steps(total, total, **split_ms))
    found.steps.source = "markers"
    found.steps.input_alone_ms = split_ms.get("input", 0.0)
    found.setup = setup or Setup()
    for name, value in more.items():
        setattr(found, name, value)
    verdict.judge(found)
    return found


@pytest.mark.parametrize(
    ("split_ms", "kind", "helps"),
    [
        ({"host_compute": 97, "other": 2, "input": 1}, "compute-bound", "03_xla"),
        ({"host_compute": 60, "input": 40}, "input-bound", "01_line_profiler"),
        ({"host_compute": 81, "input": 19}, "compute-bound", "03_xla"),
        ({"host_compute": 60, "other": 40}, "host-bound", "01_line_profiler"),
        ({"device_compute": 90, "other": 10}, "compute-bound", "05_reduced_precision"),
        ({"device_compute": 80, "kernel_launch": 20}, "launch-bound", "06_optimized"),
        ({"device_compute": 70, "collectives": 30}, "communication-bound", "larger batch"),
        ({"device_compute": 30, "compilation": 70}, "compile-bound", "--profile-steps"),
    ],
)
def test_verdict_by_the_split(split_ms: dict[str, float], kind: str, helps: str) -> None:
    found = judged(split_ms)
    assert found.verdict["kind"] == kind and helps in found.verdict["next"]
    named = set(re.findall(r"\b0\d_\w+", found.verdict["next"]))
    assert named <= {stage.folder for stage in STAGES}
    assert "tf.function" not in judged(split_ms, Setup("JAX")).verdict["next"]


def test_every_verdict_has_a_ceiling_and_the_next_causes_theirs() -> None:
    found = judged({"host_compute": 40, "input": 30, "other": 25, "compilation": 5})
    assert found.verdict["ceiling"].startswith("at most 30.0 of 100 ms a step, 1.43x, if nothing")
    ranked = [(item.name, item.gain_ms) for item in verdict.ceilings(found)]
    assert ranked == [("input", 30), ("other", 25), ("compilation", 5)]
    head = "\n".join(line.plain for line in text.head(found))
    assert "host-bound at most 25.0 ms, 1.33x; compile-bound at most 5.00 ms" in head
    assert "Ceilings do not add up" in head
    compute = judged({"host_compute": 90, "other": 10})
    assert compute.verdict["ceiling"].startswith("at most 10.0 of 100 ms a step, 1.11x")


def test_waiting_for_data_gains_only_where_nothing_was_computed() -> None:
    made = Made().step(0, 0, 100).host("python", "IteratorGetNext", 0, 60)
    made.host("tf_Compute/1", "a/MatMul:MatMul", 20, 80)
    found = made.profile()
    assert found.verdict["kind"] == "input-bound"
    assert found.causes[0].gain_ms == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("setup", "absent", "stated"),
    [
        (Setup(), "already", ""),
        (Setup(sixteen_bit=True), "05_reduced_precision", "16 bit already"),
        (Setup(xla=True), "03_xla", "XLA is on already"),
        (Setup("JAX", xla=True, sixteen_bit=True), "bfloat16", "16 bit already"),
    ],
)
def test_nothing_is_advised_that_is_on_already(setup: Setup, absent: str, stated: str) -> None:
    advice = judged({"device_compute": 95, "other": 5}, setup).verdict["next"]
    assert absent not in advice and stated in advice
    on_cpu = judged({"host_compute": 95, "other": 5}, setup).verdict["next"]
    assert ("03_xla" in on_cpu) == (not setup.xla)


def test_what_is_on_is_seen_in_the_names() -> None:
    made = Made()
    for i in range(4):
        made.launch(i, 100 * i, 100 * i + 5, 90, name="Cijk_Ailk_Bljk_BBS_BH_MT64", hlo_op="dot.1")
        made.host("python", "PjitFunction(step)", 100 * i, 20)
    found = made.profile()
    assert (found.setup.framework, found.setup.xla, found.setup.sixteen_bit) == ("JAX", True, True)
    assert found.precision["bits16_percent"] is None  # no shapes: unknown, not 0
    assert {kernel.tensor_core_used for kernel in found.kernels} == {None}
    assert "bfloat16" not in found.verdict["next"]


def test_recording_changes_a_program_with_xla() -> None:
    made = Made().step(0, 0, 100).launch(0, 2, 6, 92, hlo_op="fusion.1")
    made.host("python", "EagerLocalExecute: __inference_step_1", 1, 2)
    assert "XLA uses no CUDA graphs" in made.profile().notes[-1]


def made_device(queue: float, waiting_ms: dict[str, float]) -> Device:
    idle = sum(waiting_ms.values())
    spent = {**dict.fromkeys(gaps.ACTIVITIES, 0.0), **waiting_ms}
    device = Device("host", "/device:GPU:6", 665, 0, 21.0, 21.0 - idle, idle, queue=queue)
    device.gaps = [GapClass("under 20 µs", 650, idle, spent), GapClass("over 1 ms", 14, 0, spent)]
    device.waiting_ms = spent
    return device


@pytest.mark.parametrize(
    ("waited", "queue", "kind", "helps"),
    [
        ({"launch": 6.0, "nothing": 0.4}, 11, "launch-bound", "XLA fuses them"),
        ({"launch": 6.0, "nothing": 0.4}, 0, "launch-bound", "many steps in one call"),
        ({"launch": 2.0, "input": 9.0}, 0, "input-bound", "01_line_profiler"),
        ({"launch": 2.0, "python": 9.0}, 0, "host-bound", "01_line_profiler"),
        ({"exchange": 9.0}, 0, "communication-bound", "larger batch"),
        ({"copy": 9.0}, 0, "copy-bound", "06_optimized"),
        ({"launch": 1.0}, 0, "compute-bound", "05_reduced_precision"),
    ],
)
def test_verdict_by_the_gaps(waited: dict[str, float], queue: float, kind: str, helps: str) -> None:
    found = judged({"device_compute": 21.0}, devices=[made_device(queue, waited)])
    assert found.verdict["kind"] == kind and helps in found.verdict["next"]
    if kind != "compute-bound":
        assert found.causes[0].gain_ms == pytest.approx(max(waited.values()))


def test_no_head_of_a_column_is_cut(capsys: pytest.CaptureFixture) -> None:
    from rich.console import Console

    found = judged({"device_compute": 21.0}, devices=[made_device(3, {"launch": 9.0})])
    found.devices[0].host = "a-very-long-name-of-a-node-0123456789.cluster.example.org"
    found.devices.append(made_device(4, {"launch": 123_456.0}))
    found.hosts = ["one", "two"]
    text.show(found, Console(width=100))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    for head in (
        "computing",
        "of all",
        "exchange",
        "copies",
        "kernel",
        "launch",
        "queue",
        "device",
    ):
        assert re.search(rf"\b{head}\b", shown), head


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
    assert command.run(cut, None, json=Path("-")) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == 9
    for content, message in ((b"no json", "is not a timeline"), (b"[]", "no exchange")):
        cut.write_bytes(content)
        with pytest.raises(Problem, match=message):
            horovod_timeline.read(cut)


def phase(name: str, at: int, length: int, pid: int = 1, **args: str) -> list[dict[str, Any]]:
    begin = {"ph": "B", "name": name, "ts": at, "pid": pid}
    return [begin, {"ph": "E", "ts": at + length, "pid": pid, "args": args}]


def ready(times: dict[str, int], pid: int = 1) -> list[dict[str, Any]]:
    """When each rank was."""
    return [{"ph": "X", "name": rank, "ts": at, "pid": pid} for rank, at in times.items()]


def one_tensor(waits: int, travels: int, rounds: int = 5) -> list[dict[str, Any]]:
    events = []
    for at in range(0, 1000 * rounds, 1000):
        events += phase("NEGOTIATE_ALLREDUCE", at, waits) + ready({"0": at, "3": at + waits})
        events += phase("ALLREDUCE", at + waits, travels, dtype="float16", shape="[8]")
    return events


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


def test_who_came_last_is_not_asked_of_the_broadcast_at_the_start(tmp_path: Path) -> None:
    """And with Horovod's cache nobody knows it."""
    file, steps = tmp_path / "timeline.json", one_tensor(500, 100)
    start = phase("NEGOTIATE_BROADCAST", 0, 90, pid=2) + ready({"3": 0, "0": 90}, pid=2)
    start += phase("BROADCAST", 90, 5, pid=2)
    file.write_text(json.dumps(start + steps))
    found = horovod_timeline.read(file)
    assert found.last_ranks == {"3": 4} and "CACHE" not in found.verdict["next"]
    cached = [event for event in steps if event["ph"] != "X" or event["ts"] <= 500]
    file.write_text(json.dumps(start + cached))
    assert "HOROVOD_CACHE_CAPACITY=0" in horovod_timeline.read(file).verdict["next"]
