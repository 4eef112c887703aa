"""The ladder as a table and a chart: on the terminal, as Markdown and as a picture."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfworkshop.files import WRONG_SHAPE, save
from tfworkshop.problem import Problem
from tfworkshop.stages import FLOP_PER_IMAGE, ROOT, STAGES, Stage
from tfworkshop.terminal import as_markdown, number, plain, ratio

BAR_WIDTH = 48
PREDICTED = ROOT / "docs" / "measured" / "xray.json"


def of_ceiling(row: dict, ceiling: dict[str, float]) -> float | None:
    """The stage's share of this device's matrix-multiply speed, in the precision that it uses."""
    precision = row.get("precision", "float32").replace("mixed_", "")
    peak, speed = ceiling.get(precision), row["img_per_s"]
    devices = 1 if row["device"].startswith("CPU") else row["ranks"]  # ranks share a CPU
    return speed * FLOP_PER_IMAGE / peak / devices if peak and speed else None


def kernels(stage: Stage, xray: dict) -> str:
    """GPU kernels a step, as xray predicts them, in the case that an A100 would run."""
    cases = [
        case
        for case in xray["cases"]
        if (case["stage"], case["script"]) == (stage.folder, stage.file)
    ]
    case = max(cases, key=lambda c: (c["precision"] == "mixed_bfloat16", c["xla"] == "on"))
    if case["kernels"] is None:  # eager
        return "-"
    return f"{case['kernels']}" + (f"+{case['compiled_calls']}" if case["compiled_calls"] else "")


def predictions() -> dict[str, str]:
    """By the stage's name; empty if there are no figures of xray."""
    try:
        xray = json.loads(PREDICTED.read_text())
        return {stage.name: kernels(stage, xray) for stage in STAGES}
    except (OSError, *WRONG_SHAPE):
        return {}


def cells(ladder: dict) -> list[list[str]]:
    """What the header names, for each stage; a failed stage says so."""
    rows, table, predicted = ladder["rows"], [], predictions()
    speeds = [None if "failed" in row else row["img_per_s"] for row in rows]
    for i, row in enumerate(rows):
        if "failed" in row:
            table.append([row["stage"], "FAILED", *["-"] * (7 + bool(predicted))])
            continue
        accuracy, share = row["test_accuracy"], of_ceiling(row, ladder["ceiling"])
        table.append(
            [
                row["stage"],
                row["change"],
                f"{row['lines'] or '-'}",
                number(row["step_ms_median"]),
                number(speeds[i]),
                ratio(speeds[i], speeds[i - 1]) if i else "-",
                ratio(speeds[i], speeds[0]) if i else "-",
                "-" if share is None else f"{100 * share:.1f}",
                "-" if accuracy is None else f"{100 * accuracy:.1f} %",
                *([predicted.get(row["stage"], "-")] if predicted else []),
            ]
        )
    return table


def header(ladder: dict) -> list[str]:
    times = [f"x {ladder['rows'][0]['stage'][:2]}", "% peak", "accuracy"]
    times += ["kernels, predicted"] if predictions() else []
    return ["stage", "the one change", "lines", "ms/step", "img/s", "x prev.", *times]


def hardware(ladder: dict, row: dict) -> str:
    return ", ".join(filter(None, [row["device"], ladder.get("machine")]))


def provenance(ladder: dict) -> str:
    """Under every table: what was measured, on what."""
    row = next((row for row in ladder["rows"] if "device" in row), None)
    if row is None:
        return ""
    kind = "real MNIST" if row["data"] == "mnist" else "SYNTHETIC DATA, not MNIST"
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    repeats = len(row.get("repeats", [0]))
    median = f"median of {repeats} runs, each the median step" if repeats > 1 else "median step"
    commit = f", commit {ladder['commit']}" if ladder["commit"] else ""
    peak = ", ".join(f"{name} {speed / 1e9:,.0f}" for name, speed in ladder["ceiling"].items())
    peak = peak and f"; peak: matrix multiply here, GFLOP/s: {peak}"
    kernels = "; kernels: of a GPU, a step, + compiled calls: predicted by xray, not measured"
    return plain(
        f"{hardware(ladder, row)}; {kind}; batch {row['batch_size'] * row['ranks']}, "
        f"{row['ranks']} rank(s); {ladder['steps']} steps, {median} after {row['warmup_steps']} of "
        f"warm-up; {versions}; {ladder['date']}{commit}{peak}{kernels * bool(predictions())}"
    )


def show(ladder: dict, console: Console) -> None:
    try:
        parts = shown(ladder, console.width)
    except WRONG_SHAPE:
        raise Problem("ladder.json is not one of ./workshop run: run it again") from None
    console.print(*parts, sep="\n", markup=False)


def shown(ladder: dict, width: int) -> list[Table | str]:
    """The table, a bar for each stage, and what was measured."""
    rows, titles = ladder["rows"], header(ladder)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    titles = [title.replace(", ", ",\n") for title in titles]
    lines = [title.split("\n") for title in titles]
    widths = [
        max(map(len, [*lines[i], *column])) + 1 for i, column in enumerate(zip(*cells(ladder)))
    ]
    kept = list(range(len(titles)))
    for droppable in (9, 1, 2, 7):  # on a narrow terminal: kernels, words, lines, the ceiling
        if sum(widths[i] for i in kept) + 1 > width and droppable in kept:
            kept.remove(droppable)
    for i in kept:
        justify = "left" if i < 2 else "right"
        table.add_column(titles[i], justify=justify, no_wrap=True)
    for row in cells(ladder):
        style = "red" if row[1] == "FAILED" else None
        table.add_row(*(Text(row[i]) for i in kept), style=style)
    parts: list[Table | str] = [table]
    fastest = max((row.get("img_per_s") or 0 for row in rows), default=0)
    for row in rows:
        speed = row.get("img_per_s") or 0
        bar = "█" * round(BAR_WIDTH * speed / fastest) if fastest else ""
        result = "failed" if "failed" in row else number(speed or None) + spread(row)
        parts.append(f"{row['stage']:<20} {bar} {result}")
    return [*parts, f"\n{provenance(ladder)}\n"]


def markdown(ladder: dict) -> str:
    """The table for a page: there is room for the spread of the repeats."""
    titles, rows = header(ladder), cells(ladder)
    for row, line in zip(ladder["rows"], rows):
        line[titles.index("img/s")] += spread(row)
    return f"{as_markdown(titles, rows, left=2)}\n\n{provenance(ladder)}\n"


def spread(row: dict) -> str:
    speeds = row.get("repeats")
    return f" ({number(min(speeds))} to {number(max(speeds))})" if speeds and speeds[1:] else ""


def draw(ladder: dict, path: Path) -> None:
    """Horizontal bars, one per stage, on a log scale, with the numbers beside them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    good = [row for row in ladder["rows"] if row.get("img_per_s")]
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
    axes.set_title(
        hardware(ladder, good[0]) if good else "", fontsize=9, loc="left", color="#555555"
    )
    made_of = {"Description": fingerprint(ladder)}
    save(path, lambda part: figure.savefig(part, dpi=140, format="png", metadata=made_of))
    plt.close(figure)


def fingerprint(ladder: dict) -> str:
    """Identifies the run that a chart shows."""
    return hashlib.sha256(json.dumps(ladder, sort_keys=True).encode()).hexdigest()


def write(ladder: dict, folder: Path) -> list[Path]:
    """ladder.json, ladder.md and ladder.png."""
    paths = [folder / f"ladder.{ending}" for ending in ("json", "md", "png")]
    save(paths[0], lambda part: part.write_text(json.dumps(ladder, indent=2) + "\n"))
    save(paths[1], lambda part: part.write_text(markdown(ladder)))
    draw(ladder, paths[2])
    return paths
