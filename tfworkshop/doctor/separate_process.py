"""Runs checks in another process, where TensorFlow may crash or hang: that is a finding, too."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager
from subprocess import PIPE, Popen

from tfworkshop import processes
from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.doctor.system import repair
from tfworkshop.doctor.tensorflow_checks import ASK_FOR_COUNTERS
from tfworkshop.stages import ROOT

TIMEOUT_S = 120.0  # importing TensorFlow from a busy parallel file system takes long
SAFE_ISA = "AVX512_CORE_FP16"  # what the stages allow oneDNN: everything but AMX


def run_checks(checks: list[str], **variables: str) -> list[Finding]:
    """Run these checks of tensorflow_checks.py."""
    with start(checks, **variables) as process:
        return collect(process, checks)


def start(checks: list[str], **variables: str) -> AbstractContextManager[Popen[str]]:
    environment = {"ONEDNN_MAX_CPU_ISA": SAFE_ISA, **os.environ, **variables}
    environment.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="0")
    return processes.started(
        [sys.executable, "-W", "ignore", "-m", "tfworkshop.doctor.tensorflow_checks", *checks],
        stdout=PIPE,
        stderr=PIPE,
        cwd=ROOT,
        env=environment,
        close_fds=False,  # some launchers pass MPI a descriptor
    )


def collect(process: Popen[str], checks: list[str]) -> list[Finding]:
    """The findings of these checks; if one has ended the process, the rest run in another.

    Without TensorFlow there is no rest.
    """
    finished = processes.finish(process, TIMEOUT_S)
    findings = [Finding(**json.loads(line)) for line in finished.stdout.splitlines()]
    if finished.status != 0:
        reason = f"no answer after {TIMEOUT_S:g} s" if finished.timed_out else finished.reason
        check, *rest = checks[len(findings) :]
        findings.append(explain_end(check, reason))
        if rest and check != "tensorflow":
            findings += run_checks(rest)
    return findings


def explain_end(check: str, reason: str) -> Finding:
    """A check has ended its process: "killed by SIGSEGV", for instance."""
    what = f"the check ended its process: {reason}"
    fix = repair()
    if check == "amx":
        # CPUs advertise AMX in their flags; on some machines using it ends the program.
        what = f"this CPU advertises AMX, but a bfloat16 product with it failed: {reason}"
        if os.environ.get("ONEDNN_MAX_CPU_ISA") == SAFE_ISA:
            return ok("amx", f"{what}; ONEDNN_MAX_CPU_ISA={SAFE_ISA} keeps it off")
        fix = f"export ONEDNN_MAX_CPU_ISA={SAFE_ISA} for your own code; stages 05 and 06 set it"
        return warn("amx", what, fix)
    if check == "profiler" and "SIG" in reason:
        what = f"recording a profile ended TensorFlow ({reason}), as it does where the driver"
        what += " refuses CUPTI: any program that records a profile may crash so"
        fix = f"train without --logdir; {ASK_FOR_COUNTERS}"
    elif check == "tensorflow" and "SIGILL" in reason:
        fix = "use a machine whose CPU has AVX (grep avx /proc/cpuinfo): the wheels need it"
    elif check == "tensorflow" and "no answer" in reason:
        fix = "use a faster disk: WORKSHOP_VENV=/local/disk/venv ./workshop setup"
    return fail(check, what, fix)
