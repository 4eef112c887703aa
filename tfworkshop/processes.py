"""Child processes that never outlive this one. Standard library only: the doctor needs it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

PATIENCE_S = 10.0  # how long a process may take to end after it was asked to
PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Finished:
    """How a process ended, and all that it printed."""

    status: int  # negative: the signal that ended it
    stdout: str
    stderr: str
    timed_out: bool = False

    @property
    def reason(self) -> str:
        """Why it failed: the signal, or its last line on stderr."""
        if self.status < 0:
            return f"killed by {signal.Signals(-self.status).name}"
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.status}"


def _end_with_parent() -> None:
    """Runs in the child: the kernel ends it if this process is killed."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A child process that is over when the block is left, with everything it has started.

    It has a session of its own, so Ctrl+C reaches it only from here: SIGINT first, so that it can
    sum up, SIGKILL if it does not end.
    """
    process = subprocess.Popen(
        command,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=_end_with_parent,
        **{"stdin": subprocess.DEVNULL, **options},
    )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        # A second Ctrl+C while it sums up: no more patience.
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(PATIENCE_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # itself, and what it left running
    process.wait()


def run(
    command: Sequence[str],
    *,
    timeout: float | None = None,
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
    **options: Any,
) -> Finished:
    """Run a command to its end, or for `timeout` seconds; the callbacks see each line at once."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, **{**pipes, **options}) as process:
        return finish(process, timeout, on_stdout, on_stderr)


def finish(
    process: subprocess.Popen[str],
    timeout: float | None = None,
    on_stdout: Callable[[str], object] | None = None,
    on_stderr: Callable[[str], object] | None = None,
) -> Finished:
    """Wait for the end of a process that `started` has started, as `run` does."""
    stdout: list[str] = []
    stderr: list[str] = []
    readers = [
        threading.Thread(target=_read, args=(process.stdout, stdout, on_stdout), daemon=True),
        threading.Thread(target=_read, args=(process.stderr, stderr, on_stderr), daemon=True),
    ]
    for reader in readers:  # at the same time, so that no pipe is ever full
        reader.start()
    timed_out = False
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        timed_out = True
    _stop(process)
    for reader in readers:
        reader.join(PATIENCE_S)
    return Finished(process.returncode, "".join(stdout), "".join(stderr), timed_out)


def _read(pipe: IO[str] | None, lines: list[str], on_line: Callable[[str], object] | None) -> None:
    if pipe is None:  # the caller sent it elsewhere
        return
    with pipe:
        for line in pipe:
            lines.append(line)
            if on_line:
                on_line(line.rstrip("\n"))
