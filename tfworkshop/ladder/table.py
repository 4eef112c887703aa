"""The ladder as a table and a chart: on the terminal, as Markdown and as a picture."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
from matplotlib.figure import Figure
from rich.console import Console

from tfworkshop.files import save, save_record, save_text
from tfworkshop.results import Ladder, Row
from tfworkshop.stages import FLOP_PER_IMAGE
from tfworkshop.terminal import as_markdown, number, print_table, ratio, spread

BAR_WIDTH = 48
WIDE = 106  # columns that the whole table takes on a terminal
ONLY_IF_WIDE = "the one change"


def share_of_ceiling(row: Row, ceiling: dict[str, float]) -> float | None:
    """A stage's share of this device's matrix-multiply speed, in the precision that it uses."""
    precision = (row.precision or "float32").removeprefix("mixed_")
    peak = ceiling.get(precision)
    if not peak or not row.img_per_s:
        return None
    devices = 1 if row.on_cpu else row.ranks  # ranks share a CPU
    return row.img_per_s * FLOP_PER_IMAGE / (peak * devices)


# --- the ideal GPU: what the host takes, and what it gave the device to do ---

PER_STEP = {  # the titles, and the counters of ideal_gpu/counted.py
    "kernels": ["tensorflow_kernels", "xla_kernels"],
    "library": ["library_calls"],
    "graphs": ["graph_launches"],
    "to device": ["to_device"],
    "bytes": ["to_device_bytes"],
    "to host": ["to_host"],
    "bytes back": ["to_host_bytes"],
    "waits": ["waits"],
}
IDEAL_NOTE = (
    "kernels take no time here: img/s is the host's limit for any GPU with this program, not a "
    "GPU's speed; per step: kernels (also those in graphs), library calls, graph launches, copies "
    "and their bytes, waits; own: the stand-in's share of the step; +2 us: ms per step if every "
    "launch and copy cost a driver's 2 us, an assumption"
)


def is_ideal(ladder: Ladder) -> bool:
    return bool(ladder.rows[0].counts)


def ideal_header(ladder: Ladder) -> list[str]:
    first = ladder.rows[0].stage[:2]
    return ["stage", "ms/step", "img/s", f"x {first}", "own", "+2 us", *PER_STEP]


def ideal_cells(ladder: Ladder) -> list[list[str]]:
    table = []
    for row in ladder.rows:
        step_ms = row.step_ms_median or 0
        own = row.counts.get("own_ns", 0) / 1e6
        cells = [row.stage, f"{step_ms:.2f}", number(row.img_per_s)]
        cells.append(ratio(row.img_per_s, ladder.rows[0].img_per_s))
        cells.append(f"{100 * own / step_ms:.1f} %" if step_ms else "-")
        with_driver = row.step_ms_with_driver
        cells.append("-" if with_driver is None else f"{with_driver:.2f}")
        for counters in PER_STEP.values():
            cells.append(f"{round(sum(row.counts[name] for name in counters), 1):,.10g}")
        table.append(cells)
    return table


# --- any other device ---


def header(ladder: Ladder) -> list[str]:
    if is_ideal(ladder):
        return ideal_header(ladder)
    first = ladder.rows[0].stage[:2]
    titles = ["stage", "the one change", "lines", "ms/step", "img/s", "x prev.", f"x {first}"]
    return [*titles, "% peak", "accuracy"]


def cells(ladder: Ladder) -> list[list[str]]:
    """The columns that the header names, for each stage."""
    if is_ideal(ladder):
        return ideal_cells(ladder)
    speeds = [row.img_per_s for row in ladder.rows]
    table = []
    for i, row in enumerate(ladder.rows):
        share = share_of_ceiling(row, ladder.ceiling)
        table.append(
            [
                row.stage,
                row.change,
                "-" if row.lines is None else f"{row.lines}",
                number(row.step_ms_median),
                number(row.img_per_s),
                ratio(speeds[i], speeds[i - 1]) if i > 0 else "-",
                ratio(speeds[i], speeds[0]) if i > 0 else "-",
                "-" if share is None else f"{100 * share:.1f}",
                "-" if row.test_accuracy is None else f"{100 * row.test_accuracy:.1f} %",
            ]
        )
    return table


def hardware(ladder: Ladder) -> str:
    between = " on " if is_ideal(ladder) else ", "
    return f"{ladder.rows[0].device}{between}{ladder.machine}"


def provenance(ladder: Ladder) -> str:
    """What was measured, and on what: stands under every table."""
    row = ladder.rows[0]
    parts = [hardware(ladder)]
    parts.append("real MNIST" if row.data == "mnist" else "SYNTHETIC DATA, not MNIST")
    parts.append(f"batch {row.batch_size * row.ranks}, {row.ranks} rank(s)")
    clock = f"median step after {row.warmup_steps} of warm-up"
    if len(row.repeats) > 1:
        clock = f"median of {len(row.repeats)} runs, each the {clock}"
    parts.append(f"{ladder.steps} steps, {clock}")
    parts.append(", ".join(f"{name} {version}" for name, version in row.versions.items()))
    parts.append(f"{ladder.date}, commit {ladder.commit}" if ladder.commit else ladder.date)
    peaks = [f"{precision} {speed / 1e9:,.0f}" for precision, speed in ladder.ceiling.items()]
    if peaks:
        parts.append(f"peak: matrix multiply here, GFLOP/s: {', '.join(peaks)}")
    if is_ideal(ladder):
        parts.append(IDEAL_NOTE)
    return "; ".join(parts)


def show(ladder: Ladder, console: Console) -> None:
    """The table, a bar for each stage, and what was measured."""
    titles = header(ladder)
    rows = cells(ladder)
    if console.width < WIDE:
        columns = [i for i, title in enumerate(titles) if title != ONLY_IF_WIDE]
        titles = [titles[i] for i in columns]
        rows = [[row[i] for i in columns] for row in rows]
    if is_ideal(ladder):  # two tables that fit: the host's time, and the device's work
        times = len(titles) - len(PER_STEP)
        print_table(console, titles[:times], [row[:times] for row in rows])
        work = [[row[0], *row[times:]] for row in rows]
        print_table(console, ["per step", *titles[times:]], work)
    else:
        print_table(console, titles, rows, words=[ONLY_IF_WIDE])
    fastest = max(row.img_per_s or 0 for row in ladder.rows)
    widest = min(BAR_WIDTH, console.width - 50)
    for row in ladder.rows:
        bar = ""
        if row.img_per_s:
            bar = "█" * round(widest * row.img_per_s / fastest)
        console.print(f"{row.stage:<20} {bar} {speed_and_spread(row)}")
    console.print(f"\n{provenance(ladder)}\n")


def speed_and_spread(row: Row) -> str:
    text = number(row.img_per_s)
    if len(row.repeats) > 1:
        text += f" ({spread(row.repeats)})"
    return text


def markdown(ladder: Ladder) -> str:
    """The table for a page: there is room for the spread of the repeats."""
    titles = header(ladder)
    table = cells(ladder)
    for row, line in zip(ladder.rows, table):
        line[titles.index("img/s")] = speed_and_spread(row)
    return (
        f"{as_markdown(titles, table, left=1 if is_ideal(ladder) else 2)}\n\n{provenance(ladder)}\n"
    )


def draw(ladder: Ladder, path: Path) -> None:
    """Horizontal bars, one per stage, on a log scale, with the numbers beside them."""
    speeds = {row.stage: row.img_per_s for row in ladder.rows if row.img_per_s}
    slowest = min(speeds.values(), default=1.0)
    fastest = max(speeds.values(), default=1.0)
    first = next(iter(speeds.values()), None)
    colours = ["#1f4e79" if speed == fastest else "#9fb8d1" for speed in speeds.values()]
    labels = [f"{number(speed)} img/s   {ratio(speed, first)}" for speed in speeds.values()]

    figure = Figure(figsize=(9, 0.55 * len(speeds) + 1.6), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh(list(speeds), list(speeds.values()), color=colours, height=0.62)
    axes.bar_label(bars, labels, padding=5, fontsize=10)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(slowest / 3, fastest * 6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("images per second, log scale")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    title = "One MNIST CNN, the same training, stage by stage"
    if any(row.data != "mnist" for row in ladder.rows):
        title += " (SYNTHETIC data)"
    figure.suptitle(title, x=0.02, ha="left")
    axes.set_title(hardware(ladder), fontsize=9, loc="left", color="#555555")
    metadata = {"Description": fingerprint(ladder)}
    save(path, lambda part: figure.savefig(part, dpi=140, format="png", metadata=metadata))


def fingerprint(ladder: Ladder) -> str:
    """Identifies the run that a chart shows."""
    return hashlib.sha256(msgspec.json.encode(ladder)).hexdigest()


def write(ladder: Ladder, folder: Path) -> None:
    """ladder.json, ladder.md and ladder.png."""
    save_record(folder / "ladder.json", ladder)
    save_text(folder / "ladder.md", markdown(ladder))
    draw(ladder, folder / "ladder.png")
