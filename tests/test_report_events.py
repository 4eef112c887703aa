"""What the report reads from events: made-up profiles with known answers, a pitfall each."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_report import GPU_PROFILE, made_steps, made_up, needs_gpu_profile, synchronous_gpu
from xspaces import Made

from tfworkshop.problem import Problem
from tfworkshop.report import (
    command,
    gaps,
    horovod_timeline,
    kernels,
    layers,
    memory,
    names,
    text,
    trace,
    verdict,
    xspace,
)
from tfworkshop.report.profile import Device, GapClass, Profile, Setup
from tfworkshop.report.screenshots import SAMPLE
from tfworkshop.stages import ROOT

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


def stat_value(stat: Any, stat_names: dict[int, str]) -> object:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    return stat_names.get(value, "") if kind == "ref_value" else value


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


def test_markers_of_the_users_own_count_before_those_of_keras_around_them() -> None:
    """Keras numbers the batches of each epoch anew; one that marks roots did so on purpose."""
    made = Made()
    for i in range(5):
        made.step(i, 100 * i, 90, name="Profiled batch")
        made.step(i + 20, 100 * i + 2, 86, name="train", _r=1)
    found = made.profile()
    assert [step.name for step in found.steps.per_step] == [f"train {i}" for i in range(20, 25)]
    assert not any("Not counted" in note for note in found.notes)


def test_time_between_markers_is_named() -> None:
    """Fetching outside the marker is not in the step time: that changes the conclusion."""
    made = Made()
    for i in range(4):
        made.step(i, 100 * i, 40).host("python", "Mul:Mul", 100 * i, 40)
        made.host("python", "IteratorGetNext", 100 * i + 45, 50)
    found = made.profile()
    assert found.verdict["kind"] == "compute-bound"
    assert "0.06 ms pass that no marker covers, 0.05 ms of them waiting" in found.notes[0]


def test_steps_are_inferred_from_the_function_that_dominates() -> None:
    """Generator and discriminator take turns; from call to call, so the rest is inside."""
    made = Made()
    for i in range(10):
        for name, at, length in (("generator", 100 * i, 50), ("discriminator", 100 * i + 60, 20)):
            made.host("python", name, at, length, tf_function_call="notTraced", tracing_count=1)
            made.host("tf_Compute/1", "d/MatMul:MatMul", at, length)
    found = made.profile()
    assert (found.steps.source, found.steps.basis) == ("inferred", "generator")
    assert (found.steps.count, found.steps.average_ms) == (9, pytest.approx(0.1))
    assert found.verdict["confidence"] == "inferred"
    assert found.steps.split["other"] == pytest.approx(0.03)


def test_a_queueing_host_does_not_set_the_inferred_pace() -> None:
    """JAX dispatches ten steps at once, and the device works through them."""
    made = Made()
    for i in range(10):
        made.host("python", "PjitFunction(step)", 2 * i, 1)
        made.host("python", "cuLaunchKernel", 2 * i + 0.2, 0.5, correlation_id=i)
        made.kernel("Cijk_Ailk_Bljk_BBS_BH_MT64", 50 + 100 * i, 99, correlation_id=i)
    found = made.profile()
    assert (found.steps.basis, found.steps.count) == ("step", 9)
    assert found.steps.median_ms == pytest.approx(0.1)
    assert found.devices[0].queue == 4.5  # nine when the first begins, none when the last does
    assert (found.setup.framework, found.setup.xla, found.setup.sixteen_bit) == ("JAX", True, True)
    assert found.precision["bits16_percent"] is None  # no shapes: unknown, not 0
    assert {kernel.tensor_core_used for kernel in found.kernels} == {None}
    assert "bfloat16" not in found.verdict["next"]


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


# --- where a device waits ---


def waiting() -> Made:
    """Four kernels of 10 µs; gaps of 5 (launching), 100 (Python) and 2,000 µs (tf.data)."""
    made = Made()
    for i, at in enumerate((1000, 1015, 1125, 3135)):
        made.launch(i, at - 6, at, 10)
    made.host("tf_gpu_private_0/1", "ExecutorState::Process", 1008, 9)
    made.step(3, 1000, 2200)
    made.host("python", "EagerExecute", 1000, 20)
    made.host("tf_data_iterator_get_next/1", "IteratorGetNextOp::DoCompute", 1135, 1990)
    made.host("tf_data_private_threadpool/2", "DecodePng", 1000, 2200)  # nobody waits for it
    for at in (1000, 1120):
        made.event("/device:GPU:0", "Stream #2(MemcpyH2D)", "MemcpyH2D", at, 5)
    made.kernel("ncclKernel_AllReduce", 1020, 30, stream=3)
    return made


def test_gaps_and_what_the_host_did() -> None:
    (device,) = waiting().profile().devices
    assert (device.kernels, device.copies) == (4, 2)
    assert device.window_ms == pytest.approx(2.145)
    assert device.busy_ms == pytest.approx(0.040)
    by_size = [(item.count, round(1000 * item.total_ms)) for item in device.gaps]
    assert by_size == [(1, 5), (0, 0), (1, 100), (1, 2000)]
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
    assert "last rank" in found.verdict["next"]
    assert found.steps.split["collectives"] == pytest.approx(0.064)


def test_kernels_of_a_cuda_graph_have_no_launch_of_their_own() -> None:
    made = Made().step(0, 0, 200).launch(1, 5, 10, 10)
    made.host("python", "cuGraphLaunch", 20, 8, correlation_id=7)
    for i in range(9):
        made.kernel("k", 30 + 10 * i, 9, correlation_id=7)
    found = made.profile()
    (device,) = found.devices
    assert device.from_graphs == pytest.approx(0.9)
    assert (device.launch_us, device.queue) == (4, 0)
    assert found.setup.cuda_graphs


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
    operations = [
        ("model/conv_1/convolution", 3.0),
        ("gradient_tape/model/conv_1/convolution/Conv2DBackpropFilter", 5.0),
        ("replica_1/model/dense/MatMul", 2.0),
        ("gradient_tape/replica_1/model/dense/MatMul_1", 1.0),
        ("StatefulPartitionedCall/adam/Sqrt", 0.75),
        ("Cast_2", 0.1),
        ("resize/ResizeBilinear", 1.0),
    ]
    rows = {
        item.name: (item.forward_ms, item.backward_ms, item.optimizer_ms)
        for item in layers.layers(operations)
    }
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


# --- memory, tf.data, retracing ---


def test_what_was_held_at_the_peak() -> None:
    made = Made()
    used = 100
    for at, size, address, name in (
        (1, 100, 1, "weights"),
        (2, 300, 2, "temporary"),
        (3, -300, 2, ""),
        (4, 200, 3, "relu"),
        (5, 200, 4, "relu"),
    ):
        used += size
        event = "MemoryAllocation" if size > 0 else "MemoryDeallocation"
        stats = {"allocator_name": "GPU_0_bfc", "bytes_allocated": used, "tf_op": name}
        stats |= {"bytes_available": 1100 - used, "addr": address, "allocation_bytes": abs(size)}
        made.host("python", event, at, 0, **stats)
    (found,) = made.profile().memory
    assert (found.peak_bytes, found.capacity_bytes) == (600, 1100)
    held = [(item.operation, item.count, item.total_bytes) for item in found.at_peak]
    assert held == [("relu", 2, 400), ("weights", 1, 100), (memory.EARLIER, 1, 100)]
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


# --- the verdict ---


def judged(
    split_ms: dict[str, float], setup: Setup | None = None, device: Device | None = None
) -> Profile:
    total = sum(split_ms.values())
    found = made_up(made_steps(total, total, **split_ms))
    found.steps.source = "markers"
    found.steps.input_alone_ms = split_ms.get("input", 0.0)
    found.setup = setup or Setup()
    found.devices = [device] if device else []
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
    assert "tf.function" not in judged(split_ms, Setup("JAX")).verdict["next"]


def test_every_verdict_has_a_ceiling_and_the_next_causes_theirs() -> None:
    found = judged({"host_compute": 40, "input": 30, "other": 25, "compilation": 5})
    assert "30.0 of 100 ms a step, 1.43x" in found.verdict["ceiling"]
    ranked = [(item.name, item.gain_ms) for item in verdict.ceilings(found)]
    assert ranked == [("input", 30), ("other", 25), ("compilation", 5)]
    compute = judged({"host_compute": 90, "other": 10})
    assert "10.0 of 100 ms a step, 1.11x" in compute.verdict["ceiling"]


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


def test_recording_changes_a_program_with_xla() -> None:
    made = Made().step(0, 0, 100).launch(0, 2, 6, 92, hlo_op="fusion.1")
    made.host("python", "EagerLocalExecute: __inference_step_1", 1, 2)
    assert "XLA uses no CUDA graphs" in made.profile().notes[-1]


def made_device(queue: float, waiting_ms: dict[str, float]) -> Device:
    idle = sum(waiting_ms.values())
    spent = {**dict.fromkeys(gaps.ACTIVITIES, 0.0), **waiting_ms}
    device = Device("host", "/device:GPU:6", 665, 0, 21.0, 21.0 - idle, idle, queue=queue)
    device.gaps = [GapClass("under 20 µs", 650, idle, spent)]
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
    found = judged({"device_compute": 21.0}, device=made_device(queue, waited))
    assert found.verdict["kind"] == kind and helps in found.verdict["next"]
    if kind != "compute-bound":
        assert found.causes[0].gain_ms == pytest.approx(max(waited.values()))


def test_no_head_of_a_column_is_cut(capsys: pytest.CaptureFixture) -> None:
    found = judged({"device_compute": 21.0}, device=made_device(3, {"launch": 9.0}))
    found.devices[0].host = "a-very-long-name-of-a-node-0123456789.cluster.example.org"
    found.devices.append(made_device(4, {"launch": 123_456.0}))
    text.show(found, Console(width=100))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 100
    for head in ("computing", "of all", "exchange", "copies", "kernel", "launch", "queue"):
        assert re.search(rf"\b{head}\b", shown), head


# --- Horovod's timeline ---


def test_horovods_timeline(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The figures of 06_optimized/SCALING.md, and files that were cut or are something else."""
    found = horovod_timeline.read(TIMELINE)
    assert (found.steps, found.tensors) == (30, 9)
    assert found.exchanges_per_step == pytest.approx(1)
    assert found.buffer_bytes == pytest.approx(4.8e6, rel=0.01)
    medians = {phase.name: phase.median_ms for phase in found.phases}
    assert medians["NEGOTIATE_ALLREDUCE"] == pytest.approx(12.4, abs=0.5)
    assert medians["GLOO_ALLREDUCE"] == pytest.approx(7.0, abs=0.1)
    file = tmp_path / "cut.json"
    file.write_bytes(gzip.decompress(TIMELINE.read_bytes())[:150_000])
    assert command.run(file, None, json=Path("-")) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == 9
    for content, message in ((b"no json", "is not a timeline"), (b"[]", "no exchange")):
        file.write_bytes(content)
        with pytest.raises(Problem, match=message):
            horovod_timeline.read(file)


def one_tensor(waits: int, travels: int) -> list[dict[str, Any]]:
    """Five exchanges, to which rank 3 comes last."""
    events: list[dict[str, Any]] = []
    for at in range(0, 5000, 1000):
        travelling, done = at + waits, at + waits + travels
        events += [
            {"ph": "B", "pid": 1, "ts": at, "name": "NEGOTIATE_ALLREDUCE"},
            {"ph": "X", "pid": 1, "ts": at, "name": "0"},
            {"ph": "X", "pid": 1, "ts": travelling, "name": "3"},
            {"ph": "E", "pid": 1, "ts": travelling},
            {"ph": "B", "pid": 1, "ts": travelling, "name": "ALLREDUCE"},
            {"ph": "E", "pid": 1, "ts": done, "args": {"dtype": "float16", "shape": "[8]"}},
        ]
    return events


@pytest.mark.parametrize(
    ("waits", "travels", "kind"),
    [(500, 100, "waiting"), (100, 500, "communication-bound"), (20, 30, "compute-bound")],
)
def test_the_verdict_on_a_timeline(tmp_path: Path, waits: int, travels: int, kind: str) -> None:
    file, events = tmp_path / "timeline.json", one_tensor(waits, travels)
    file.write_text(json.dumps(events))
    found = horovod_timeline.read(file)
    assert found.verdict["kind"] == kind
    assert found.waiting == pytest.approx(waits * 4 / (3000 + waits + travels), rel=0.01)
    assert found.buffer_bytes == 16
    assert found.last_ranks == {"3": 4}  # of five: the first is set-up
    if kind == "waiting":  # with Horovod's cache nobody knows who comes late
        file.write_text(json.dumps([e for e in events if e["ph"] != "X" or e["ts"] <= 500]))
        assert "HOROVOD_CACHE_CAPACITY=0" in horovod_timeline.read(file).verdict["next"]
