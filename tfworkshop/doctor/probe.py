"""Runs the steps in separate processes; whatever happens to them, there is an answer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from tfworkshop.files import NoAnswer, within
from tfworkshop.processes import child
from tfworkshop.stages import ROOT

LIMIT_S = 120.0  # for one step; importing TensorFlow from a busy parallel file system takes long
SAFE_ISA = "AVX512_CORE_FP16"  # what the stages allow oneDNN: everything but AMX
Probe = tuple[subprocess.Popen[str], IO[str]]  # a process, and the file for its stderr


@dataclass
class Answers:
    """What each step answered, or why it has no answer."""

    results: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    said: str = ""  # on stderr, mostly by TensorFlow


@contextlib.contextmanager
def started(steps: list[str], **extra: str) -> Iterator[Probe]:
    """The steps begin now; `ask` collects the answers, and may come later."""
    env = {"ONEDNN_MAX_CPU_ISA": SAFE_ISA, **os.environ, "KERAS_BACKEND": "tensorflow"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env.update(TF_CPP_MIN_LOG_LEVEL="0", PYTHONWARNINGS="ignore", **extra)
    command = [sys.executable, "-m", "tfworkshop.doctor.steps", *steps]
    options = {"cwd": ROOT, "env": env, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    options["close_fds"] = False  # under some launchers MPI needs one to talk to its manager
    said = tempfile.TemporaryFile("w+", errors="replace")
    with said, child(command, stderr=said, **options) as process:
        yield process, said


def ask(
    steps: list[str],
    begun: Probe | None = None,
    show: Callable[[str], None] = lambda step: None,
    **extra: str,
) -> Answers:
    """What the steps answer; if one ends the process, the rest run in a new one."""
    answers = Answers()
    while steps:
        with contextlib.nullcontext(begun) if begun else started(steps, **extra) as probe:
            ended = listen(probe, steps[0], answers, show)
        if ended is None:
            break
        step, why = ended
        answers.errors[step] = why
        if step in ("tensorflow", "amx"):  # the later steps need them
            break
        begun, steps = None, steps[steps.index(step) + 1 :]
    return answers


def listen(
    probe: Probe, step: str | None, answers: Answers, show: Callable[[str], None]
) -> tuple[str, str] | None:
    """Collect answers until the process ends; None, or the step that ended it, and why."""
    process, said = probe
    why = ""
    try:
        process.stdin.close()  # the step amx waits for that
        for line in iter(lambda: within(LIMIT_S, process.stdout.readline), ""):
            report = json.loads(line)
            name = report["step"]
            if "answer" in report:
                answers.results[name], step = report["answer"], None
            elif "error" in report:
                answers.errors[name], step = report["error"], None
            else:
                step = name
                show(name)
        process.wait(LIMIT_S)
    except (NoAnswer, subprocess.TimeoutExpired):
        process.kill()
        why = f"no answer after {LIMIT_S:g} s"
    said.seek(0)
    text = said.read()
    answers.said += text
    return (step, why or how_it_ended(process, text)) if step else None


def how_it_ended(process: subprocess.Popen[str], said: str) -> str:
    if process.returncode < 0:
        return f"killed by {signal.Signals(-process.returncode).name}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"exit status {process.returncode}" + (f": {lines[-1]}" if lines else "")
