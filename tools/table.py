"""The ladder as a table and a chart: on the terminal, as Markdown and as a picture."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

BAR_WIDTH = 48


def number(value: float | None) -> str:
    """1,234 but 12.3: three figures or more."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def ratio(value: float | None, base: float | None) -> str:
    if not value or not base:
        return "-"
    return f"{value / base:.2f}x" if value < 10 * base else f"{value / base:.0f}x"


def cells(rows: list[dict]) -> list[list[str]]:
    """stage, change, ms/step, img/s, x previous, x first, accuracy; a failed stage says so."""
    table = []
    speeds = [None if "failed" in row else row["img_per_s"] for row in rows]
    for i, row in enumerate(rows):
        if "failed" in row:
            table.append([row["stage"], "FAILED", "-", "-", "-", "-", "-"])
            continue
        accuracy = row["test_accuracy"]
        table.append(
            [
                row["stage"],
                row["change"],
                number(row["step_ms_median"]),
                number(speeds[i]),
                ratio(speeds[i], speeds[i - 1]) if i else "-",
                ratio(speeds[i], speeds[0]) if i else "-",
                "-" if accuracy is None else f"{100 * accuracy:.1f} %",
            ]
        )
    return table


def header(rows: list[dict]) -> list[str]:
    first = rows[0]["stage"][:2]
    return ["stage", "the one change", "ms/step", "img/s", "x prev.", f"x {first}", "accuracy"]


def provenance(rows: list[dict]) -> str:
    """Under every table: what was measured, on what."""
    row = next((row for row in rows if "device" in row), None)
    if row is None:
        return ""
    kind = "real MNIST" if row["data"] == "mnist" else "SYNTHETIC DATA, not MNIST"
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return (
        f"{row['device']}; {kind}; batch {row['global_batch']}, {row['ranks']} rank(s); median of "
        f"the steps after {row['warmup_steps']} of warm-up; {versions}"
    )


def show(rows: list[dict], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    columns = zip(*[header(rows), *cells(rows)])
    width = sum(max(map(len, column)) + 2 for column in columns)
    shown = [i for i in range(len(header(rows))) if i != 1 or width <= console.width]
    for i in shown:
        justify = "left" if i < 2 else "right"
        table.add_column(header(rows)[i], justify=justify, no_wrap=True)
    for row in cells(rows):
        style = "red" if row[1] == "FAILED" else None
        table.add_row(*(row[i] for i in shown), style=style)
    console.print(table)
    fastest = max((row.get("img_per_s") or 0 for row in rows), default=0)
    for row in rows:
        speed = row.get("img_per_s") or 0
        bar = "█" * round(BAR_WIDTH * speed / fastest) if fastest else ""
        told = "failed" if "failed" in row else number(speed or None)
        console.print(f"{row['stage']:<20} {bar} {told}")
    console.print(f"\n{provenance(rows)}\n", markup=False)


def markdown(rows: list[dict]) -> str:
    titles = header(rows)
    lines = ["| " + " | ".join(titles) + " |", "|---|---|" + "--:|" * (len(titles) - 2)]
    lines += ["| " + " | ".join(row) + " |" for row in cells(rows)]
    return "\n".join([*lines, "", provenance(rows), ""])


def draw(rows: list[dict], path: Path) -> None:
    """Horizontal bars, one per stage, on a log scale; the numbers stand beside them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    good = [row for row in rows if row.get("img_per_s")]
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(good) + 1.6), layout="constrained")
    speeds = [row["img_per_s"] for row in good]
    fastest = max(speeds, default=1)
    colours = ["#1f4e79" if speed == fastest else "#9fb8d1" for speed in speeds]
    bars = axes.barh([row["stage"] for row in good], speeds, color=colours, height=0.62)
    labels = [f"{number(v)} img/s   {ratio(v, speeds[0])}" for v in speeds]
    axes.bar_label(bars, labels, padding=5, fontsize=10)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(speeds, default=1) / 3, fastest * 6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("images per second, log scale")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    kind = "" if all(row["data"] == "mnist" for row in good) else " (SYNTHETIC data)"
    figure.suptitle(f"One MNIST CNN, the same training, stage by stage{kind}", x=0.02, ha="left")
    axes.set_title(good[0]["device"] if good else "", fontsize=9, loc="left", color="#555555")
    save(path, lambda part: figure.savefig(part, dpi=140, format="png"))
    plt.close(figure)


def save(path: Path, write_to) -> None:
    """Write aside, then rename: a reader never sees half a file."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        write_to(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write(rows: list[dict], folder: Path) -> list[Path]:
    """ladder.json, ladder.md and ladder.png."""
    paths = [folder / f"ladder.{ending}" for ending in ("json", "md", "png")]
    save(paths[0], lambda part: part.write_text(json.dumps(rows, indent=2) + "\n"))
    save(paths[1], lambda part: part.write_text(markdown(rows)))
    draw(rows, paths[2])
    return paths
