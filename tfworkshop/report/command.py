"""`./workshop report`: read a profile or two, show them, write the files asked for."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from tfworkshop import terminal
from tfworkshop.files import check_writable, save
from tfworkshop.problem import Problem
from tfworkshop.report import events, gaps, layers, profile, recording, tables, text, trace, verdict
from tfworkshop.report.compare import compare
from tfworkshop.report.convert import Converter
from tfworkshop.report.figures import percent
from tfworkshop.report.profile import Profile
from tfworkshop.report.recording import Host

Files = dict[str, Path]  # by kind: html, json, trace
STDOUT = Path("-")
BEGINS = {"html": b"<!doctype html>", "json": b"{", "trace": b"{"}  # what may be replaced
PACKED = b"\x1f\x8b"  # a trace that is named .gz


def load(path: Path, ranks: bool = False) -> tuple[Profile, list[Host]]:
    """Everything there is to know of the run that path means."""
    run = profile.find(path, ranks)
    hosts, notes = recording.read(run)
    found = tables.read(run, hosts, Converter(hosts))
    if run.others:
        notes.append(f"This is the newest of the {run.others + 1} runs below {path}.")
    found.notes = notes + found.notes
    found.framework = framework(hosts)
    found.eager_calls = sum(host.eager_calls() for host in hosts)
    found.retraced = [item for host in hosts for item in host.retraced()]
    for host in hosts:
        recorded = host.recorded_ms() or 0.0
        found.devices += gaps.devices(host.name, host.space, host.marked(), recorded)
    events.add_operations(found, hosts)
    add_layers(found)
    add_coverage(found, hosts)
    found.notes += silent_devices(found) + blind_spots(found)
    found.verdict = verdict.judge(found, sum(len(host.markers()) for host in hosts))
    return found, hosts


def framework(hosts: list[Host]) -> str:
    """Whose words the advice should use."""
    jax = any(host.has("PjitFunction", "jit_", "$jax") for host in hosts)
    tensorflow = any(host.has("EagerLocalExecute") for host in hosts)
    return "JAX" if jax and not tensorflow else "TensorFlow"


def add_layers(found: Profile) -> None:
    """By the device's operations, else by its kernels', else by the host's."""
    side = "device" if any(op.where == "device" for op in found.operations) else "host"
    chosen = [op for op in found.operations if op.where == side and op.mode != "tf.data"]
    spent = [(op.name, op.self_ms) for op in chosen]
    if side == "host" and any(kernel.operation for kernel in found.kernels):
        spent = [(kernel.operation, kernel.total_ms) for kernel in found.kernels]
    found.layers = layers.layers(spent)
    found.kinds = layers.kinds((k.name, k.operation, k.total_ms) for k in found.kernels)


def add_coverage(found: Profile, hosts: list[Host]) -> None:
    """How much of the recording lies in steps; little is worth a word."""
    steps, recorded = found.steps, [host.recorded_ms() or 0.0 for host in hosts]
    if not steps.count or not max(recorded):
        return
    steps.coverage = min(1.0, sum(step.total_ms for step in steps.per_step) / max(recorded))
    if steps.count == 1:
        found.notes.append("Only one step was recorded: it may not be a typical one.")
    if steps.coverage < 0.5:
        found.notes.append(
            f"The steps cover {percent(steps.coverage, 1)} of the {max(recorded):,.0f} ms recorded."
        )


def silent_devices(found: Profile) -> list[str]:
    """Devices without kernels, in one line."""
    parts = []
    for copied, told in ((False, "recorded nothing"), (True, "only copies")):
        idle = [d for d in found.devices if not d.kernels and bool(d.copies) == copied]
        if idle:
            names = ", ".join(device.name.replace("/device:", "") for device in idle)
            parts.append(f"{names} {told}")
    return [f"Of {len(found.devices)} devices {'; '.join(parts)}."] if parts else []


def blind_spots(found: Profile) -> list[str]:
    """What TensorFlow's operation table leaves out, where that can be seen."""
    if any(op.where == "device" for op in found.operations):
        return []
    if found.eager_calls and all(op.mode in ("tf.data", "eager") for op in found.operations):
        return [f"Python started {found.eager_calls:,} operations one by one (eager)."]
    listed = sum(op.self_ms for op in found.operations if op.mode != "tf.data")
    total = sum(step.total_ms for step in found.steps.per_step)
    if total and found.device_count == 0 and 0 < listed < total / 2:
        return [
            f"The operations listed are {percent(listed / total)} of the steps: Python, tracing "
            "and XLA on a CPU are in no table."
        ]
    return []


# --- the command ---


def run(logdir: Path, other: Path | None, ranks: bool = False, **files: Path | None) -> int:
    wanted = {kind: file for kind, file in files.items() if file}
    paths = [logdir] + ([other] if other else [])
    if re.search(r"\.json(\.gz)?$", logdir.name):
        from tfworkshop.report import horovod_timeline

        return horovod_timeline.run(paths, wanted)
    return make(paths, wanted, ranks)


def check_outputs(paths: list[Path], files: Files) -> None:
    """Before the work: no output may be another one, or a profile that is to be read."""
    written = [file.resolve() for file in files.values() if file != STDOUT]
    for file in written:
        if written.count(file) > 1:
            raise Problem(f"{file.name} is named for two outputs: name two files")
        if any(path.is_file() and file == path.resolve() for path in paths):
            raise Problem(f"{file.name} is the profile itself: name another file to write")
        if file.name.endswith(profile.ENDING):
            raise Problem(f"{file.name} is named like a profile: name another file to write")
    for kind, file in files.items():
        if file != STDOUT:
            packed = kind == "trace" and file.suffix == ".gz"
            check_writable(file.resolve(), PACKED if packed else BEGINS[kind])
        elif kind != "json":
            raise Problem(f"only --json can go to the standard output: name a file for --{kind}")
    if "trace" in files and len(paths) > 1:
        raise Problem("--trace is for one profile: name one folder")


def make(paths: list[Path], files: Files, ranks: bool = False) -> int:
    """One profile, or two to compare."""
    try:
        check_outputs(paths, files)
        loaded = [load(path, ranks) for path in paths]
    except Problem as problem:
        print(f"workshop: {problem}", file=sys.stderr)
        return 1
    profiles = [found for found, _ in loaded]
    comparison = compare(*profiles) if len(profiles) == 2 else None
    if "html" in files:
        from tfworkshop.report import page

        timelines = [trace.timeline(hosts) for _, hosts in loaded]
        made = page.page(profiles, timelines, comparison, files["html"])
        save(files["html"], lambda part: part.write_text(made, encoding="utf-8"))
    if "trace" in files:
        save(files["trace"], lambda part: trace.write_chrome(loaded[0][1], part, files["trace"]))
    if "json" in files:
        data = asdict(profiles[0])
        if comparison:
            data = {"a": data, "b": asdict(profiles[1]), "comparison": asdict(comparison)}
        figures = json.dumps(data, indent=1) + "\n"
        if files["json"] == STDOUT:
            sys.stdout.write(figures)
            return 0
        save(files["json"], lambda part: part.write_text(figures, encoding="utf-8"))
    console = terminal.console()
    console.width = min(console.width, 100)
    if "html" in files:  # the page has it all
        for found in profiles:
            console.print(Text(text.title(found), style="bold"), *text.head(found), sep="\n")
    elif comparison:
        text.show_both(*profiles, comparison, console)
    else:
        text.show(profiles[0], console)
    for file in files.values():
        console.print(Text(f"wrote {file}"))
    return 0
