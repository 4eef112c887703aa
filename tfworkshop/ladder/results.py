"""`./workshop results`: the last run's table; and every measured figure of the READMEs.

A figure in a README is between `<!--= WHAT -->` and `<!--/=-->`. The text between them is made
from the runs that are kept in docs/measured/, in a folder for each device. The pages quote one of them,
QUOTED; `devices` and `gpus` show the others. STAGE is a number or a name: 06 is 06_optimized, the
other rung is 06_device. Everything was measured, except `kernels`, which xray predicts.

    table                    the ladder: a row for each stage, and below it what it was measured on
    devices                  all other devices: the ladder, 06 against model.fit, and how it scales
    gpus STAGE               the stage's speed on each GPU, in one line
    log STAGE                the stage's last log lines and what matters of its summary, as a block
    speed STAGE              images per second: 2,001
    ms STAGE                 the median step: 32.0 ms
    compile STAGE            what tracing and compiling took beyond the steps' own time: 0.8 s
    factor STAGE OTHER       how many times as fast as the other: 2.3x
    peak STAGE [PRECISION]   of the matrix multiply, in the stage's precision or this one: 67 %
    gflops PRECISION         the matrix multiply itself, in GFLOP/s: 212
    kernels STAGE            GPU kernels a step, predicted: 217, 13+1 (and one compiled call) or -
    profile STAGE WHAT       of 04's or 05's profile: convolutions, products, random or input, in
                             % of the time; adam, its operations a step: 219
    tried                    what choose.py tried for 06, as it printed it, as a block
    chosen                   the switches that it found: --xla off --precision float32 ...
    bench BATCH              06 against model.fit at this batch size, as a table
    against-fit BATCH        the same in one line
    scale [BATCH]            06 on one and more ranks, as a table
    scale-verdict [BATCH]    the same in one line
    text FILE                a file of the device's folder as it is, as a block: text clock.txt

The line of each script's docstring that starts with "Speed: " is also made from docs/measured/.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfworkshop import terminal
from tfworkshop.files import in_time, results_folder, save
from tfworkshop.ladder import bench, scale, table
from tfworkshop.stages import ROOT, STAGES, Stage, choose

PROFILED = ("04", "05")  # the pages after these rest on their profiles
KEPT = ROOT / "docs" / "measured"
QUOTED = "2-core-amd-epyc"  # the device whose figures the pages quote
CHART = ROOT / "docs" / "images" / "ladder_cpu.png"
MARK = re.compile(r"(<!--= ([^>]*?) -->)(.*?)(<!--/=-->)", re.S)
SPEED_LINE = re.compile(r"^Speed: .*$", re.M)  # in a script's docstring
SHOWN = ("device", "batch_size", "precision", "xla", "steps_per_call", "warmup_steps")
SHOWN += ("steps_timed", "compile_s", "step_ms_median", "img_per_s", "final_loss")
SHOWN += ("test_accuracy", "data")  # what a README's log block shows of a summary


class NoResults(Exception):
    """There is no run to show, or none to keep."""


TABLE = re.compile(r"(bench_\d+|scale_\w+)\.json")
SAMPLED = {"power.draw": "power (W)", "clocks.sm": "SM clock (MHz)"}  # columns of gpu.csv
SAMPLED["temperature.gpu"] = "temperature (C)"
# What a file of another shape can raise.
ODD = (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError)
ODD += (ZeroDivisionError, RecursionError)


def no_number(text: str) -> float:
    raise ValueError(text)


def read(folder: Path, name: str) -> dict:
    try:
        return json.loads(read_text(folder, name), parse_constant=no_number)
    except (ValueError, RecursionError):
        problem = f"{os.path.relpath(folder / name)} is damaged"
        raise NoResults(f"{problem}: ./workshop run, bench and scale write it") from None


def read_text(folder: Path, name: str) -> str:
    path = folder / name
    if not path.is_file():  # a pipe would be waited for
        problem = f"no {name} in {os.path.relpath(folder)}"
        raise NoResults(f"{problem}: ./workshop run, bench and scale write it")
    return in_time(lambda: path.read_text(errors="replace"), path)


# --- the figures ---


def quoted() -> Path:
    return KEPT / QUOTED


def others() -> list[Path]:
    """The folders of all other devices."""
    return sorted(path.parent for path in KEPT.glob("*/ladder.json") if path.parent != quoted())


def row(stage: str) -> dict:
    name = choose([stage])[-1].name
    return next(row for row in read(quoted(), "ladder.json")["rows"] if row["stage"] == name)


def ladder_table() -> str:
    return "\n" + table.markdown(read(quoted(), "ladder.json"))


def devices() -> str:
    if not others():
        return "None yet: nobody has run this repository on a GPU."
    return "\n" + "\n".join(map(device, others()))


def device(folder: Path) -> str:
    """A heading that names it, and all its tables."""
    ladder = read(folder, "ladder.json")
    found, files = ladder["rows"][0], sorted(path.name for path in folder.iterdir())
    parts = [f"### {table.hardware(ladder, found)}"]
    parts += [f"**These are figures of {'a CPU' if on_cpu(found) else found['device']}.**"]
    parts += [table.markdown(ladder).rstrip()]
    if "gpu.json" in files:
        spans = read(folder, "gpu.json").items()
        told = [f"{what} {low:,.0f} to {high:,.0f}" for what, (low, high) in spans]
        parts += [f"From nvidia-smi, while it ran: {', '.join(told)}."]
    for name in [name for name in files if name.startswith("bench_")]:
        told = read(folder, name)
        parts += [f"06 against `model.fit`, batch {told['batch_size']}:", bench.markdown(told)]
    for name in [name for name in files if name.startswith("scale_")]:
        told = read(folder, name)
        parts += [f"{told['stage']} on more ranks, batch {told['batch_size']} on every rank:"]
        parts += [scale.markdown(told["points"])]
    return "\n\n".join(parts) + "\n"


def on_cpu(row: dict) -> bool:
    return row["device"].startswith("CPU")


def gpus(number: str) -> str:
    name, told = choose([number])[-1].name, []
    for folder in others():
        for found in read(folder, "ladder.json")["rows"]:
            if found["stage"] == name and not on_cpu(found):
                many = f"{found['ranks']} x " if found["ranks"] > 1 else ""
                told.append(f"{many}{found['device']}: {terminal.number(found['img_per_s'])} img/s")
    return f"Measured on {'; '.join(told)}." if told else "Not run on a GPU yet."


def log(number: str) -> str:
    """What the stage printed: its last steps, and what matters of its summary."""
    found = row(number)
    lines = ["...", *found["log"]]
    lines += [f"{name:<15} {value}" for name, value in found.items() if name in SHOWN]
    return "\n```\n" + "\n".join(lines) + "\n```\n"


def speed(number: str) -> str:
    return terminal.number(row(number)["img_per_s"])


def milliseconds(number: str) -> str:
    return f"{terminal.number(row(number)['step_ms_median'])} ms"


def seconds_compiling(number: str) -> str:
    return f"{row(number)['compile_s']:.1f} s"


def factor(number: str, other: str) -> str:
    """img/s relative to another stage, to two digits: enough for a reader."""
    value = row(number)["img_per_s"] / row(other)["img_per_s"]
    return f"{value:.0f}x" if value >= 9.95 else f"{value:.1f}x"


def peak(number: str, precision: str = "") -> str:
    """Share of the matrix multiply in the stage's own precision, or in the one that is named."""
    found = row(number) | ({"precision": precision} if precision else {})
    share = table.of_ceiling(found, read(quoted(), "ladder.json")["ceiling"])
    return f"{100 * (share or 0):.0f} %"


def gigaflops(precision: str) -> str:
    return f"{read(quoted(), 'ladder.json')['ceiling'][precision] / 1e9:,.0f}"


def text(name: str) -> str:
    """A program's output, as it was printed."""
    return f"\n```\n{read_text(quoted(), name)}```\n"


def kernels(number: str) -> str:
    return table.kernels(choose([number])[-1], read(KEPT, "xray.json"))


def tried() -> str:
    """What choose.py printed during its trials."""
    return "\n```\n" + "\n".join(row("06")["tried"]["lines"]) + "\n```\n"


def chosen() -> str:
    return row("06")["tried"]["switches"]


def bench_table(batch_size: str) -> str:
    return "\n" + bench.markdown(read(quoted(), f"bench_{batch_size}.json")) + "\n"


def against_fit(batch_size: str) -> str:
    return bench.verdict(read(quoted(), f"bench_{batch_size}.json"))


def scale_table(batch_size: str = "64") -> str:
    return "\n" + scale.markdown(read(quoted(), f"scale_06_{batch_size}.json")["points"]) + "\n"


def scale_verdict(batch_size: str = "64") -> str:
    return scale.verdict(read(quoted(), f"scale_06_{batch_size}.json")["points"])


def profiled(number: str, what: str) -> str:
    """Of the profile that the ladder's run left: a share of the operations' time, or a count."""
    found = read(quoted(), f"profile_{number}.json")[what]
    return f"{found:.0f}" if what == "adam" else f"{100 * found:.0f} %"


FIGURES: dict[str, Callable[..., str]] = {
    "table": ladder_table,
    "devices": devices,
    "gpus": gpus,
    "log": log,
    "speed": speed,
    "ms": milliseconds,
    "compile": seconds_compiling,
    "factor": factor,
    "peak": peak,
    "gflops": gigaflops,
    "text": text,
    "kernels": kernels,
    "profile": profiled,
    "tried": tried,
    "chosen": chosen,
    "bench": bench_table,
    "against-fit": against_fit,
    "scale": scale_table,
    "scale-verdict": scale_verdict,
}


def fill(text: str) -> str:
    """The text with every figure as docs/measured/ has it."""

    def figure(found: re.Match[str]) -> str:
        name, *arguments = found[2].split()
        return found[1] + FIGURES[name](*arguments) + found[4]

    return MARK.sub(figure, text)


def readmes() -> list[Path]:
    return [ROOT / "README.md", ROOT / "docs" / "RESULTS.md", *sorted(ROOT.glob("[0-9]*/[A-Z]*.md"))]


# --- the command ---


def keep_runs(folder: Path) -> list[Path]:
    """Copy a folder's runs to docs/measured/: a whole ladder on real MNIST, and what else there is."""
    ladder = clean(read(folder, "ladder.json"))
    names = sorted(path.name for path in folder.iterdir() if TABLE.fullmatch(path.name))
    tables = {name: clean(read(folder, name)) for name in names}
    try:
        check(ladder)
        tables = {name: content for name, content in tables.items() if good(name, content)}
        kept = KEPT / folder_name(ladder)
    except ODD as error:
        problem = f"{os.path.relpath(folder)} does not hold what run, bench and scale write"
        raise NoResults(f"{problem} ({type(error).__name__}: {error})") from error
    for row in ladder["rows"]:
        for name in ("results", "logdir"):  # these are paths on this machine
            row.pop(name, None)
    found = {"ladder.json": ladder, **tables}
    texts = {name: json.dumps(content, indent=2) + "\n" for name, content in found.items()}
    if (folder / "clock.txt").exists():
        texts["clock.txt"] = read_text(folder, "clock.txt")
    if samples := gpu_samples(folder):
        texts["gpu.json"] = json.dumps(samples, indent=1) + "\n"
    for number in PROFILED:
        texts[f"profile_{number}.json"] = json.dumps(summary(folder, number), indent=1) + "\n"
    predict(folder / "xray.json")
    kept.mkdir(parents=True, exist_ok=True)
    new = {kept / name: text for name, text in texts.items()}
    new[KEPT / "xray.json"] = read_text(folder, "xray.json")  # of no device
    for path, text in new.items():
        save(path, lambda part, text=text: part.write_text(text))
    return list(new)


def clean(found: object) -> Any:
    """A folder may come from anybody: no text of it may be more than words on a page."""
    if isinstance(found, dict):
        return {clean(name): clean(value) for name, value in found.items()}
    if isinstance(found, list):
        return [clean(value) for value in found]
    return re.sub(r"[][]", "", terminal.plain(found)) if isinstance(found, str) else found


def check(ladder: dict) -> None:
    """All stages, on one device, on real MNIST; and a page can show them."""
    rows = ladder["rows"]
    if [row["stage"] for row in rows] != [stage.name for stage in STAGES]:
        raise NoResults("the run did not cover all stages: ./workshop run --repeats 3")
    if any("failed" in row or row["interrupted"] or row["data"] != "mnist" for row in rows):
        raise NoResults("the run failed, was stopped, or did not use real MNIST: run it again")
    if len({(row["device"], row["ranks"]) for row in rows}) > 1:
        raise NoResults("the stages ran on different devices: run all of them again")
    table.markdown(ladder)


def good(name: str, content: dict) -> bool:
    """Whether a table of bench or scale is whole; and a page can show it."""
    if name.startswith("bench"):
        bench.markdown(content)
        whole = not any(row["failed"] for row in content["rows"])
    else:
        scale.markdown(content["points"])
        whole = all(point["repeats"] for point in content["points"])
    if not whole or content["data"] != "mnist":
        print(f"workshop: {name} is not whole, or not of real MNIST: left out", file=sys.stderr)
        return False
    return True


def folder_name(ladder: dict) -> str:
    """Of letters, digits and hyphens: 2-core-amd-epyc, nvidia-a100-sxm4-40gb."""
    row = ladder["rows"][0]
    cores = re.fullmatch(r"CPU, (\d+) cores", row["device"])
    name = f"{cores[1]} core {ladder['machine']}" if cores else row["device"]
    name = f"{row['ranks']} x {name}" if row["ranks"] > 1 else name
    name = re.sub(r"[^a-z0-9]+", "-", name.lower())[:60].strip("-")
    if not name:
        raise NoResults("the run does not name its device")
    return name


def gpu_samples(folder: Path) -> dict[str, list[float]]:
    """What nvidia-smi told during a batch job: the least and the most of each column."""
    if not (folder / "gpu.csv").is_file():
        return {}
    header, *lines = [line.split(",") for line in read_text(folder, "gpu.csv").splitlines()] or [[]]
    found = {}
    for i, column in enumerate(header):
        told = [line[i].strip() for line in lines if len(line) > i]
        values = [float(text) for text in told if re.fullmatch(r"\d{1,6}(\.\d+)?", text)]
        if column in SAMPLED and values:
            found[SAMPLED[column]] = [min(values), max(values)]
    return found


def predict(path: Path) -> None:
    """xray in a separate process: it hides any GPU from TensorFlow."""
    command = [sys.executable, "-m", "tfworkshop", "xray", "--json", str(path.resolve())]
    child = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    if child.returncode:
        raise NoResults("./workshop xray failed: nothing was kept")


def summary(folder: Path, number: str) -> dict[str, float]:
    """What the pages quote of a stage's profile: shares of the operations' time, and counts."""
    logs, file = folder / "logs" / choose([number])[-1].name, folder / f"profile_{number}.json"
    command = [sys.executable, "-m", "tfworkshop", "report", str(logs.resolve()), "--json"]
    child = subprocess.run([*command, str(file.resolve())], cwd=ROOT, stdout=subprocess.DEVNULL)
    if child.returncode:
        raise NoResults(f"{number}'s profile cannot be read: nothing was kept")
    told = read(folder, file.name)
    steps, found = told["steps"], [op for op in told["operations"] if op["mode"] != "tf.data"]
    total = sum(op["self_ms"] for op in found)

    def share(kind: str) -> float:
        spent = sum(op["self_ms"] for op in found if kind in op["type"])
        return round(spent / total, 4) if total else 0.0

    return {
        "step_ms": round(steps["average_ms"], 2),
        "input": round(steps["split"]["input"] / steps["average_ms"], 4),
        "convolutions": share("Conv2D"),
        "products": share("MatMul"),
        "random": share("Random"),
        "adam": sum(op["count"] for op in found if "adam" in op["name"]) / steps["count"],
    }


def speed_line(stage: Stage) -> str:
    """The line of a script's docstring, with the CPU's name where there is room for it."""
    ladder, found = read(quoted(), "ladder.json"), row(stage.name)
    times = "" if stage is STAGES[0] else f", {factor(stage.name, '00')} stage 00"
    for device in (table.hardware(ladder, found), found["device"]):
        made = f"{device}, batch {found['batch_size']}, {ladder['steps']} steps"
        line = f"Speed: {speed(stage.name)} img/s{times} ({made}); A100s: README.md."
        if len(line) <= 100:
            break
    return line


def with_speed(stage: Stage) -> str:
    """The stage's script as docs/measured/ has it."""
    return SPEED_LINE.sub(lambda _: speed_line(stage), script(stage).read_text(), count=1)


def script(stage: Stage) -> Path:
    return ROOT / stage.folder / stage.file


def write_readmes() -> list[Path]:
    """Every README and script with the figures of docs/measured/, and the chart."""
    try:
        new = {path: fill(path.read_text()) for path in readmes()}
        new |= {script(stage): with_speed(stage) for stage in STAGES}
    except ODD as error:
        problem = f"{KEPT.name}/ does not hold what results --keep puts there"
        raise NoResults(f"{problem} ({type(error).__name__}: {error})") from error
    changed = [path for path, text in new.items() if text != path.read_text()]
    for path in changed:
        save(path, lambda part, path=path: part.write_text(new[path]))
    table.draw(read(quoted(), "ladder.json"), CHART)
    return [*changed, CHART]


def run(keep: str | None, write: bool) -> int:
    """keep: a folder of runs; empty means that of the last ones, None that nothing is kept."""
    console = terminal.console()
    try:
        paths = [] if keep is None else keep_runs(Path(keep) if keep else results_folder())
        paths += write_readmes() if write else []
        if not paths:
            table.show(read(results_folder(), "ladder.json"), console)
    except NoResults as error:
        print(f"workshop: {error}", file=sys.stderr)
        return 1
    for path in paths:
        console.print(f"wrote {os.path.relpath(path)}", markup=False)
    return 0
