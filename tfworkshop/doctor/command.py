"""`./workshop doctor`: one line for each check, and how to fix what is wrong.

It must work when things are broken. So it needs only Python's standard library; whatever imports
TensorFlow runs in another process, where it may crash or hang.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator

from tfworkshop.doctor import separate_process, system
from tfworkshop.doctor.finding import Finding, as_text, has_failure
from tfworkshop.machine import has_nvidia_gpu

CHECKS = ["tensorflow", "gpu", "xla", "precision", "profiler", "plugin", "horovod"]


def run(as_json: bool) -> int:
    """Print all findings; 1 if a check failed."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            print(as_text(finding, colour), flush=True)
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    else:
        print("\n" + summarize(findings))
    return 1 if has_failure(findings) else 0


def summarize(findings: list[Finding]) -> str:
    count = Counter(finding.status for finding in findings)
    if count["fail"]:
        return f"{count['fail']} of {len(findings)} checks failed: do what follows the arrows."
    if count["warn"]:
        return f"{len(findings)} checks, none failed, {count['warn']} worth a look."
    return f"{len(findings)} checks, none failed."


def examine() -> Iterator[Finding]:
    if not system.installed("tensorflow"):
        yield from examine_system([system.check_environment()])
        return
    with separate_process.start(CHECKS) as process:  # it loads TensorFlow meanwhile
        yield from examine_system([system.check_environment(), system.check_packages()])
        yield from separate_process.collect(process, CHECKS)
    if system.advertises_amx() and not has_nvidia_gpu():
        yield from separate_process.run_checks(["amx"], ONEDNN_MAX_CPU_ISA="AVX512_CORE_AMX")


def examine_system(installation: list[Finding]) -> Iterator[Finding]:
    yield system.check_container()
    yield system.check_python()
    installation.append(system.check_mnist())
    yield from installation
    yield system.check_network(needed=has_failure(installation))
    yield system.check_folders()
