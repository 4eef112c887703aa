"""Runs the steps in separate processes; whatever happens to them, there is an answer."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.stages import ROOT

LIMIT_S = 120.0  # for one step; importing TensorFlow from a busy parallel file system takes long
SAFE_ISA = "AVX512_CORE_FP16"  # what the stages allow oneDNN: everything but AMX


@dataclass
class Answers:
    """What each step answered, or why it has no answer."""

    results: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    said: str = ""  # on stderr, mostly by TensorFlow


def ask(
    steps: list[str],
    extra: dict[str, str] | None = None,
    show: Callable[[str], None] = lambda step: None,
) -> Answers:
    """Run the steps in one process; if one ends it, the rest run in a new process."""
    answers = Answers()
    waiting = list(steps)
    while waiting:
        ended = run(waiting, extra or {}, answers, show)
        if ended is None:
            return answers
        step, why = ended
        answers.errors[step] = why
        if step in ("tensorflow", "amx"):  # the later steps need them
            return answers
        waiting = waiting[waiting.index(step) + 1 :]
    return answers


def run(
    steps: list[str], extra: dict[str, str], answers: Answers, show: Callable[[str], None]
) -> tuple[str, str] | None:
    """One process; None if it finished, else the step that ended it, and why."""
    env = {"ONEDNN_MAX_CPU_ISA": SAFE_ISA, **os.environ, "KERAS_BACKEND": "tensorflow"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env.update(TF_CPP_MIN_LOG_LEVEL="0", PYTHONWARNINGS="ignore", **extra)
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        # close_fds: under some launchers MPI talks to its manager through an inherited one.
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.doctor.steps", *steps],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            close_fds=False,
        )
        try:
            step, late = listen(process, steps[0], answers, show)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        said = errors.read()
    answers.said += said
    if step is None:
        return None
    return step, f"no answer after {LIMIT_S:g} s" if late else how_it_ended(process, said)


def listen(
    process: subprocess.Popen[str], step: str | None, answers: Answers, show: Callable[[str], None]
) -> tuple[str | None, bool]:
    """Collect answers until the process ends; returns the unfinished step, and if it timed out."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=LIMIT_S)
            if not line:
                process.wait(LIMIT_S)
                return step, False
        except (queue.Empty, subprocess.TimeoutExpired):
            return step, True
        report = json.loads(line)
        name = report["step"]
        if "answer" in report:
            answers.results[name], step = report["answer"], None
        elif "error" in report:
            answers.errors[name], step = report["error"], None
        else:
            step = name
            show(name)


def how_it_ended(process: subprocess.Popen[str], said: str) -> str:
    if process.returncode < 0:
        return f"killed by {signal.Signals(-process.returncode).name}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"exit status {process.returncode}" + (f": {lines[-1]}" if lines else "")
