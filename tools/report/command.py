"""`./workshop report`: read a profile or two, show them, write the files asked for."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from tools import terminal
from tools.files import check_writable, save
from tools.problem import Problem
from tools.report import profile, tables, text, trace, verdict
from tools.report.compare import compare
from tools.report.profile import Converter, Profile

Files = dict[str, Path]  # by kind: html, json, trace


def load(path: Path) -> tuple[Profile, list[trace.Trace]]:
    """Everything there is to know of the run that path means."""
    run = profile.find(path)
    converter = Converter(run)
    found = tables.read(run, converter)
    traces = trace.read(converter)
    found.eager_calls = trace.eager_calls(traces)
    found.verdict = verdict.judge(found, trace.markers(traces))
    if run.others:
        found.notes.append(f"This is the newest of the {run.others + 1} runs below {path}.")
    found.notes += blind_spots(found)
    return found, traces


def blind_spots(found: Profile) -> list[str]:
    """What TensorFlow's operation table leaves out, where that can be seen."""
    if any(op.where == "device" for op in found.operations):
        return []
    if found.eager_calls and all(op.mode == "tf.data" for op in found.operations):
        return [
            f"Python started {found.eager_calls:,} operations one by one (eager). On a CPU "
            "TensorFlow lists them in no table: see the timeline."
        ]
    listed = sum(op.self_ms for op in found.operations if op.mode != "tf.data")
    total = sum(step.total_ms for step in found.steps.per_step)
    if total and found.device_count == 0 and 0 < listed < total / 2:
        return [
            f"The operations listed add up to {verdict.percent(listed / total)} of the steps. "
            "On a CPU, what XLA compiled is in no table."
        ]
    return []


def run(logdir: Path, other: Path | None, **files: Path | None) -> int:
    wanted = {kind: file for kind, file in files.items() if file}
    return make([logdir] + ([other] if other else []), wanted)


def make(paths: list[Path], files: Files) -> int:
    """One profile, or two to compare."""
    try:
        for file in files.values():
            check_writable(file)
        loaded = [load(path) for path in paths]
        if "trace" in files and len(paths) > 1:
            raise Problem("--trace is for one profile: name one folder")
    except Problem as problem:
        print(f"workshop: {problem}", file=sys.stderr)
        return 1
    profiles = [found for found, _ in loaded]
    comparison = compare(*profiles) if len(profiles) == 2 else None
    data = (
        {"a": asdict(profiles[0]), "b": asdict(profiles[1]), "comparison": asdict(comparison)}
        if comparison
        else asdict(profiles[0])
    )
    if "json" in files:
        figures = json.dumps(data, indent=1) + "\n"
        save(files["json"], lambda part: part.write_text(figures, encoding="utf-8"))
    if "html" in files:
        from tools.report import page

        timelines = [trace.timeline(traces) for _, traces in loaded]
        made = page.page(profiles, timelines, comparison)
        save(files["html"], lambda part: part.write_text(made, encoding="utf-8"))
    if "trace" in files:
        save(files["trace"], lambda part: trace.write_chrome(loaded[0][1], part, files["trace"]))
    console = terminal.console()
    console.width = min(console.width, 100)
    if comparison:
        text.show_both(*profiles, comparison, console)
    else:
        text.show(profiles[0], console)
    for file in files.values():
        console.print(Text(f"wrote {file}"))
    return 0
