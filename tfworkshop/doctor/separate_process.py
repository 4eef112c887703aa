"""Runs checks in another process, where TensorFlow may crash or hang: that is a finding, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager

from tfworkshop import processes
from tfworkshop.doctor.environment import repair
from tfworkshop.doctor.finding import Finding, fail, ok, warn
from tfworkshop.stages import ROOT

TIMEOUT_S = 120.0  # importing TensorFlow from a busy parallel file system takes long
SAFE_ISA = "AVX512_CORE_FP16"  # what the stages allow oneDNN: everything but AMX


def start(checks: list[str], **variables: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start these checks of tensorflow_checks.py now, with these environment variables."""
    environment = {"ONEDNN_MAX_CPU_ISA": SAFE_ISA, **os.environ}
    environment.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="0", **variables)
    return processes.started(
        [sys.executable, "-W", "ignore", "-m", "tfworkshop.doctor.tensorflow_checks", *checks],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,  # some launchers pass MPI a descriptor
    )


def start_amx() -> AbstractContextManager[subprocess.Popen[str]]:
    """Import TensorFlow with AMX allowed; the check itself waits for `collect`."""
    return start(["amx"], ONEDNN_MAX_CPU_ISA="AVX512_CORE_AMX")


def collect(checks: list[str], process: subprocess.Popen[str]) -> list[Finding]:
    """Wait for the findings; if a check ends the process, the rest run in a new one."""
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)  # this also closes its stdin
        reason = processes.Finished(process.returncode, stdout, stderr).reason
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, _ = process.communicate()
        reason = f"no answer after {TIMEOUT_S:g} s"
    findings = [Finding(**json.loads(line)) for line in stdout.splitlines()]
    remaining = checks[len(findings) :]
    if remaining and process.returncode != 0:
        findings.append(explain_end(remaining.pop(0), reason))
    if remaining and not is_without_tensorflow(findings):
        with start(remaining) as process:
            findings += collect(remaining, process)
    return findings


def is_without_tensorflow(findings: list[Finding]) -> bool:
    return any(each.check == "tensorflow" and each.status == "fail" for each in findings)


def explain_end(check: str, reason: str) -> Finding:
    """A check has ended its process: "killed by SIGSEGV", for instance."""
    if check == "amx":
        return explain_amx(reason)
    what, fix = f"the check ended its process: {reason}", repair()
    if check == "profiler" and "SIG" in reason:
        what = f"recording a profile ended TensorFlow ({reason}), as it does where the driver"
        what += " refuses CUPTI: any program that records a profile may crash so"
        fix = f"train without --logdir; {ask_for_counters()}"
    elif check == "tensorflow" and "SIGILL" in reason:
        fix = "use a machine whose CPU has AVX (grep avx /proc/cpuinfo): the wheels need it"
    elif check == "tensorflow" and "no answer" in reason:
        fix = "use a faster disk: WORKSHOP_VENV=/local/disk/venv ./workshop setup"
    return fail(check, what, fix)


def explain_amx(reason: str) -> Finding:
    """CPUs advertise AMX in their flags; on some machines using it ends the program."""
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA")
    what = f"this CPU advertises AMX, but a bfloat16 product with it failed: {reason}"
    fix = f"export ONEDNN_MAX_CPU_ISA={SAFE_ISA}"
    if allowed is None:
        return warn("amx", what, f"{fix} for your own code; stages 05 and 06 set it")
    if "AMX" in allowed.upper() or allowed.upper() in ("ALL", "DEFAULT"):
        return fail("amx", f"{what}; ONEDNN_MAX_CPU_ISA={allowed} allows it", fix)
    return ok("amx", f"{what}; ONEDNN_MAX_CPU_ISA={allowed} keeps it off")


def ask_for_counters() -> str:
    setting = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
    return f"ask the administrator for `{setting}` in a file in /etc/modprobe.d, and a reboot"
