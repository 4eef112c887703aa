"""`./workshop results`: the last run's table; and every measured figure of the READMEs.

A figure in a page stands between `<!--= NAME -->` and `<!--/=-->`, and `figures` makes the text of
each name, from the runs that are kept in docs/measured/ in a folder for each device. The pages
quote one device, QUOTED; `devices` and `gpus STAGE` show the others. A stage is named by number or
by name: 06 is 06_optimized. The line of a script's docstring that starts with "Speed: " comes from
docs/measured/ too.
"""

from __future__ import annotations

import re
from pathlib import Path

from tfworkshop import terminal
from tfworkshop.files import display_path, read_record, results_folder, save_text
from tfworkshop.ladder import bench, scale, table
from tfworkshop.ladder.keep import PROFILED, keep_runs
from tfworkshop.problem import Problem
from tfworkshop.results import Bench, Ladder, Row, Scale
from tfworkshop.stages import ROOT, STAGES, Stage

MEASURED = ROOT / "docs" / "measured"
QUOTED = "2-core-amd-epyc"  # the device whose figures the pages quote
CHART = ROOT / "docs" / "images" / "ladder_cpu.png"
MARK = re.compile(r"(<!--= ([^>]*?) -->)(.*?)(<!--/=-->)", re.S)
SPEED_LINE = re.compile(r"^Speed: .*$", re.M)  # in a script's docstring
# What a page shows of a stage's summary, in the order in which the stage prints it.
SUMMARY = ["batch_size", "data", "precision", "xla", "steps_per_call", "device", "warmup_steps"]
SUMMARY += ["steps_timed", "compile_s", "step_ms_median", "img_per_s", "final_loss"]
SUMMARY += ["test_accuracy"]


# --- the figures ---


def quoted_folder() -> Path:
    return MEASURED / QUOTED


def read_ladder(folder: Path) -> Ladder:
    return read_record(folder / "ladder.json", Ladder)


def figures() -> dict[str, str]:
    """All figures that a page can name, as text."""
    folder = quoted_folder()
    ladder = read_ladder(folder)
    rows = {row.stage[:2]: row for row in ladder.rows}  # of two with a number, the last
    optimized = rows["06"]
    rows.update({row.stage: row for row in ladder.rows})
    values = {"table": "\n" + table.markdown(ladder), "devices": devices()}
    for name, row in rows.items():
        share = table.share_of_ceiling(row, ladder.ceiling) or 0
        values[f"log {name}"] = block(log_lines(row))
        values[f"speed {name}"] = terminal.number(row.img_per_s)
        values[f"ms {name}"] = f"{terminal.number(row.step_ms_median)} ms"
        values[f"compile {name}"] = f"{row.compile_s or 0:.1f} s"
        values[f"peak {name}"] = f"{100 * share:.0f} %"
        values[f"gpus {name}"] = speeds_on_gpus(row.stage)
        for other_name, other in rows.items():
            values[f"factor {name} {other_name}"] = factor(row, other)
    if optimized.tried:
        values["tried"] = block(optimized.tried.lines)
        values["chosen"] = optimized.tried.switches
    for path in folder.glob("bench_*.json"):
        comparison = read_record(path, Bench)
        values[f"bench {comparison.batch_size}"] = f"\n{bench.markdown(comparison)}\n"
    for path in folder.glob("scale_06_*.json"):
        scaling = read_record(path, Scale)
        values[f"scale {scaling.batch_size}"] = f"\n{scale.markdown(scaling)}\n"
        values[f"scale-verdict {scaling.batch_size}"] = scale.verdict(scaling)
    for number in PROFILED:
        profile = read_record(folder / f"profile_{number}.json", dict[str, float])
        for what, value in profile.items():
            values[f"profile {number} {what}"] = f"{100 * value:.0f} %"
        values[f"profile {number} adam"] = f"{profile['adam']:.0f}"  # a count
    for path in folder.glob("*.txt"):
        values[f"text {path.name}"] = block(path.read_text().splitlines())
    return values


def block(lines: list[str]) -> str:
    return "\n".join(["\n```", *lines, "```\n"])


def log_lines(row: Row) -> list[str]:
    """What the stage printed: its last steps, and the main lines of its summary."""
    lines = ["...", *row.log]
    for name in SUMMARY:
        value = getattr(row, name)
        if value is not None:  # the stage has this option
            lines.append(f"{name:<15} {value}")
    return lines


def factor(row: Row, other: Row) -> str:
    """To two digits: enough for a reader."""
    value = (row.img_per_s or 0) / (other.img_per_s or 1)
    if value >= 9.95:
        return f"{value:.0f}x"
    return f"{value:.1f}x"


# --- other devices ---


def other_folders() -> list[Path]:
    folders = [path.parent for path in MEASURED.glob("*/ladder.json")]
    return sorted(folder for folder in folders if folder != quoted_folder())


def devices() -> str:
    if not other_folders():
        return "None yet: nobody has run this repository on a GPU."
    return "\n" + "\n".join(device_section(folder) for folder in other_folders())


def device_section(folder: Path) -> str:
    """A heading that names the device, and all its tables."""
    ladder = read_ladder(folder)
    row = ladder.rows[0]
    name = "a CPU" if row.on_cpu else row.device
    parts = [f"### {table.hardware(ladder)}", f"**These are figures of {name}.**"]
    parts.append(table.markdown(ladder).rstrip())
    for path in sorted(folder.glob("bench_*.json")):
        comparison = read_record(path, Bench)
        parts.append(f"06 against `model.fit`, batch {comparison.batch_size}:")
        parts.append(bench.markdown(comparison))
    for path in sorted(folder.glob("scale_*.json")):
        scaling = read_record(path, Scale)
        parts.append(f"{scaling.stage} on more ranks, batch {scaling.batch_size} on every rank:")
        parts.append(scale.markdown(scaling))
    return "\n\n".join(parts) + "\n"


def speeds_on_gpus(stage: str) -> str:
    speeds = []
    for folder in other_folders():
        for row in read_ladder(folder).rows:
            if row.stage == stage and not row.on_cpu:
                name = f"{row.ranks} x {row.device}" if row.ranks > 1 else row.device
                speeds.append(f"{name}: {terminal.number(row.img_per_s)} img/s")
    if not speeds:
        return "Not run on a GPU yet."
    return f"Measured on {'; '.join(speeds)}."


# --- the pages and the scripts ---


def readmes() -> list[Path]:
    pages = [ROOT / "README.md", ROOT / "docs" / "RESULTS.md"]
    return [*pages, *sorted(ROOT.glob("[0-9]*/[A-Z]*.md"))]


def fill(text: str) -> str:
    """A page's text with every figure as docs/measured/ has it."""
    values = figures()

    def replace(mark: re.Match[str]) -> str:
        name = mark[2]
        if name not in values:
            raise Problem(f"no figure is named {name}: tfworkshop/ladder/results.py lists them")
        return mark[1] + values[name] + mark[4]

    return MARK.sub(replace, text)


def speed_line(stage: Stage) -> str:
    """The line of a script's docstring."""
    ladder = read_ladder(quoted_folder())
    rows = {row.stage: row for row in ladder.rows}
    row = rows[stage.name]
    speed = f"{terminal.number(row.img_per_s)} img/s"
    if stage != STAGES[0]:
        speed += f", {factor(row, rows[STAGES[0].name])} stage 00"
    run = f"batch {row.batch_size}, {ladder.steps} steps"
    return f"Speed: {speed} ({table.hardware(ladder)}, {run}); A100s: README.md."


def with_speed(stage: Stage) -> str:
    """The stage's script with the speed of docs/measured/."""
    return SPEED_LINE.sub(lambda _: speed_line(stage), stage.script.read_text(), count=1)


def write_figures() -> list[Path]:
    """Put the figures of docs/measured/ into every page and script, and draw the chart."""
    texts = {path: fill(path.read_text()) for path in readmes()}
    texts.update({stage.script: with_speed(stage) for stage in STAGES})
    changed = [path for path, text in texts.items() if text != path.read_text()]
    for path in changed:
        save_text(path, texts[path])
    table.draw(read_ladder(quoted_folder()), CHART)
    return [*changed, CHART]


def run(keep: str | None, write: bool) -> int:
    """keep: a folder of runs; empty means that of the last ones, None that nothing is kept."""
    console = terminal.console()
    paths = []
    if keep is not None:
        paths.append(keep_runs(Path(keep) if keep else results_folder(), MEASURED))
    if write:
        paths += write_figures()
    if not paths:
        folder = results_folder()
        if not (folder / "ladder.json").exists():
            raise Problem(f"there is no run in {display_path(folder)} yet: ./workshop run")
        table.show(read_ladder(folder), console)
    for path in paths:
        console.print(f"wrote {display_path(path)}")
    return 0
