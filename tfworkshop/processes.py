"""Programs that end with us, whatever ends us."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

PATIENCE_S = 10.0  # to sum up, once asked to end
PR_SET_PDEATHSIG = 1
PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
RUNNING: set[subprocess.Popen[str]] = set()  # of all threads


def end_with_parent() -> None:
    """In the child, before it becomes the program: the kernel ends it if we are killed."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if PRCTL:
        PRCTL(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def child(command: list[str], **options) -> Iterator[subprocess.Popen[str]]:
    """A program that is over when the block is left, by whatever exception."""
    options = {"text": True, "errors": "replace", "preexec_fn": end_with_parent, **options}
    process = subprocess.Popen(command, **options)
    RUNNING.add(process)
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                # A second Ctrl+C or SIGTERM while it sums up: no more patience.
                with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                    process.wait(PATIENCE_S)
        RUNNING.discard(process)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


def end_all() -> None:
    """Ask all to end: other threads wait for them, and signals reach only the first thread."""
    for process in list(RUNNING):
        process.terminate()


def output_of(command: list[str], **options) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a program."""
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        out, err = process.communicate()
    return process.returncode, out, err
