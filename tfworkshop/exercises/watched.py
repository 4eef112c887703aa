"""Run a program that may do anything: in its own session, with a time limit."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tfworkshop.processes import end_with_parent

MOST_OUTPUT = 5_000_000  # bytes


@dataclass
class Ended:
    """How it ended, and its lines with the time each one came in."""

    status: int = 0  # negative: the signal that ended it
    timed_out: bool = False
    flooded: bool = False
    lines: list[tuple[float, str]] = field(default_factory=list)
    errors: str = ""


def follow(command: list[str], cwd: Path, env: dict[str, str], seconds: float) -> Iterator[Ended]:
    """Yields what is known so far, repeatedly; closing this generator ends the program."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that its children end with it
        preexec_fn=end_with_parent,
    )
    assert process.stdout and process.stderr
    ended, limit = Ended(), time.monotonic() + seconds
    text = {process.stdout: bytearray(), process.stderr: bytearray()}
    total = 0
    try:
        with selectors.DefaultSelector() as ready:
            for pipe in text:
                os.set_blocking(pipe.fileno(), False)
                ready.register(pipe, selectors.EVENT_READ)
            over = False
            while ready.get_map() or process.poll() is None:  # it may close its output and run on
                ended.timed_out, ended.flooded = time.monotonic() > limit, total > MOST_OUTPUT
                if ended.timed_out or ended.flooded:
                    break
                events = ready.select(0.1)
                now = time.monotonic()
                for key, _ in events:
                    pipe = key.fileobj
                    piece = pipe.read(1 << 16)  # type: ignore[union-attr]
                    if not piece:
                        ready.unregister(pipe)
                        continue
                    total += len(piece)
                    text[pipe] += piece  # type: ignore[index]
                    if pipe is process.stdout:
                        take_lines(text[pipe], ended.lines, now)
                yield ended
                # A child may hold the pipes open: do not wait for more output.
                if over and not events:
                    break
                over = process.poll() is not None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        ended.status = process.wait()
        process.stdout.close()
        process.stderr.close()
    take_lines(text[process.stdout] + b"\n", ended.lines, time.monotonic())
    ended.errors = text[process.stderr].decode(errors="replace")
    yield ended


def take_lines(buffer: bytearray, lines: list[tuple[float, str]], now: float) -> None:
    """Move whole lines out of the buffer."""
    *whole, rest = buffer.split(b"\n")
    lines += [(now, line.decode(errors="replace")) for line in whole]
    buffer[:] = rest
