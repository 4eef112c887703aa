"""TensorFlow's tables of a profile, one part of the report after the other."""

from __future__ import annotations

import re
import statistics
from typing import Any

from tfworkshop.problem import Problem
from tfworkshop.report.convert import Converter
from tfworkshop.report.layers import short_name
from tfworkshop.report.memory import add_memory
from tfworkshop.report.profile import (
    LABELS,
    SPLIT,
    HostSteps,
    Kernel,
    Operation,
    Profile,
    Run,
    Step,
    Steps,
)
from tfworkshop.report.recording import Host

AMD = re.compile(r"^Cijk_|\.kd$|__amd_|rocm|miopen", re.I)
LAG = 0.1  # from this share above the median host on, a host is a straggler


def read(run: Run, hosts: list[Host], converter: Converter) -> Profile:
    """What TensorFlow's converters tell."""
    from tensorboard_plugin_profile.protobuf.kernel_stats_pb2 import KernelStatsDb
    from tensorboard_plugin_profile.protobuf.overview_page_pb2 import OverviewPage
    from tensorboard_plugin_profile.protobuf.tf_data_stats_pb2 import CombinedTfDataStats
    from tensorboard_plugin_profile.protobuf.tf_stats_pb2 import TfStatsDatabase

    profile = Profile(
        run=run.name,
        path=str(run.folder.resolve()),
        files=[host.file.name for host in hosts],
        hosts=[host.name for host in hosts],
    )
    each = range(len(hosts))
    overviews = [converter.convert("overview_page", i) for i in each]
    if not any(overviews):
        converter.clean_stats()
        overviews = [converter.convert("overview_page", i) for i in each]
    operations = converter.convert("framework_op_stats")
    if not any(overviews) and not operations:
        raise Problem(f"TensorFlow's converters can read nothing of {run.files[0]}")
    # The other tools only where there is something for them to find: each reads the whole profile.
    kernels = converter.convert("kernel_stats") if any(h.devices for h in hosts) else b""
    data = any(host.has("Iterator::") for host in hosts)
    pipelines = converter.convert("tf_data_bottleneck_analysis") if data else b""
    pages = [(h.name, OverviewPage.FromString(d)) for h, d in zip(hosts, overviews) if d]
    add_overviews(profile, [page for _, page in pages])
    add_hosts(profile, [(name, steps_of(page)) for name, page in pages])
    for tool, table, message, add in (
        ("framework_op_stats", operations, TfStatsDatabase, add_operations),
        ("kernel_stats", kernels, KernelStatsDb, add_kernels),
        ("tf_data_bottleneck_analysis", pipelines, CombinedTfDataStats, add_tf_data),
    ):
        if table is None:
            profile.missing.append(f"TensorFlow's converter could not compute {tool}.")
        else:
            add(profile, message.FromString(table))
    allocated = [i for i in each if hosts[i].has("MemoryAllocation", "MemoryDeallocation")]
    add_memory(profile, {hosts[i].name: converter.convert("memory_profile", i) for i in allocated})
    hide_what_is_not_known(profile, hosts)
    return profile


def hide_what_is_not_known(profile: Profile, hosts: list[Host]) -> None:
    """TensorFlow's converter says no where it cannot tell: on AMD, and of what XLA compiled."""
    planes = [plane for host in hosts for plane in host.devices]
    vendors = {str(plane.told.get("device_vendor", "")).upper() for plane in planes}
    if "AMD" in vendors or any(AMD.search(kernel.name) for kernel in profile.kernels):
        for kernel in profile.kernels:
            kernel.tensor_core_eligible = kernel.tensor_core_used = None
        for operation in profile.operations:
            operation.tensor_core = None
        profile.missing.append("Whether AMD's matrix cores were used: the converter cannot tell.")
    if profile.kernels and not any(plane.stat_ids("shape") for plane in planes):
        profile.precision = {"bits16_percent": None, "bits32_percent": None}
        profile.missing.append("No shapes recorded on the device: no share of 16 and 32 bit.")


def plain(text: str) -> str:
    """TensorFlow's advice holds HTML links: the text, with the address after it."""
    text = re.sub(r'<a [^>]*href="([^"]*)"[^>]*>(.*?)</a>', r"\2 (\1)", text)
    text = re.sub(r"<(br|li|p|/p|/li)\b[^>]*>", "\n", text)
    text = re.sub(r"<[^>]+>", "", text)
    text = re.sub(r"(?<=[a-z)])\.(?=\d+\. )", ".\n", text)  # a list whose line breaks were lost
    return " ".join(text.split())


def add_overviews(profile: Profile, pages: list[Any]) -> None:
    """Devices of all hosts; precision and advice as the first host that has them tells."""
    profile.device_count = sum(page.run_environment.device_core_count for page in pages)
    types = [page.run_environment.device_type for page in pages]
    profile.device_type = next((kind for kind in types if kind not in ("", "CPU")), "CPU")
    found = [
        (p.analysis.device_compute_16bit_percent, p.analysis.device_compute_32bit_percent)
        for p in pages
    ]
    bits = next((pair for pair in found if sum(pair) > 0), (None, None))
    profile.precision = dict(zip(("bits16_percent", "bits32_percent"), bits))
    if bits[0] is None:
        profile.missing.append("No device arithmetic recorded: no share of 16 and 32 bit.")
    if pages:
        add_input(profile, pages[0].input_analysis)


def steps_of(page: Any) -> list[Step]:
    """The steps of one host, each with its split."""
    from tensorboard_plugin_profile.protobuf.input_pipeline_pb2 import PerGenericStepDetails

    per_step = []
    for packed in page.input_analysis.step_details:
        step = PerGenericStepDetails()
        packed.Unpack(step)
        split = {key: sum(getattr(step, name) for name in names) for key, _, names in SPLIT}
        per_step.append(Step(step.step_name or str(step.step_number), step.step_time_ms, split))
    return per_step


def add_hosts(profile: Profile, hosts: list[tuple[str, list[Step]]]) -> None:
    """The mean step of all hosts, so that its parts add up; and a row for each of several."""
    profile.steps = Steps.of(joined([steps for _, steps in hosts]))
    if len(hosts) < 2:
        return
    rows = [host_row(name, steps) for name, steps in hosts]
    middle = statistics.median([item.own_ms for item in rows if item.own_ms] or [0.0])
    for item in rows:
        if item.own_ms and middle:
            item.lag = item.own_ms / middle - 1
    profile.host_steps = rows
    slowest = max(rows, key=lambda item: item.lag or 0.0)
    if slowest.lag and slowest.lag >= LAG:
        profile.notes.append(
            f"{slowest.host} is the straggler: {slowest.own_ms:.1f} ms of its own work a step, "
            f"{middle:.1f} on the median host. In synchronous training all wait for it."
        )


def joined(hosts: list[list[Step]]) -> list[Step]:
    """Step by step the mean of the hosts that have it."""
    found: dict[str, list[Step]] = {}
    for step in (step for steps in hosts for step in steps):
        found.setdefault(step.name, []).append(step)
    return [
        Step(
            name,
            statistics.fmean(step.total_ms for step in steps),
            {key: statistics.fmean(step.split[key] for step in steps) for key in LABELS},
        )
        for name, steps in found.items()
    ]


def host_row(host: str, steps: list[Step]) -> HostSteps:
    """Its own work is the step without the exchange, in which a fast host waits for a slow one."""
    found = Steps.of(steps)
    own = [s.total_ms - s.split["collectives"] - s.split["device_to_device"] for s in steps]
    own_ms = statistics.median(own) if own else None
    return HostSteps(host, found.count, found.median_ms, found.share("input"), own_ms)


def add_input(profile: Profile, result: Any) -> None:
    from tensorboard_plugin_profile.protobuf.input_pipeline_pb2 import BottleneckAnalysis

    advice = BottleneckAnalysis()
    result.recommendation.bottleneck_analysis.Unpack(advice)
    spent = result.input_time_breakdown
    profile.input_pipeline.update(
        statement=plain(advice.input_statement),
        waiting_percent=advice.input_percent if result.step_details else None,
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


def add_operations(profile: Profile, tables: Any) -> None:
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
        for record in tables.without_idle.tf_stats_record
    ]
    profile.operations.sort(key=lambda operation: -operation.self_ms)


def mode(record: Any) -> str:
    """Who started it: Python, one by one; a graph; or the input pipeline."""
    if record.op_type == "Dataset":
        return "tf.data"
    return "eager" if record.is_eager else "graph"


def add_kernels(profile: Profile, table: Any) -> None:
    total = sum(report.total_duration_ns for report in table.reports)
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
        for report in table.reports
    ]
    profile.kernels.sort(key=lambda kernel: -kernel.total_ms)
    if not profile.kernels:
        profile.missing.append("No GPU kernels recorded.")


def add_tf_data(profile: Profile, stats: Any) -> None:
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
