"""Checks the machine: one line for each check, and how to fix what is wrong.

It must work when things are broken. So it needs nothing but Python itself; whatever imports
TensorFlow runs in another process, where it may crash or hang.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from tfworkshop.doctor import system, training
from tfworkshop.doctor.finding import WIDTH, Finding, as_text
from tfworkshop.doctor.probe import Probe, ask, started
from tfworkshop.machine import has_nvidia_gpu
from tfworkshop.progress import ProgressLine

STEPS = ["libraries", "pkg_resources", "tensorflow", "gpus", "xla", "precision"]
STEPS += ["profiler", "plugin", "horovod"]
AMX, ALLOWED = ["amx", "precision"], {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}
RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def examine(show: Callable[[str], None] = lambda step: None) -> Iterator[Finding]:
    """Every check, the quick ones first: meanwhile another process imports TensorFlow."""
    yield system.check_container()
    there = system.is_there()
    with contextlib.ExitStack() as processes:
        begun = processes.enter_context(started(STEPS)) if there else None
        amx = None
        if there and "amx_bf16" in system.cpu_flags() and not has_nvidia_gpu():
            amx = processes.enter_context(started(AMX, **ALLOWED))
        first = [system.check_environment()]
        first += [system.check_packages()] if there else []
        first += [] if there and not os.environ.get("WORKSHOP_PYTHON") else [system.check_python()]
        first += [system.check_mnist()]
        yield from first
        yield system.check_folders()
        if system.installed("horovod") is None:
            yield system.check_compiler()
        yield system.check_network(needed=any(finding.status == "fail" for finding in first))
        if begun:
            yield from examine_tensorflow(begun, amx, show)


def examine_tensorflow(
    begun: Probe, amx: Probe | None, show: Callable[[str], None]
) -> Iterator[Finding]:
    answers = ask(STEPS, begun, show)
    yield training.check_tensorflow(answers)
    if "tensorflow" in answers.errors:
        return
    yield training.check_gpus(answers)
    yield training.check_xla(answers)
    yield training.check_precision(answers)
    if not answers.results.get("gpus") and "amx_bf16" in system.cpu_flags():
        yield training.check_amx(ask(AMX, amx, show, **ALLOWED))
    yield from training.check_profiler(answers)
    yield training.check_horovod(answers)


def first_rank() -> bool:
    """Under a launcher every rank checks its node; only one of them prints."""
    return not any(re.match("0*[1-9][0-9]*$", os.environ.get(name, "")) for name in RANKS)


def run(as_json: bool) -> int:
    progress = ProgressLine("checking")
    speaks = first_rank()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    findings = []
    for finding in examine(progress.show if speaks and progress.terminal else lambda step: None):
        findings.append(finding)
        progress.clear()
        if not as_json and (speaks or finding.status == "fail"):
            print(as_text(finding, colour, width), flush=True)
    if as_json and speaks:
        json.dump([dataclasses.asdict(finding) for finding in findings], sys.stdout, indent=1)
        print()
    elif speaks:
        print("\n" + summary(findings))
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def summary(findings: list[Finding]) -> str:
    count = Counter(finding.status for finding in findings)
    if count["fail"]:
        return f"{count['fail']} of {len(findings)} checks failed: type what follows the arrows."
    worth = f", {count['warn']} worth a look" if count["warn"] else ""
    return f"{len(findings)} checks, none failed{worth}."
