"""`./workshop report`: read a profile or two, show them, write the files asked for."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from rich.text import Text

from tfworkshop import terminal
from tfworkshop.files import check_output_file, save, save_text
from tfworkshop.problem import Problem
from tfworkshop.report import text, trace
from tfworkshop.report.compare import compare
from tfworkshop.report.figures import encode_json
from tfworkshop.report.reader import load

Files = dict[str, Path]  # by kind: html, json, trace
STDOUT = Path("-")
SUFFIXES = {"html": ".html", "json": ".json", "trace": ".json"}


def run(logdir: Path, other: Path | None, ranks: bool = False, **files: Path | None) -> int:
    wanted = {kind: file for kind, file in files.items() if file}
    paths = [logdir] + ([other] if other else [])
    if re.search(r"\.json(\.gz)?$", logdir.name):
        from tfworkshop.report import horovod_timeline

        return horovod_timeline.run(paths, wanted)
    return make(paths, wanted, ranks)


def check_outputs(paths: list[Path], files: Files) -> None:
    """Before the work: every file can be written, and none is named twice."""
    for kind, file in files.items():
        if file == STDOUT:
            if kind != "json":
                raise Problem(
                    f"only --json can go to the standard output: name a file for --{kind}"
                )
            continue
        suffix = ".json.gz" if kind == "trace" and file.suffix == ".gz" else SUFFIXES[kind]
        check_output_file(file, suffix)
        if list(files.values()).count(file) > 1:
            raise Problem(f"{file.name} is named for two outputs: name two files")
    if "trace" in files and len(paths) > 1:
        raise Problem("--trace is for one profile: name one folder")


def make(paths: list[Path], files: Files, ranks: bool = False) -> int:
    """One profile, or two to compare."""
    check_outputs(paths, files)
    loaded = [load(path, ranks) for path in paths]
    profiles = [profile for profile, _ in loaded]
    comparison = compare(*profiles) if len(profiles) == 2 else None
    if "html" in files:
        from tfworkshop.report import page

        timelines = [trace.timeline(hosts) for _, hosts in loaded]
        save_text(files["html"], page.page(profiles, timelines, comparison, files["html"]))
    if "trace" in files:
        hosts, file = loaded[0][1], files["trace"]
        save(file, lambda part: trace.write_chrome(hosts, part))
    if "json" in files:
        figures = encode_json(profiles[0])
        if comparison:
            figures = encode_json({"a": profiles[0], "b": profiles[1], "comparison": comparison})
        if files["json"] == STDOUT:
            sys.stdout.write(figures)
            return 0
        save_text(files["json"], figures)
    console = terminal.console()
    console.width = min(console.width, 100)
    if "html" in files:  # the page has it all
        for profile in profiles:
            console.print(Text(text.title(profile), style="bold"), *text.head(profile), sep="\n")
    elif comparison:
        text.show_both(profiles[0], profiles[1], comparison, console)
    else:
        text.show(profiles[0], console)
    for file in files.values():
        console.print(Text(f"wrote {file}"))
    return 0
