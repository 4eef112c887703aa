"""The report on a terminal: 100 columns, colour only where there is a terminal."""

from __future__ import annotations

from collections import defaultdict

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfworkshop.report.compare import Comparison, Difference, runs_differ
from tfworkshop.report.figures import COLOURS, MARKS, ms, percent, size
from tfworkshop.report.gaps import ACTIVITIES
from tfworkshop.report.layers import layers
from tfworkshop.report.profile import LABELS, Device, Kernel, Layer, Operation, Profile, Step
from tfworkshop.report.verdict import ceilings

TOP = 10
MOST_STEPS = 20
BAR = 72


def end_of(text: str, width: int) -> Text:
    """The end of a long name: in TensorFlow's names that is the part that matters."""
    return Text(text if len(text) <= width else "…" + text[-(width - 1) :])


def start_of(text: str, width: int) -> Text:
    return Text(text if len(text) <= width else text[: width - 1] + "…")


def new_table(figures: str, names: str) -> Table:
    """Columns of figures, then columns of names."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in figures.split("|"):
        width = max(map(len, head.split("\n")))
        table.add_column(head, justify="right", no_wrap=True, min_width=width)
    for head in names.split("|"):  # where it is narrow, names are cut and heads are not
        table.add_column(
            head, justify="left", no_wrap=True, overflow="ellipsis", min_width=len(head)
        )
    return table


def section(title: str, lines: list[Text]) -> list[Text]:
    """Nothing where there are no lines."""
    return [Text(), Text(title, style="bold"), *lines] if lines else []


# --- steps ---


def mark(key: str, colour: bool) -> str:
    return "█" if colour else MARKS[key]


def bar(step: Step, longest: float, colour: bool) -> Text:
    """A step as a stacked bar, as long as its time against the longest step's."""
    text = Text()
    done, drawn = 0.0, 0
    for key, value in step.split.items():
        done += value
        until = min(BAR, round(BAR * done / longest)) if longest else 0
        text.append(mark(key, colour) * (until - drawn), style=COLOURS[key])
        drawn = max(drawn, until)
    return text


def legend(split: dict[str, float], total: float, colour: bool) -> list[Text]:
    """The bar's parts, largest first; what takes no time is left out."""
    lines = []
    for key, value in sorted(split.items(), key=lambda item: -item[1]):
        share = value / total
        if share >= 0.0005:
            line = Text("  ").append(mark(key, colour), style=COLOURS[key])
            lines.append(line.append(f" {LABELS[key]:<18}{ms(value):>8} ms {percent(share, 1):>8}"))
    return lines


def window_lines(profile: Profile, colour: bool) -> list[Text]:
    """The whole recording, where there are no steps."""
    window = profile.window
    if window is None or not window.total_ms:
        return []
    title = Text(f"The whole recording: {ms(window.total_ms)} ms", style="bold")
    return [title, *legend(window.split, window.total_ms, colour)]


def step_lines(profile: Profile, colour: bool) -> list[Text]:
    steps = profile.steps
    if not steps.count or not steps.average_ms:
        return [Text("Step time: not known"), *window_lines(profile, colour)]
    of = f"the mean of {steps.count}" if steps.count > 1 else "of one step: only one was recorded"
    if steps.source == "inferred":
        of += f", inferred from calls of {steps.basis}"
    lines = [Text(f"Step time: {ms(steps.average_ms)} ms, {of}", style="bold")]
    if steps.count > 1:
        spread = f"median {ms(steps.median_ms)}, 95 % within {ms(steps.p95_ms)}, "
        spread += f"{ms(steps.min_ms)} to {ms(steps.max_ms)}, standard deviation {ms(steps.sd_ms)}"
        lines.append(Text(f"  {spread}"))
    if steps.outliers:
        named = ", ".join(steps.outliers[:5])
        if len(steps.outliers) > 5:
            named += ", ..."
        lines.append(Text(f"  far above the median: {named}"))
    lines += [*legend(steps.split, steps.average_ms, colour), Text()]
    for step in steps.per_step[:MOST_STEPS]:
        line = Text(f"{end_of(step.name, 12).plain:>12} ")
        line.append_text(bar(step, steps.max_ms or 0, colour))
        lines.append(line.append(f" {ms(step.total_ms)}"))
    if steps.count > MOST_STEPS:
        lines.append(Text(f"{'':12} and {steps.count - MOST_STEPS} more"))
    return lines


def operations_table(operations: list[Operation]) -> Table:
    table = new_table("self ms|share|count", "mode|type|operation")
    for op in operations:
        figures = ms(op.self_ms), percent(op.share, 1), f"{op.count:,}"
        table.add_row(*figures, op.mode, start_of(op.type, 21), end_of(op.name, 38))
    return table


def tensor_core(kernel: Kernel) -> str:
    if kernel.tensor_core_used is None:
        return "not known"
    if kernel.tensor_core_used:
        return "used"
    return "eligible" if kernel.tensor_core_eligible else "no"


def copies_table(profile: Profile) -> Table:
    table = new_table("a step" if profile.steps.count else "in all", "way|bytes|from|for")
    for copy in profile.copies[:TOP]:
        names = (end_of(name or "-", 32) for name in (copy.source, copy.reader))
        table.add_row(f"{copy.per_step:.3g}", copy.way, f"{copy.bytes:,}", *names)
    return table


def kernels_table(kernels: list[Kernel]) -> Table:
    table = new_table("total ms|share|count|mean us", "tensor core|kernel")
    for kernel in kernels:
        figures = ms(kernel.total_ms), percent(kernel.share, 1), f"{kernel.count:,}"
        name = start_of(kernel.short, 42)
        table.add_row(*figures, ms(kernel.average_us), tensor_core(kernel), name)
    return table


def kernel_counts_table(profile: Profile) -> Table:
    """On the ideal GPU, where only their number counts."""
    steps = max(1, profile.steps.count)
    per_step: dict[str, float] = defaultdict(float)
    for kernel in profile.kernels:
        per_step[kernel.operation or kernel.short] += kernel.count / steps
    ranked = sorted(per_step.items(), key=lambda item: -item[1])
    counts = layers(ranked)
    if not counts:  # names without scopes
        counts = [Layer(operation, count) for operation, count in ranked]
    table = new_table("forward|backward|optimizer|total", "layer or operation")
    for item in counts[:TOP]:  # not ms here
        parts = (item.forward_ms, item.backward_ms, item.optimizer_ms, item.total_ms)
        table.add_row(*(f"{count:.3g}" if count else "-" for count in parts), end_of(item.name, 40))
    return table


def hosts_table(profile: Profile) -> Table:
    table = new_table("step ms|own work ms|against the median|input|steps", "host")
    for item in profile.host_steps:
        lag = "-" if item.lag is None else f"{100 * item.lag:+.0f} %"
        figures = ms(item.median_ms), ms(item.own_ms), lag, percent(item.input_share)
        table.add_row(*figures, f"{item.steps}", end_of(item.host, 40))
    return table


def share_or_dash(share: float | None) -> str:
    return "-" if share is None else percent(share)


def devices_table(devices: list[Device], busy: list[Device]) -> Table:
    """Those that did something; the others are in a note."""
    several = len({device.host for device in devices}) > 1
    columns = (
        "ms|computing|of all|exchange\nms|hidden|copies\nms|hidden|kernel\nµs|launch\nµs|queue"
    )
    table = new_table(columns, "device")
    for item in busy:
        table.add_row(
            ms(item.window_ms),
            percent(1 - item.idle_share),
            share_or_dash(item.busy_ms / item.recorded_ms if item.recorded_ms else None),
            ms(item.exchange_ms) if item.exchange_ms else "-",
            share_or_dash(item.exchange_hidden),
            ms(item.copy_ms),
            share_or_dash(item.copy_hidden),
            ms(item.kernel_us),
            ms(item.launch_us),
            "-" if item.queue is None else f"{item.queue:.0f}",
            end_of(f"{item.host} {item.short_name}" if several else item.short_name, 22),
        )
    return table


def gaps_table(devices: list[Device]) -> Table:
    """Of the device that loses most, a row for each size of gap."""
    worst = max(devices, key=lambda device: device.idle_ms, default=None)
    if worst is None:
        return Table()
    active = [key for key, spent in worst.waiting_ms.items() if spent > 0]
    columns = ["gaps", "ms", *(ACTIVITIES[key].split()[0] for key in active)]
    table = new_table("|".join(columns), f"size, {worst.short_name}")
    for item in worst.gaps:
        if item.count:
            by_activity = [ms(spent) if (spent := item.host_ms[key]) else "-" for key in active]
            table.add_row(f"{item.count:,}", ms(item.total_ms), *by_activity, item.size)
    return table


def layers_table(profile: Profile) -> Table:
    table = new_table("forward|backward|optimizer|total|share", "layer")
    total = sum(layer.total_ms for layer in profile.layers)
    for item in profile.layers[:TOP]:
        parts = (item.forward_ms, item.backward_ms, item.optimizer_ms, item.total_ms)
        figures = [ms(spent) if spent else "-" for spent in parts]
        table.add_row(*figures, percent(item.total_ms / total, 1), end_of(item.name, 40))
    return table


def kinds_line(profile: Profile) -> list[Text]:
    total = sum(profile.kinds.values())
    if not total:
        return []
    parts = [f"{kind} {percent(spent / total)}" for kind, spent in profile.kinds.items()]
    return [Text(), Text("Kernels by kind: " + ", ".join(parts))]


def memory_lines(profile: Profile) -> list[Text]:
    lines = []
    for item in profile.memory:
        where = f"{item.host} " if len(profile.hosts) > 1 else ""
        line = f"  {where}{item.allocator}: peak {size(item.peak_bytes)}"
        if item.lifetime_peak_bytes > item.peak_bytes:
            line += f" ({size(item.lifetime_peak_bytes)} since the start)"
        line += f" of {size(item.capacity_bytes)}"
        if item.headroom:
            line += f"; {item.headroom:.1f} times the batch may fit"
        lines.append(Text(line))
        for part in item.at_peak[:3]:
            shape = f"{part.count:,} x {part.shape}  " if part.shape else ""
            held = f"    {size(part.total_bytes):>9}  {shape}"
            lines.append(Text(held).append_text(end_of(part.operation, 98 - len(held))))
    return lines


def input_lines(profile: Profile) -> list[Text]:
    lines = []
    for item in profile.input_pipeline[:2]:
        slowest = f"slowest call {ms(item.slowest_call_ms)} ms, {ms(item.iterator_ms)} of it in"
        lines += [
            Text(f"  {item.pipeline}: {slowest} {item.iterator}"),
            Text(f"  {item.suggestion}"),
        ]
    return lines


# --- one profile ---


def title(profile: Profile) -> str:
    """Run, hosts and devices; a run that is named like its host is named once."""
    count, kind = profile.device_count, profile.device_type
    computed = sum(device.kernels > 0 for device in profile.devices)
    devices = f"{count} {kind}" if count else "no GPU"
    if computed and computed < count:
        devices = f"{computed} of {count} {kind} computed"
    hosts = profile.hosts[0] if len(profile.hosts) == 1 else f"{len(profile.hosts)} hosts"
    return ", ".join(dict.fromkeys((profile.run, hosts, devices)))


def head(profile: Profile) -> list[Text]:
    """The answer: the verdict, its evidence, what can be gained at most, what to do."""
    verdict = profile.verdict
    lines = [Text(verdict["sentence"], style="bold")]
    if verdict["evidence"]:
        lines.append(Text("Evidence: " + verdict["evidence"]))
    if verdict["ceiling"]:
        lines.append(Text("Ceiling: " + verdict["ceiling"]))
    lines.append(Text("Next: " + verdict["next"]))
    others = [
        f"{item.kind} at most {ms(item.gain_ms)} ms, {item.factor:.2f}x"
        for item in ceilings(profile)[1:]
    ]
    if others:
        lines.append(Text(f"After that: {'; '.join(others)}. Ceilings do not add up."))
    return lines


def show(profile: Profile, console: Console) -> None:
    colour = console.color_system is not None
    lines = [*head(profile), Text(), Text(title(profile), style="bold")]
    lines += [Text(profile.path, overflow="fold")]
    lines += [Text(note) for note in profile.notes]
    console.print(*lines, Text(), *step_lines(profile, colour), sep="\n")
    busy = [device for device in profile.devices if device.kernels]
    on_device, on_host = (
        [op for op in profile.operations if op.where == side][:TOP] for side in ("device", "host")
    )
    kernels = "The most expensive GPU kernels", kernels_table(profile.kernels[:TOP])
    if profile.is_ideal:
        kernels = "Kernels a step", kernel_counts_table(profile)
    devices = "Devices, from the first kernel to the last (of all: of the whole recording)"
    for heading, table in (
        ("Hosts", hosts_table(profile)),
        (devices, devices_table(profile.devices, busy)),
        ("What the host did while a device computed nothing, ms", gaps_table(busy)),
        ("Copies", copies_table(profile)),
        ("Time by layer, ms", layers_table(profile)),
        ("The most expensive operations on the device", operations_table(on_device)),
        ("The most expensive operations on the host", operations_table(on_host)),
        kernels,
    ):
        if table.row_count:
            console.print(Text(), Text(heading, style="bold"), table, sep="\n")
    lines = kinds_line(profile)
    in_16, in_32 = (profile.precision.get(f"bits{n}_percent") for n in (16, 32))
    if in_16 is not None and in_32 is not None:
        lines.append(Text(f"Device time in 16 bit {in_16:.1f} %, in 32 bit {in_32:.1f} %"))
    lines += section("Memory", memory_lines(profile))
    retraced = [
        Text(f"  {item.name}: {item.traced} of {item.calls} calls traced it")
        for item in profile.retraced[:5]
    ]
    lines += section("Traced again: a call with a new shape or Python value", retraced)
    lines += section("Input pipeline (tf.data)", input_lines(profile))
    lines += section("Not in this profile", [Text(f"  {line}") for line in profile.missing])
    console.print(*lines, sep="\n")


# --- two profiles ---


def differences_table(items: list[Difference], names: str) -> Table:
    counted = any(map(runs_differ, items))
    table = new_table("A|B|B - A|count A|count B" if counted else "A|B|B - A", names)
    for item in items:
        change = Text(ms(item.difference_ms))
        if item.difference_ms < 0:
            change.stylize("green")
        elif item.difference_ms > 0:
            change = Text("+" + ms(item.difference_ms), style="red")
        room = 32 if counted else 44
        cells = [start_of(item.type, 21), end_of(item.name, room)]
        if "|" not in names:
            cells = [start_of(item.name, room + 20)]
        counts = [
            "-" if count is None else f"{count:.4g}"
            for count in (item.a_count, item.b_count)
            if counted
        ]
        table.add_row(ms(item.a_ms), ms(item.b_ms), change, *counts, *cells)
    return table


def show_both(a: Profile, b: Profile, comparison: Comparison, console: Console) -> None:
    for letter, profile in (("A", a), ("B", b)):
        console.print(Text(f"{letter}  {title(profile)}", style="bold"))
        for line in (profile.path, profile.verdict["sentence"], *profile.notes):
            console.print(Padding(Text(line), (0, 0, 0, 3), expand=False))
    lines = [Text(), Text(comparison.sentence, style="bold"), *map(Text, comparison.notes)]
    console.print(*lines, Text(f"Next, for B: {comparison.next}"), Text(), sep="\n")
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
