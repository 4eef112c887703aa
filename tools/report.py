"""`./workshop report`: a profile on the terminal, as JSON, as one HTML page, as a trace file."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from tools import launch, profile, trace, verdict
from tools.logged_run import Problem
from tools.profile import LABELS, Converter, Kernel, Operation, Profile
from tools.table import save

TOP = 10
BAR = 72
COLOURS = {  # of the split; the page has the same
    "input": "#d1495b",
    "host_compute": "#30638e",
    "kernel_launch": "#edae49",
    "device_compute": "#2e8b57",
    "device_to_device": "#8d6a9f",
    "collectives": "#5f4b8b",
    "output": "#c77dba",
    "compilation": "#8c564b",
    "other": "#8a8f98",
}
FILL = dict(zip(LABELS, "I#LD<CO*."))  # where there is no colour


# --- the terminal ---


def ms(value: float | None) -> str:
    """Milliseconds with three figures, whatever their size."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def end_of(text: str, width: int) -> str:
    """The end of a long name: in TensorFlow's names the telling part is the last."""
    text = text.replace("\n", " ")
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def start_of(text: str, width: int) -> str:
    text = text.replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def bar(split: dict[str, float], total: float, longest: float, colour: bool) -> Text:
    """A step as a stacked bar, as long as its time against the longest step."""
    text, done, drawn = Text(), 0.0, 0
    for key, value in split.items():
        done += value
        until = round(BAR * done / longest) if longest else 0
        mark = "█" if colour else FILL[key]
        text.append(mark * (until - drawn), style=COLOURS[key])
        drawn = max(drawn, until)
    return text


def legend(split: dict[str, float], total: float, colour: bool) -> list[Text]:
    """What the bar's parts are, largest first; what takes no time is left out."""
    lines = []
    for key, value in sorted(split.items(), key=lambda item: -item[1]):
        if value / total < 0.0005:
            continue
        line = Text("  ")
        line.append("█" if colour else FILL[key], style=COLOURS[key])
        line.append(f" {LABELS[key]:<18}{ms(value):>9} ms {value / total:>7.1%}")
        lines.append(line)
    return lines


def steps_view(found: Profile, colour: bool) -> Group | Text:
    steps = found.steps
    if not steps.count or not steps.average_ms:
        return Text("Step time: not known.")
    spread = f"{ms(steps.min_ms)} to {ms(steps.max_ms)} ms, standard deviation {ms(steps.sd_ms)}"
    lines = [Text(f"Step time {ms(steps.average_ms)} ms on average of {steps.count} ({spread})")]
    lines += legend(steps.split, steps.average_ms, colour)
    lines.append(Text())
    longest = steps.max_ms or steps.average_ms
    for step in steps.per_step[:20]:
        line = Text(f"{end_of(step.name, 12):>12} ")
        line.append_text(bar(step.split, step.total_ms, longest, colour))
        line.append(f" {ms(step.total_ms)}")
        lines.append(line)
    if steps.count > 20:
        lines.append(Text(f"             and {steps.count - 20} more"))
    return Group(*lines)


def new_table(title: str, *columns: str, wide: int) -> Table:
    """A table whose last column, the name, takes what is left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.title_style = "bold"
    for i, column in enumerate(columns):
        left = i == len(columns) - 1 or column in ("type", "mode", "where")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    table.columns[-1].min_width = wide
    return table


def operations_view(title: str, operations: list[Operation]) -> Table:
    table = new_table(title, "self ms", "share", "count", "mode", "type", "operation", wide=38)
    for op in operations:
        figures = ms(op.self_ms), f"{op.share:.1%}", f"{op.count:,}", op.mode
        names = start_of(op.type, 22), end_of(op.name, 38)
        table.add_row(*figures, *(Text(name) for name in names))
    return table


def kernels_view(kernels: list[Kernel]) -> Table:
    columns = "total ms", "share", "count", "mean us", "tensor core", "kernel"
    table = new_table("The most expensive GPU kernels", *columns, wide=45)
    for kernel in kernels:
        figures = ms(kernel.total_ms), f"{kernel.share:.1%}", f"{kernel.count:,}"
        table.add_row(
            *figures, ms(kernel.average_us), tensor_core(kernel), Text(start_of(kernel.name, 45))
        )
    return table


def tensor_core(kernel: Kernel) -> str:
    if kernel.tensor_core_used:
        return "used"
    return "eligible, unused" if kernel.tensor_core_eligible else "no"


def operation_tables(found: Profile) -> list[Table]:
    """The device's operations before the host's, where there are any."""
    tables = []
    for where in ("device", "host"):
        chosen = [op for op in found.operations if op.where == where][:TOP]
        if chosen:
            title = f"The most expensive operations on the {where}"
            tables.append(operations_view(title, chosen))
    return tables


def memory_view(found: Profile) -> list[Text]:
    lines = []
    for item in found.memory["allocators"]:
        where = f"{item.host} " if len(found.hosts) > 1 else ""
        used = f"peak {size(item.peak_bytes)} in the window"
        used += f", {size(item.lifetime_peak_bytes)} since the start"
        lines.append(Text(f"  {where}{item.allocator}: {used}, of {size(item.capacity_bytes)}"))
    return [Text("Memory", style="bold"), *lines] if lines else []


def input_view(found: Profile) -> list[Text]:
    lines = []
    for item in found.input_pipeline.get("bottlenecks", []):
        lines.append(
            Text(
                f"  {item['pipeline']}: slowest call {ms(item['slowest_call_ms'])} ms, most of it "
                f"in {item['iterator']}"
            )
        )
        lines.append(Text(f"  {item['suggestion']}"))
    return [Text("Input pipeline (tf.data)", style="bold"), *lines] if lines else []


def show(found: Profile, console: Console) -> None:
    colour = console.color_system is not None
    devices = f"{found.device_count} x {found.device_type}" if found.device_count else "CPU only"
    hosts = found.hosts[0] if len(found.hosts) == 1 else f"{len(found.hosts)} hosts"
    console.print(Text(f"{found.run}  {hosts}, {devices}", style="bold"))
    console.print(Text(found.path))
    for note in found.notes:
        console.print(Text(note))
    console.print()
    console.print(Text(found.verdict["sentence"], style="bold"))
    console.print(Text("Next: " + found.verdict["next"]))
    console.print()
    console.print(steps_view(found, colour))
    console.print()
    for table in operation_tables(found):
        console.print(table)
    if found.kernels:
        console.print(kernels_view(found.kernels[:TOP]))
    if found.precision.get("bits16_percent") is not None:
        in_16, in_32 = found.precision["bits16_percent"], found.precision["bits32_percent"]
        console.print(Text(f"Device time in 16 bit: {in_16:.1f} %, in 32 bit: {in_32:.1f} %"))
    for line in (*memory_view(found), *input_view(found)):
        console.print(line)
    if found.missing:
        console.print(Text("Not in this profile", style="bold"))
        for line in found.missing:
            console.print(Text(f"  {line}"))


# --- the command ---


def load(path: Path, timeline: bool) -> tuple[Profile, list[trace.Trace]]:
    run = profile.find(path)
    converter = Converter(run)
    found = profile.read(run, converter)
    if run.others:
        found.notes.append(f"The newest of {run.others + 1} runs below {path}.")
    traces = trace.read(converter) if timeline or not found.steps.count else []
    found.verdict = verdict.judge(found, trace.markers(traces))
    return found, traces


def as_json(found: Profile) -> str:
    return json.dumps(asdict(found), indent=1) + "\n"


def run(path: Path, html: Path | None, json_file: Path | None, trace_file: Path | None) -> int:
    try:
        for file in (html, json_file, trace_file):
            check_writable(file)
        found, traces = load(path, timeline=bool(html or trace_file))
    except Problem as problem:
        print(f"workshop: {problem}", file=sys.stderr)
        return 1
    console = launch.console()
    console.width = min(console.width, 100)
    show(found, console)
    if json_file:
        save(json_file, lambda part: part.write_text(as_json(found)))
    if trace_file:
        save(trace_file, lambda part: trace.write_chrome(traces, part))
    for file in (html, json_file, trace_file):
        if file:
            console.print(Text(f"wrote {os.path.relpath(file)}"))
    return 0


def check_writable(file: Path | None) -> None:
    """Find out before the work, not after it."""
    if file is None:
        return
    if file.is_dir():
        raise Problem(f"{file} is a folder: name a file")
    if not file.parent.is_dir():
        raise Problem(f"cannot write {file}: there is no folder {file.parent}")
    if not os.access(file.parent, os.W_OK):
        raise Problem(f"cannot write {file}: the folder is not writable")
