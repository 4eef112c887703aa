"""`./workshop doctor`: one line for each check, and how to fix what is wrong.

It must work when things are broken. So it needs only Python's standard library; whatever imports
TensorFlow runs in another process, where it may crash or hang.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator

from tfworkshop.doctor import environment, separate_process, system
from tfworkshop.doctor.finding import WIDTH, Finding, as_text
from tfworkshop.machine import has_nvidia_gpu

CHECKS = ["tensorflow", "gpu", "xla", "precision", "profiler", "plugin", "horovod"]
RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def run(as_json: bool) -> int:
    """Print all findings; 1 if a check failed. Of many ranks, the first prints all it finds."""
    first = is_first_rank()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json and (first or finding.status == "fail"):
            print(as_text(finding, colour, width), flush=True)
    if first and as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    elif first:
        print("\n" + summarize(findings))
    return 1 if has_failure(findings) else 0


def is_first_rank() -> bool:
    """Under a launcher every rank checks its node; only one of them prints everything."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def summarize(findings: list[Finding]) -> str:
    count = Counter(finding.status for finding in findings)
    if count["fail"]:
        return f"{count['fail']} of {len(findings)} checks failed: do what follows the arrows."
    text = f"{len(findings)} checks, none failed"
    if count["warn"]:
        text += f", {count['warn']} worth a look"
    return f"{text}."


def examine() -> Iterator[Finding]:
    """All checks. While the quick ones run, another process imports TensorFlow."""
    with contextlib.ExitStack() as processes:
        tensorflow_process = amx_process = None
        if environment.installed("tensorflow"):
            tensorflow_process = processes.enter_context(separate_process.start(CHECKS))
            if "amx_bf16" in system.cpu_flags() and not has_nvidia_gpu():
                amx_process = processes.enter_context(separate_process.start_amx())
        installation = [environment.check_environment(), environment.check_python()]
        if environment.installed("tensorflow"):
            installation.append(environment.check_packages())
        installation.append(system.check_mnist())
        yield system.check_container()
        yield from installation
        yield system.check_folders()
        if not environment.installed("horovod"):
            yield system.check_compiler()
        yield system.check_network(needed=has_failure(installation))
        if tensorflow_process:
            yield from separate_process.collect(CHECKS, tensorflow_process)
        if amx_process:
            yield from separate_process.collect(["amx"], amx_process)


def has_failure(findings: list[Finding]) -> bool:
    return any(finding.status == "fail" for finding in findings)
