"""TensorFlow's tables of a profile, one part of the report after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tools.problem import Problem
from tools.report.profile import (
    LABELS,
    SPLIT,
    Converter,
    Kernel,
    Memory,
    Operation,
    Profile,
    Run,
    Step,
    Steps,
)


def read(run: Run, converter: Converter) -> Profile:
    """All of it but the verdict and the timeline."""
    profile = Profile(
        run=run.name,
        path=str(run.folder.resolve()),
        files=[file.name for file in run.files],
        hosts=converter.hosts,
        device_type="unknown",
        device_count=0,
        steps=Steps(),
    )
    parts: dict[str, Callable[[Profile, bytes], None]] = {
        "overview_page": add_overview,
        "input_pipeline_analyzer": add_steps,
        "framework_op_stats": add_operations,
        "kernel_stats": add_kernels,
        "tf_data_bottleneck_analysis": add_tf_data,
    }
    tables = {tool: converter.convert(tool) for tool in parts}
    if not any(tables.values()):
        raise Problem(f"TensorFlow's converters can read nothing of {run.files[0]}")
    for tool, add in parts.items():
        data = tables[tool]
        if data is None:
            profile.missing.append(f"TensorFlow's converter could not compute {tool}.")
        else:
            add(profile, data)
    add_memory(profile, [converter.convert("memory_profile", i) for i in range(len(run.files))])
    return profile


def plain(text: str) -> str:
    """TensorFlow's advice holds HTML links: the text, with the address after it."""
    text = re.sub(r'<a [^>]*href="([^"]*)"[^>]*>(.*?)</a>', r"\2 (\1)", text)
    return re.sub(r"<[^>]+>", "", text)


# --- one part after the other ---


def add_overview(profile: Profile, data: bytes) -> None:
    from tensorboard_plugin_profile.protobuf import overview_page_pb2

    page = overview_page_pb2.OverviewPage.FromString(data)
    profile.device_type = page.run_environment.device_type or "unknown"
    profile.device_count = page.run_environment.device_core_count
    bits = page.analysis.device_compute_16bit_percent, page.analysis.device_compute_32bit_percent
    known = sum(bits) > 0
    profile.precision = {
        "bits16_percent": bits[0] if known else None,
        "bits32_percent": bits[1] if known else None,
    }
    if not known:
        profile.missing.append("No device arithmetic recorded: no share of 16 and 32 bit.")


def add_steps(profile: Profile, data: bytes) -> None:
    from tensorboard_plugin_profile.protobuf import input_pipeline_pb2

    result = input_pipeline_pb2.InputPipelineAnalysisResult.FromString(data)
    per_step = []
    for packed in result.step_details:
        step = input_pipeline_pb2.PerGenericStepDetails()
        packed.Unpack(step)
        split = {key: sum(getattr(step, name) for name in names) for key, _, names in SPLIT}
        per_step.append(Step(step.step_name or str(step.step_number), step.step_time_ms, split))
    if per_step:
        summary, count = result.step_time_summary, len(per_step)
        average = {key: sum(step.split[key] for step in per_step) / count for key in LABELS}
        profile.steps = Steps(
            count=count,
            average_ms=summary.average,
            min_ms=summary.minimum,
            max_ms=summary.maximum,
            sd_ms=summary.standard_deviation if count > 1 else None,  # of one step: not a number
            split=average,
            per_step=per_step,
        )
    advice = input_pipeline_pb2.BottleneckAnalysis()
    result.recommendation.bottleneck_analysis.Unpack(advice)
    spent = result.input_time_breakdown
    profile.input_pipeline.update(
        statement=plain(advice.input_statement),
        waiting_percent=advice.input_percent if per_step else None,
        host_ms={
            "file_read_on_demand": spent.demanded_file_read_us / 1e3,
            "file_read_in_advance": spent.advanced_file_read_us / 1e3,
            "preprocessing": spent.preprocessing_us / 1e3,
            "enqueue": spent.enqueue_us / 1e3,
            "other": spent.unclassified_non_enqueue_us / 1e3,
        },
        operations=[
            {
                "name": item.op_name,
                "count": item.count,
                "self_ms": item.self_time_in_ms,
                "category": item.category,
            }
            for item in result.input_op_details
        ],
    )


def add_operations(profile: Profile, data: bytes) -> None:
    from tensorboard_plugin_profile.protobuf import tf_stats_pb2

    table = tf_stats_pb2.TfStatsDatabase.FromString(data).without_idle
    profile.operations = [
        Operation(
            name=record.op_name,
            type=record.op_type,
            where=record.host_or_device.lower(),
            mode=mode(record),
            count=record.occurrences,
            self_ms=record.total_self_time_in_us / 1e3,
            share=record.device_total_self_time_as_fraction
            + record.host_total_self_time_as_fraction,
            tensor_core=record.gpu_tensorcore_utilization,
        )
        for record in table.tf_stats_record
    ]
    profile.operations.sort(key=lambda operation: -operation.self_ms)
    if not profile.operations:
        profile.missing.append("No operations recorded.")


def mode(record: Any) -> str:
    """Who started it: Python, one by one; a graph; or the input pipeline."""
    if record.op_type == "Dataset":
        return "tf.data"
    return "eager" if record.is_eager else "graph"


def short_name(kernel: str) -> str:
    """A C++ kernel's name without namespaces, arguments and Eigen's wrapping."""
    name = re.sub(r"\b(?:\w+::)+", "", kernel.replace("(anonymous namespace)::", ""))
    name = re.sub(r"^void ", "", name).replace(" const", "").replace("> >", ">>")
    name = re.sub(r"(?<=.)\([^()]*\)$", "", name)
    name = re.sub(r"TensorMap<Tensor<(\w+), [^<>]*>, \d+, MakePointer>", r"\1", name)
    wrapped = r"EigenMetaKernel<TensorEvaluator<TensorAssignOp<\w+, (.*)>, GpuDevice>, \w+>"
    found = re.fullmatch(wrapped, name)
    return f"Eigen {found[1]}" if found else name


def add_kernels(profile: Profile, data: bytes) -> None:
    from tensorboard_plugin_profile.protobuf import kernel_stats_pb2

    reports = kernel_stats_pb2.KernelStatsDb.FromString(data).reports
    total = sum(report.total_duration_ns for report in reports)
    profile.kernels = [
        Kernel(
            name=report.name,
            short=short_name(report.name),
            operation=report.op_name,
            count=report.occurrences,
            total_ms=report.total_duration_ns / 1e6,
            average_us=report.total_duration_ns / max(1, report.occurrences) / 1e3,
            min_us=report.min_duration_ns / 1e3,
            max_us=report.max_duration_ns / 1e3,
            share=report.total_duration_ns / total if total else 0.0,
            tensor_core_eligible=report.is_op_tensor_core_eligible,
            tensor_core_used=report.is_kernel_using_tensor_core,
            occupancy_percent=report.occupancy_pct,
            registers=report.registers_per_thread,
            block=list(report.block_dim),
            grid=list(report.grid_dim),
        )
        for report in reports
    ]
    profile.kernels.sort(key=lambda kernel: -kernel.total_ms)
    if not profile.kernels:
        profile.missing.append("No GPU kernels recorded.")


def add_tf_data(profile: Profile, data: bytes) -> None:
    from tensorboard_plugin_profile.protobuf import tf_data_stats_pb2

    stats = tf_data_stats_pb2.CombinedTfDataStats.FromString(data)
    profile.input_pipeline["summary"] = plain(stats.summary)
    profile.input_pipeline["bottlenecks"] = [
        {
            "host": item.host,
            "pipeline": item.input_pipeline,
            "slowest_call_ms": item.max_latency_ps / 1e9,
            "iterator": item.iterator_long_name or item.iterator_name,
            "iterator_ms": item.iterator_latency_ps / 1e9,
            "suggestion": plain(item.suggestion),
        }
        for item in stats.bottleneck_analysis
    ]
    if not stats.bottleneck_analysis:
        profile.missing.append("No tf.data bottleneck analysis: no slow tf.data pipeline recorded.")


def add_memory(profile: Profile, tables: list[bytes | None]) -> None:
    allocators = []
    for host, data in zip(profile.hosts, tables):
        found = json.loads(data or b"{}").get("memoryProfilePerAllocator", {})
        for name, entry in sorted(found.items()):
            summary = entry.get("profileSummary", {})
            snapshots = entry.get("sampledTimelineSnapshots") or entry.get("memoryProfileSnapshots")
            allocators.append(
                Memory(
                    host=host,
                    allocator=name,
                    peak_bytes=int(summary.get("peakStats", {}).get("peakBytesInUse", 0)),
                    lifetime_peak_bytes=int(summary.get("peakBytesUsageLifetime", 0)),
                    capacity_bytes=int(summary.get("memoryCapacity", 0)),
                    curve=sorted(map(memory_point, snapshots or [])),
                )
            )
    profile.memory = {
        "peak_bytes": max((item.peak_bytes for item in allocators), default=None),
        "allocators": allocators,
    }
    if not allocators:
        profile.missing.append("No memory profile.")


def memory_point(snapshot: dict) -> list[float]:
    used = snapshot.get("aggregationStats", {})
    in_use = int(used.get("stackReservedBytes", 0)) + int(used.get("heapAllocatedBytes", 0))
    return [int(snapshot.get("timeOffsetPs", 0)) / 1e9, in_use]
