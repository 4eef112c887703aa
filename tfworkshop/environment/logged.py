"""Long commands (pip, a build) with their output in a log and one progress line on the screen."""

import contextlib
import fcntl
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tfworkshop.problem import Problem
from tfworkshop.progress import ProgressLine, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NO_NETWORK = re.compile(
    r"Failed to establish a new connection|name resolution|NameResolutionError|ProxyError"
    r"|Network is unreachable|ConnectTimeoutError|Cannot connect to proxy"
)
# pip prints these after the line that matters
BOILERPLATE = re.compile(
    r"subprocess-exited-with-error|Failed building wheel|Failed to build|issue with the package"
    r"|No matching distribution|exit code: \d"
)


@contextlib.contextmanager
def locked(folder: Path, doing: str, setting: str) -> "Iterator[None]":
    """One ./workshop at a time may change the folder; a second one waits."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = folder.with_name(folder.name + ".lock").open("a")
    except OSError as error:
        raise Problem(
            f"cannot write in {folder.parent} ({error.strerror}). Name another folder: "
            f"{setting} ./workshop ..."
        ) from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another ./workshop is {doing}: waiting for it.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield


def run_logged(
    command: "list[str]",
    log: Path,
    title: str,
    doing: "Callable[[str], str | None]",
    env: "dict[str, str] | None" = None,
) -> int:
    """Run a command, return its exit status; `doing` turns an output line into what is shown."""
    line, word = ProgressLine(title), ""
    with log.open("w") as output, log.open(errors="replace") as tail:
        # A session of its own, so that ending it also ends the compilers it started.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.3)
                for text in tail.readlines():
                    word = doing(text) or word
                line.show(word)
        finally:
            line.clear()
            if process.poll() is None:
                end_session(process)
    return process.returncode


def end_session(process: subprocess.Popen) -> None:
    """Ask it and its children to stop; kill them after a few seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def failure(what: str, log: Path) -> Problem:
    """The Problem for a failed command: what failed, why if the log says so, where the log is."""
    text = log.read_text(errors="replace")
    if NO_NETWORK.search(text):
        return Problem(
            f"{what}: the package index cannot be reached. Run ./workshop setup where there is a "
            f"network (a login node, say), or set HTTPS_PROXY. Full log: {log}"
        )
    lines = [s.strip() for s in text.splitlines() if s.strip() and not s.startswith("WARNING")]
    errors = [s for s in lines if re.search(r"error\b", s, re.I) and not BOILERPLATE.search(s)]
    for shown in (errors or lines)[-4:]:
        say(f"  {shown[:200]}")
    return Problem(f"{what}: the last errors are above, the full log is {log}")
