"""The report on a terminal: 100 columns, colour only where there is a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tools.report.compare import Comparison, Difference
from tools.report.profile import LABELS, Kernel, Operation, Profile, Step
from tools.report.verdict import percent

TOP = 10
MOST_STEPS = 20
BAR = 72
COLOURS = {  # of a step's parts; the page has the same
    "input": "#d1495b",
    "host_compute": "#3d7ea6",
    "kernel_launch": "#e0a030",
    "device_compute": "#3a9a68",
    "device_to_device": "#9a6fb0",
    "collectives": "#6a57a5",
    "output": "#c77dba",
    "compilation": "#a0674f",
    "other": "#8a9099",
}
MARKS = dict(zip(LABELS, "I#LD<CO*."))  # where there is no colour


# --- figures and names ---


def ms(value: float | None) -> str:
    """Three figures, whatever the size."""
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def printable(text: str) -> str:
    """A name from a profile may hold anything, a terminal's control characters too."""
    return "".join(c if c.isprintable() else " " for c in text)


def end_of(text: str, width: int) -> Text:
    """The end of a long name: TensorFlow's names tell most there."""
    text = printable(text)
    return Text(text if len(text) <= width else "…" + text[-(width - 1) :])


def start_of(text: str, width: int) -> Text:
    text = printable(text)
    return Text(text if len(text) <= width else text[: width - 1] + "…")


# --- steps ---


def mark(key: str, colour: bool) -> str:
    return "█" if colour else MARKS[key]


def bar(step: Step, longest: float, colour: bool) -> Text:
    """A step as a stacked bar, as long as its time against the longest step's."""
    text, done, drawn = Text(), 0.0, 0
    for key, value in step.split.items():
        done += value
        until = min(BAR, round(BAR * done / longest)) if longest else 0
        text.append(mark(key, colour) * (until - drawn), style=COLOURS[key])
        drawn = max(drawn, until)
    return text


def legend(profile: Profile, colour: bool) -> list[Text]:
    """The bar's parts, largest first; what takes no time is left out."""
    lines = []
    for key, value in sorted(profile.steps.split.items(), key=lambda item: -item[1]):
        share = profile.steps.share(key)
        if share >= 0.0005:
            line = Text("  ").append(mark(key, colour), style=COLOURS[key])
            lines.append(line.append(f" {LABELS[key]:<18}{ms(value):>8} ms {percent(share, 1):>8}"))
    return lines


def step_lines(profile: Profile, colour: bool) -> list[Text]:
    steps = profile.steps
    if not steps.count or not steps.average_ms:
        return [Text("Step time: not known")]
    title = f"Step time: {ms(steps.average_ms)} ms"
    spread = f"{ms(steps.min_ms)} to {ms(steps.max_ms)}, standard deviation {ms(steps.sd_ms)}"
    title += f", the mean of {steps.count} ({spread})" if steps.count > 1 else ", of one step"
    lines = [Text(title, style="bold"), *legend(profile, colour), Text()]
    for step in steps.per_step[:MOST_STEPS]:
        line = Text(f"{end_of(step.name, 12).plain:>12} ")
        line.append_text(bar(step, steps.max_ms or 0, colour))
        lines.append(line.append(f" {ms(step.total_ms)}"))
    if steps.count > MOST_STEPS:
        lines.append(Text(f"{'':12} and {steps.count - MOST_STEPS} more"))
    return lines


# --- tables ---


def new_table(figures: str, names: str) -> Table:
    """Columns of figures, then columns of names."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for justify, columns in (("right", figures), ("left", names)):
        for column in columns.split("|"):
            table.add_column(column, justify=justify, no_wrap=True)
    return table


def operations_table(operations: list[Operation]) -> Table:
    table = new_table("self ms|share|count", "mode|type|operation")
    for op in operations:
        figures = ms(op.self_ms), percent(op.share, 1), f"{op.count:,}"
        table.add_row(*figures, op.mode, start_of(op.type, 21), end_of(op.name, 38))
    return table


def tensor_core(kernel: Kernel) -> str:
    if kernel.tensor_core_used:
        return "used"
    return "eligible" if kernel.tensor_core_eligible else "no"


def kernels_table(kernels: list[Kernel]) -> Table:
    table = new_table("total ms|share|count|mean us", "tensor core|kernel")
    for kernel in kernels:
        figures = ms(kernel.total_ms), percent(kernel.share, 1), f"{kernel.count:,}"
        name = start_of(kernel.short, 42)
        table.add_row(*figures, ms(kernel.average_us), tensor_core(kernel), name)
    return table


def memory_lines(profile: Profile) -> list[Text]:
    lines = [Text(), Text("Memory", style="bold")]
    for item in profile.memory["allocators"]:
        where = f"{item.host} " if len(profile.hosts) > 1 else ""
        used = f"peak {size(item.peak_bytes)}"
        if item.lifetime_peak_bytes > item.peak_bytes:
            used += f" ({size(item.lifetime_peak_bytes)} since the start)"
        lines.append(Text(f"  {where}{item.allocator}: {used} of {size(item.capacity_bytes)}"))
    return lines if len(lines) > 2 else []


def input_lines(profile: Profile) -> list[Text]:
    lines = [Text(), Text("Input pipeline (tf.data)", style="bold")]
    for item in profile.input_pipeline.get("bottlenecks", []):
        slowest = f"slowest call {ms(item['slowest_call_ms'])} ms"
        lines.append(
            Text(printable(f"  {item['pipeline']}: {slowest}, bottleneck {item['iterator']}"))
        )
        lines.append(Text(printable(f"  {item['suggestion']}")))
    return lines if len(lines) > 2 else []


# --- the whole ---


def title(profile: Profile) -> str:
    devices = f"{profile.device_count} {profile.device_type}" if profile.device_count else "no GPU"
    hosts = profile.hosts[0] if len(profile.hosts) == 1 else f"{len(profile.hosts)} hosts"
    return printable(f"{profile.run}, {hosts}, {devices}")


def show(profile: Profile, console: Console) -> None:
    colour = console.color_system is not None
    lines = [Text(title(profile), style="bold"), Text(printable(profile.path), overflow="fold")]
    lines += [Text(note) for note in profile.notes]
    lines += [Text(), Text(profile.verdict["sentence"], style="bold")]
    lines += [Text("Next: " + profile.verdict["next"]), Text()]
    console.print(*lines, *step_lines(profile, colour), sep="\n")
    for where in ("device", "host"):
        chosen = [op for op in profile.operations if op.where == where][:TOP]
        if chosen:
            heading = Text(f"The most expensive operations on the {where}", style="bold")
            console.print(Text(), heading, operations_table(chosen), sep="\n")
    if profile.kernels:
        heading = Text("The most expensive GPU kernels", style="bold")
        console.print(Text(), heading, kernels_table(profile.kernels[:TOP]), sep="\n")
    lines = []
    in_16, in_32 = (profile.precision.get(f"bits{n}_percent") for n in (16, 32))
    if in_16 is not None and in_32 is not None:
        lines.append(Text())
        lines.append(Text(f"Device time in 16 bit {in_16:.1f} %, in 32 bit {in_32:.1f} %"))
    lines += memory_lines(profile) + input_lines(profile)
    if profile.missing:
        lines += [Text(), Text("Not in this profile", style="bold")]
        lines += [Text(f"  {line}") for line in profile.missing]
    console.print(*lines, sep="\n")


# --- two profiles ---


def differences_table(items: list[Difference], names: str) -> Table:
    table = new_table("A|B|B - A", names)
    for item in items:
        style = "green" if item.difference_ms < 0 else "red" if item.difference_ms > 0 else ""
        change = Text(f"{'+' if item.difference_ms > 0 else ''}{ms(item.difference_ms)}", style)
        told = [start_of(item.type, 21), end_of(item.name, 44)]
        if "|" not in names:
            told = [start_of(item.name, 66)]
        table.add_row(ms(item.a_ms), ms(item.b_ms), change, *told)
    return table


def show_both(a: Profile, b: Profile, comparison: Comparison, console: Console) -> None:
    for letter, profile in (("A", a), ("B", b)):
        console.print(Text(f"{letter}  {title(profile)}", style="bold"))
        for line in (profile.path, profile.verdict["sentence"], *profile.notes):
            console.print(Padding(Text(printable(line)), (0, 0, 0, 3), expand=False))
    console.print(Text(), Text(comparison.sentence, style="bold"), Text(), sep="\n")
    unit = "ms a step" if comparison.per_step else "ms in all"
    split = sorted(comparison.split, key=lambda item: -abs(item.difference_ms))
    for what, items, names in (
        ("A step's parts", split, "part"),
        ("Operations", comparison.operations[:TOP], "type|operation"),
        ("Kernels", comparison.kernels[:TOP], "kernel"),
    ):
        if items:
            heading = Text(f"{what}, {unit}, sorted by the difference", style="bold")
            console.print(heading, differences_table(items, names), Text())
