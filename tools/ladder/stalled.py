"""Ranks that wait for one that never comes: notice it, ask all of them where they are, end the job.

Horovod 0.28 can do this with MPI, not with Gloo: there it does not count its ranks. Until the
first step is logged, all ranks idle for so long means that one of them is stuck, on a dead file
system, say. Python's fault handler, which is on in every rank, then tells where each of them is.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import threading
from pathlib import Path

PATIENCE = {  # seconds; Horovod's own settings
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "60",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "120",
}
IDLE = 0.2  # of a core, for each rank: Horovod's own thread needs less, loading or training more
TICKS = os.sysconf("SC_CLK_TCK")
TOLD = re.compile(r"^\[(?:\d+,)?(\d+)\]<stderr>:  File \"(.*)\", line \d+ in (.*)$", re.M)


def environment() -> dict[str, str]:
    """What every rank is started with; WORKSHOP_JOB is how it is found again."""
    job = {"WORKSHOP_JOB": secrets.token_hex(8), "PYTHONFAULTHANDLER": "1"}
    return PATIENCE | os.environ | job


class Watch(threading.Thread):
    """Ends a job whose ranks do nothing before their first step."""

    def __init__(self, env: dict[str, str], ranks: int) -> None:
        super().__init__(daemon=True)
        text = env.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0")
        self.limit = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0  # 0: no limit
        self.mark, self.ranks = f"WORKSHOP_JOB={env.get('WORKSHOP_JOB')}\0".encode(), ranks
        self.over, self.ended = threading.Event(), False

    def run(self) -> None:
        idle, before = 0, 0.0
        while self.limit and not self.over.wait(1):
            found = self.processes()
            now = sum(map(cpu_seconds, found))
            idle = idle + 1 if len(found) >= self.ranks and now - before < IDLE * self.ranks else 0
            before = now
            if idle > self.limit:
                self.ended = True
                for process in found:
                    with contextlib.suppress(OSError):
                        os.kill(process, signal.SIGABRT)
                return

    def processes(self) -> list[int]:
        """The ranks of this node."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                text = path.read_bytes()
                if self.mark in text and b"HOROVOD_RANK=" in text:
                    found.append(int(path.parent.name))
        return found

    def told(self, errors: str) -> str:
        """Which ranks did not wait for others, and where they were instead."""
        places: dict[str, list[tuple[str, str]]] = {}
        for rank, file, function in TOLD.findall(errors):
            places.setdefault(rank, []).append((file, function))
        waited = f"did not come to an exchange in {self.limit} s"
        for rank, place in sorted(places.items()):
            if not any("/horovod/" in file for file, _ in place):
                at = next((name for file, name in place if "train" in file), place[0][1])
                return f"rank {rank} {waited}: it is still in {at}"
        missing = set(map(str, range(self.ranks))) - set(places)
        return f"rank {', '.join(sorted(missing)) or '?'} {waited}"


def cpu_seconds(process: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0
