"""`./workshop results --keep`: copy a device's runs to docs/measured/, for the pages to quote."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from tfworkshop import processes
from tfworkshop.files import read_record, save_record, save_text
from tfworkshop.problem import Problem
from tfworkshop.results import Bench, Ladder, Scale
from tfworkshop.stages import ROOT, STAGES, choose

PROFILED = ("04", "05")  # the pages after these rest on their profiles


def keep_runs(folder: Path, measured: Path) -> Path:
    """Copy the ladder of a folder and all that was measured beside it; the folder of the copies."""
    ladder = read_record(folder / "ladder.json", Ladder)
    check(ladder)
    for row in ladder.rows:
        row.logdir = None  # a path on this machine
    records: dict[str, object] = {"ladder.json": ladder}
    for path in folder.glob("bench_*.json"):
        records[path.name] = read_record(path, Bench)
    for path in folder.glob("scale_*.json"):
        records[path.name] = read_record(path, Scale)
    for number in PROFILED:
        records[f"profile_{number}.json"] = summarize_profile(folder, number)

    kept = measured / folder_name(ladder)
    kept.mkdir(parents=True, exist_ok=True)
    for name, record in records.items():
        save_record(kept / name, record)
    if (folder / "clock.txt").exists():
        save_text(kept / "clock.txt", (folder / "clock.txt").read_text())
    return kept


def check(ladder: Ladder) -> None:
    """Only a whole ladder is kept: all stages, on one device, on real MNIST."""
    if ladder.failed or any(row.interrupted for row in ladder.rows):
        raise Problem("the run failed or was stopped: run it again")
    if [row.stage for row in ladder.rows] != [stage.name for stage in STAGES]:
        raise Problem("the run did not cover all stages: ./workshop run --repeats 3")
    if any(row.data != "mnist" for row in ladder.rows):
        raise Problem("the run did not use real MNIST: ./workshop data fetches it")


def folder_name(ladder: Ladder) -> str:
    """2-core-amd-epyc, nvidia-a100-sxm4-40gb."""
    row = ladder.rows[0]
    name = row.device
    if row.on_cpu:
        cores = re.sub(r"\D", "", row.device)
        name = f"{cores} core {ladder.machine}"
    if row.ranks > 1:
        name = f"{row.ranks} x {name}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def workshop(*words: str) -> None:
    """Another command, in a process of its own: TensorFlow is loaded there, and not here."""
    finished = processes.run([sys.executable, "-m", "tfworkshop", *words], cwd=ROOT)
    if finished.status:
        raise Problem(f"./workshop {words[0]} failed, nothing was kept: {finished.reason}")


def summarize_profile(folder: Path, number: str) -> dict[str, float]:
    """What the pages quote of a stage's profile: shares of the time, and Adam's operations."""
    logs = folder / "logs" / choose([number])[-1].name
    file = folder / f"report_{number}.json"
    workshop("report", str(logs.absolute()), "--json", str(file.absolute()))
    report = read_record(file, dict[str, Any])
    operations = [operation for operation in report["operations"] if operation["mode"] != "tf.data"]
    total_ms = sum(operation["self_ms"] for operation in operations)

    def share(kind: str) -> float:
        own_ms = sum(operation["self_ms"] for operation in operations if kind in operation["type"])
        return round(own_ms / total_ms, 4)

    adam = sum(operation["count"] for operation in operations if "adam" in operation["name"])
    return {
        "convolutions": share("Conv2D"),
        "products": share("MatMul"),
        "random": share("Random"),
        "adam": adam / report["steps"]["count"],
    }
