"""A profile as plain data, made by the converters behind TensorBoard's Profile page.

Everything stays in memory: the converters, given a path, would write files beside the profile.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.logged_run import Problem

ENDING = ".xplane.pb"
MAKE_ONE = "cd 04_tf_profiler && python train_MNIST.py --steps 50 --logdir logs"
# How a step's time is split: our name, what to call it, and TensorFlow's fields that add up to it.
SPLIT = (
    ("input", "Input", ("host_wait_input_ms", "host_to_device_ms")),
    ("host_compute", "Host compute", ("host_compute_ms",)),
    ("kernel_launch", "Kernel launch", ("host_prepare_ms",)),
    ("device_compute", "Device compute", ("device_compute_ms",)),
    ("device_to_device", "Device to device", ("device_to_device_ms",)),
    ("collectives", "Collectives", ("device_collectives_ms",)),
    ("output", "Output", ("output_ms",)),
    ("compilation", "Compilation", ("host_compile_ms",)),
    ("other", "All others", ("unknown_time_ms",)),
)
LABELS = {key: label for key, label, _ in SPLIT}


@dataclass
class Step:
    name: str
    total_ms: float
    split: dict[str, float]


@dataclass
class Steps:
    count: int = 0
    average_ms: float | None = None
    min_ms: float | None = None
    max_ms: float | None = None
    sd_ms: float | None = None
    split: dict[str, float] = field(default_factory=dict)  # ms of the average step
    per_step: list[Step] = field(default_factory=list)

    def share(self, *keys: str) -> float:
        """Which part of the average step these are, from 0 to 1."""
        total = self.average_ms or 0
        return sum(self.split.get(key, 0) for key in keys) / total if total else 0.0


@dataclass
class Operation:
    name: str
    type: str
    where: str  # host or device
    mode: str  # eager or graph
    count: int
    self_ms: float
    share: float  # of all operations on that side
    tensor_core: float  # the share of its time on tensor cores


@dataclass
class Kernel:
    name: str
    operation: str
    count: int
    total_ms: float
    average_us: float
    min_us: float
    max_us: float
    share: float  # of all kernels
    tensor_core_eligible: bool
    tensor_core_used: bool
    occupancy_percent: float
    registers: int
    block: list[int]
    grid: list[int]


@dataclass
class Memory:
    host: str
    allocator: str
    peak_bytes: int  # in the profiled window
    lifetime_peak_bytes: int
    capacity_bytes: int
    curve: list[list[float]]  # [ms since the profile began, bytes in use]


@dataclass
class Profile:
    """What the report shows; as a dictionary, what --json writes."""

    run: str
    path: str
    files: list[str]
    hosts: list[str]
    device_type: str
    device_count: int
    steps: Steps
    verdict: dict[str, str] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    precision: dict[str, float | None] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    input_pipeline: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


# --- finding it ---


@dataclass
class Run:
    """One recording: a file for every host that took part."""

    folder: Path
    files: list[Path]
    others: int = 0  # older runs beside it

    @property
    def name(self) -> str:
        return self.folder.name


def recorded(folder: Path) -> str:
    """When, as a text that sorts: the folder's name, or its time where it was renamed."""
    if re.match(r"\d{4}(_\d\d){5}", folder.name):
        return folder.name
    return time.strftime("%Y_%m_%d_%H_%M_%S", time.localtime(folder.stat().st_mtime))


def find(path: Path) -> Run:
    """The run that a reader means: a file, a run's folder, or the newest run below a folder."""
    if path.is_file():
        if not path.name.endswith(ENDING):
            raise Problem(f"{path} is not a profile: those end in {ENDING}")
        return Run(path.absolute().parent, [path])
    if not path.is_dir():
        raise Problem(f"no such folder: {path}. Name the --logdir of a profiled run")
    files = sorted(path.rglob(f"*{ENDING}"))
    if not files:
        raise Problem(f"no profile (*{ENDING}) in {path}. To make one: {MAKE_ONE}")
    folders = sorted({file.absolute().parent for file in files}, key=recorded)
    newest = [file for file in files if file.absolute().parent == folders[-1]]
    return Run(folders[-1], newest, len(folders) - 1)


# --- TensorFlow's converters ---


class Converter:
    """The profile's bytes, and TensorFlow's tools over them."""

    def __init__(self, run: Run) -> None:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        from google.protobuf.message import DecodeError
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        self.hosts: list[str] = []
        self.spaces: list[bytes] = []
        for file in run.files:
            data = file.read_bytes()
            try:
                space = xplane_pb2.XSpace.FromString(data)
            except DecodeError:
                raise Problem(f"{file} is not a profile, or not a whole one") from None
            if not space.planes:
                raise Problem(f"{file} is empty: the profiler wrote nothing, was stop() called?")
            self.hosts.append(space.hostnames[0] if space.hostnames else file.name[: -len(ENDING)])
            self.spaces.append(data)

    def convert(self, tool: str, host: int | None = None) -> bytes | None:
        """A tool's data for all hosts or one; None where TensorFlow cannot compute it."""
        from tensorflow.python.profiler.internal import _pywrap_profiler

        chosen = slice(None) if host is None else slice(host, host + 1)
        # The converter wants file names that tell the host; a renamed file would not.
        names = [host.replace(":", "_") + ENDING for host in self.hosts[chosen]]
        try:
            data, fine = _pywrap_profiler.xspace_to_tools_data_from_byte_string(
                self.spaces[chosen], names, tool, {}
            )
        except Exception:  # whatever C++ threw: this tool is not there
            return None
        return data if fine else None


def read(run: Run, converter: Converter) -> Profile:
    """All of it but the verdict and the timeline."""
    profile = Profile(
        run=run.name,
        path=str(run.folder),
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
    for tool, add in parts.items():
        data = converter.convert(tool)
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
            sd_ms=summary.standard_deviation,
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
            mode="eager" if record.is_eager else "graph",
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


def add_kernels(profile: Profile, data: bytes) -> None:
    from tensorboard_plugin_profile.protobuf import kernel_stats_pb2

    reports = kernel_stats_pb2.KernelStatsDb.FromString(data).reports
    total = sum(report.total_duration_ns for report in reports)
    profile.kernels = [
        Kernel(
            name=report.name,
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
