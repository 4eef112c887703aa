"""`./workshop` many times over with TensorFlow loaded once: a process that forks itself.

python -m tests.forked JOBS.json: each job is a list of calls, made one after the other; a call is
its words, its environment, the files for what it prints, and which runs of a check to make (none
named: all). Where a wrong solution does what ours does, our runs stand in for its own. Two jobs
run at a time. Nothing of TensorFlow has run before a fork, so that a fork is as good as a new
process.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import runpy
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import horovod.tensorflow  # noqa: F401  here once, not in each script
import line_profiler  # noqa: F401

import tfworkshop.__main__ as workshop
from tests.conftest import OPEN_MPI
from tfworkshop import data
from tfworkshop.exercises import judge, observe, timing, watched  # observe loads TensorFlow

AT_ONCE = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2  # the other core has its own worker


def fork(call: Callable[[], int | None]) -> int:
    """The process id of a child that makes this call and ends with its status."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = call() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)


def use_files(out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = (open(n, "w", buffering=1, closefd=False) for n in (1, 2))


def run_python(words: list[str]) -> None:
    """`python WORDS`, in this process."""
    sys.argv = words[words[0] == "-m" :]
    if words[0] != "-m":
        runpy.run_path(words[0], run_name="__main__")
    elif words[1] == observe.__name__:
        observe.main(words[2])
    else:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)


class Popen:
    """What watched.py needs of subprocess.Popen, for `python ...`."""

    def __init__(self, command: list[str], cwd: Path, env: dict[str, str], **_: object) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()

        def run() -> None:
            os.setsid()
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update({**env, **OPEN_MPI})
            tempfile.tempdir = None  # to be looked up again
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            use_files(out_end, err_end)
            os.close(out_end)
            os.close(err_end)
            observe.OUTPUT = os.dup(1)
            run_python(command[1:])

        self.status: int | None = None
        self.pid = fork(run)
        os.close(out_end)
        os.close(err_end)
        self.stdout, self.stderr = (os.fdopen(fd, "rb", 0) for fd in (out, err))

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.status is None:
            pid, status = os.waitpid(self.pid, options)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def wait(self) -> int | None:
        return self.poll(0)


class Probe:
    """trial.probe for some runs; the others are those of our own solution, if it ran already."""

    def __init__(self, wanted: list[str], kept: Path, keep: bool) -> None:
        self.wanted, self.kept, self.keep, self.original = wanted, kept, keep, judge.probe
        self.right, self.right_runs, judge.right_runs = {}, judge.right_runs, self.remember

    def remember(self, *arguments: object) -> dict:
        self.right = self.right_runs(*arguments)
        return self.right

    def __call__(self, script: Path, place: Path, runs: list[dict], limit: float) -> Iterator:
        ours = pickle.loads(self.kept.read_bytes()) if self.kept.exists() and self.wanted else {}
        ours = self.right if self.keep else ours  # it has just run, with the same options
        mine = [run for run in runs if run["name"] in self.wanted or run["name"] not in ours]
        made = {}
        with closing(self.original(script, place, mine, limit)) as found:
            for run in runs:
                made[run["name"]] = next(found) if run in mine else ours[run["name"]]
                if self.keep and run is runs[-1]:
                    part = self.kept.with_suffix(".part")
                    part.write_bytes(pickle.dumps(made))
                    part.replace(self.kept)
                yield made[run["name"]]


def time_ours_once(cache: Path) -> None:
    """The scripts that a solution is compared with are the same for all; half the steps do."""
    original, timing.timed_steps = timing.time_once, lambda *_: 20

    def time_once(entry: timing.Entry, *how: object) -> None:
        kept = cache / f"{entry.name}.timed"
        if kept.exists():
            vars(entry).update(pickle.loads(kept.read_bytes()))
            return
        original(entry, *how)
        if entry.name != "yours":
            kept.write_bytes(pickle.dumps(vars(entry)))

    timing.time_once = time_once


def run_call(call: dict) -> int:
    os.environ.update(call["env"])
    use_files(*(os.open(call[name], os.O_CREAT | os.O_WRONLY) for name in ("out", "err")))
    words, runs = call["words"], call["runs"]
    if words[0] == "check" and words[1:] and runs is not None:
        kept = Path(call["env"]["WORKSHOP_CACHE"]) / f"ours_{words[1]}.pickle"
        judge.probe = Probe(runs, kept, keep=Path(call["out"]).parent.name.endswith("-own"))
        time_ours_once(kept.parent)
    return workshop.main(words)


def run_job(calls: list[dict]) -> None:
    for call in calls:
        pid = fork(lambda call=call: run_call(call))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        Path(call["out"]).with_suffix(".status").write_text(str(status))


def main() -> None:
    jobs = Path(sys.argv[1])
    data.ensure(say=lambda line: None)
    files = judge.make_data(jobs.parent)
    data.ensure, judge.make_data = (lambda **_: "mnist"), (lambda _: files)  # for all of them
    watched.subprocess = SimpleNamespace(Popen=Popen, PIPE=None, DEVNULL=None)  # type: ignore
    gc.freeze()
    gc.disable()  # each ends soon
    busy: set[int] = set()
    for job in json.loads(jobs.read_text()):
        while len(busy) == AT_ONCE:
            busy.discard(os.wait()[0])
        pid = fork(lambda job=job: run_job(job))
        if "--limit" not in job[0]["words"]:  # such a one only waits
            busy.add(pid)
    with suppress(ChildProcessError):  # none is left
        while True:
            os.wait()


if __name__ == "__main__":
    main()
