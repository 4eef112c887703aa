"""Reading a recording into a Profile: steps, devices, operations, kernels, memory, verdict."""

from __future__ import annotations

from pathlib import Path

from tfworkshop.report import (
    copies,
    functions,
    gaps,
    kernels,
    layers,
    memory,
    names,
    recording,
    split,
    tf_data,
)
from tfworkshop.report.activity import HostActivity
from tfworkshop.report.figures import percent
from tfworkshop.report.operations import operations
from tfworkshop.report.profile import Profile, Step, Steps
from tfworkshop.report.recording import Host, Span
from tfworkshop.report.steps import FoundSteps, find_steps
from tfworkshop.report.verdict import judge


def load(path: Path, ranks: bool = False) -> tuple[Profile, list[Host]]:
    """Everything that the run at this path shows, and its hosts with all their events."""
    run = recording.find(path, ranks)
    hosts, notes = recording.read(run)
    if run.older:
        notes.append(f"This is the newest of the {run.older + 1} runs below {path}.")
    profile = Profile(
        run=run.name,
        path=str(run.folder.resolve()),
        hosts=[host.name for host in hosts],
        notes=notes,
    )
    read_hosts(profile, hosts)
    return profile, hosts


def read_hosts(profile: Profile, hosts: list[Host]) -> None:
    profile.device_count = sum(len(host.devices) for host in hosts)
    if profile.device_count:
        first = next(plane for host in hosts for plane in host.devices)
        profile.device_type = first.name.removeprefix("/device:").partition(":")[0]
    if any(host.is_ideal for host in hosts):
        profile.is_ideal = True
        profile.device_type = names.IDEAL_GPU
        profile.notes.append(
            "Recorded on the ideal GPU, which is not a GPU: kernels and copies are counted, and "
            "take no time. A step takes the host's time, and the verdict is about the host."
        )
    threads = [line for host in hosts for line in host.threads]
    profile.eager_calls = sum(int(line.matches(names.EAGER_CALL).sum()) for line in threads)
    profile.operations = operations(hosts)
    profile.kernels = kernels.kernels(hosts)
    profile.kinds = kernels.kinds(profile.kernels)
    profile.precision = kernels.precision(hosts)
    profile.setup = functions.setup(profile, hosts)
    profile.retraced = [item for host in hosts for item in functions.retraced(host)]
    profile.input_pipeline = [item for host in hosts for item in tf_data.bottlenecks(host)]
    profile.memory = [item for host in hosts for item in memory.allocators(host)]
    add_steps_and_devices(profile, hosts)
    add_layers(profile)
    profile.notes += silent_devices(profile) + unseen_work(profile) + graph_notes(profile)
    profile.missing = missing_parts(profile)
    judge(profile)
    if profile.is_ideal:
        drop_device_times(profile)


def drop_device_times(profile: Profile) -> None:
    """On the ideal GPU only numbers count: a kernel's share is its share of all kernels."""
    profile.devices = []
    profile.layers = []
    profile.kinds = {}
    profile.precision = dict.fromkeys(profile.precision)
    profile.operations = [op for op in profile.operations if op.where == "host"]
    count = sum(kernel.count for kernel in profile.kernels)
    for kernel in profile.kernels:
        kernel.total_ms = kernel.average_us = 0.0
        kernel.share = kernel.count / count
    profile.kernels.sort(key=lambda kernel: -kernel.count)


def add_steps_and_devices(profile: Profile, hosts: list[Host]) -> None:
    per_host: list[tuple[str, list[Step]]] = []
    found_by_host: list[FoundSteps] = []
    windows: list[Step] = []
    for host in hosts:
        activity = HostActivity(host)
        found = find_steps(host, activity)
        found_by_host.append(found)
        per_host.append((host.name, split.split_steps(host, activity, found.spans)))
        if not found.spans:
            whole = Span("the recording", *host.bounds)
            windows += split.split_steps(host, activity, [whole])
        profile.devices += [gaps.device(host, p, activity, found.spans) for p in host.devices]
    profile.copies = copies.copies(hosts, [found.spans for found in found_by_host])
    profile.steps = Steps.of(split.join([steps for _, steps in per_host]))
    first = next((found for found in found_by_host if found.spans), None)
    if first and profile.steps.count:
        profile.steps.source, profile.steps.basis = first.source, first.basis
        profile.notes += first.notes
    elif windows:
        profile.window = split.join([[window] for window in windows])[0]
        profile.notes.append(
            "No step was found, neither marked nor by what repeats: everything is about the whole "
            "recording."
        )
    if len(hosts) > 1:
        profile.host_steps, notes = split.compare_hosts(per_host)
        profile.notes += notes
    profile.notes += coverage_notes(profile, hosts)


def coverage_notes(profile: Profile, hosts: list[Host]) -> list[str]:
    """Too few steps, or a recording of which little lies in steps."""
    notes = []
    steps, recorded = profile.steps, max(host.recorded_ms() for host in hosts)
    if steps.count == 1:
        notes.append("Only one step was recorded: it may not be a typical one.")
    in_steps = sum(step.total_ms for step in steps.per_step)
    if 0 < in_steps < recorded / 2:
        share = percent(in_steps / recorded, 1)
        notes.append(f"The steps cover {share} of the {recorded:,.0f} ms recorded.")
    return notes


def add_layers(profile: Profile) -> None:
    """By the device's operations if there are any, else by the host's."""
    side = "device" if any(op.where == "device" for op in profile.operations) else "host"
    chosen = [op for op in profile.operations if op.where == side and op.mode != "tf.data"]
    profile.layers = layers.layers((op.name, op.self_ms) for op in chosen)


# --- notes ---


def silent_devices(profile: Profile) -> list[str]:
    """Devices without kernels, in one line."""
    parts = []
    for copied, words in ((False, "recorded nothing"), (True, "only copies")):
        idle = [d for d in profile.devices if not d.kernels and bool(d.copies) == copied]
        if idle:
            parts.append(f"{', '.join(device.short_name for device in idle)} {words}")
    return [f"Of {len(profile.devices)} devices {'; '.join(parts)}."] if parts else []


def unseen_work(profile: Profile) -> list[str]:
    """What no operation stands for."""
    if any(op.where == "device" for op in profile.operations):
        return []
    if profile.eager_calls and all(op.mode in ("tf.data", "eager") for op in profile.operations):
        return [f"Python started {profile.eager_calls:,} operations one by one (eager)."]
    listed = sum(op.self_ms for op in profile.operations if op.mode != "tf.data")
    total = sum(step.total_ms for step in profile.steps.per_step)
    if total and profile.device_count == 0 and 0 < listed < total / 2:
        return [
            f"The operations listed are {percent(listed / total)} of the steps: Python, tracing "
            "and XLA on a CPU are in no table."
        ]
    return []


def graph_notes(profile: Profile) -> list[str]:
    """What CUDA graphs hide, and what recording does to them."""
    notes = []
    if profile.setup.cuda_graphs:
        share = max((device.from_graphs for device in profile.devices), default=0.0)
        notes.append(
            f"CUDA graphs launch {percent(share)} of the kernels: these have no launch of their "
            "own, and launch times and queue are those of the others."
        )
    elif profile.setup.xla and profile.kernels and profile.setup.framework == "TensorFlow":
        notes.append(
            "XLA is on: while TensorFlow records, XLA uses no CUDA graphs, so recorded steps "
            "launch more often than others. Compare the speed of steps that are not recorded."
        )
    return notes


def missing_parts(profile: Profile) -> list[str]:
    missing = []
    if not profile.operations:
        missing.append("No operations recorded.")
    if not profile.kernels:
        missing.append("No GPU kernels recorded.")
    elif profile.precision["bits16_percent"] is None:
        missing.append("No shapes recorded on the device: no share of 16 and 32 bit.")
    if any(kernel.tensor_core_used is None for kernel in profile.kernels):
        missing.append("Whether all kernels use matrix units: some names do not tell.")
    if not profile.memory:
        missing.append("No memory profile.")
    return missing
