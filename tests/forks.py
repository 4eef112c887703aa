"""Scripts many times over with TensorFlow loaded once: a process that forks itself.

python -m tests.forks JOBS.json: each job is a script, its options, its folder, where its output
goes, and code that runs before it. How each one ended is printed as JSON. Nothing of TensorFlow
has run before a fork, and a fork ends as any Python does.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras  # noqa: F401
import tensorflow  # noqa: F401

with contextlib.suppress(ImportError):
    import horovod.tensorflow  # noqa: F401


def later(happens: Callable[[], object]) -> None:
    """When the data is read, and the training begins: no stage waits for it any longer."""
    faulthandler.cancel_dump_traceback_later = happens


def vanish(name: str) -> None:
    shutil.rmtree(name, ignore_errors=True)
    Path(name).unlink(missing_ok=True)


def limit(size: int) -> None:
    """Of files, in bytes: how a full disk looks to a program."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def start(job: dict) -> None:
    """In the child: become the script."""
    os.chdir(job["folder"])
    os.dup2(os.open("err.txt", os.O_WRONLY | os.O_CREAT), 2)
    if job["stdout"] == "closed":
        os.close(1)
        sys.stdout = None
    elif job["stdout"] == "unread":
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)
    else:
        os.dup2(os.open(job["stdout"], os.O_WRONLY | os.O_CREAT), 1)
    sys.argv = [job["script"], *job["words"]]
    sys.path.insert(0, str(Path(job["script"]).parent))
    exec(job["first"])
    runpy.run_path(job["script"], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    statuses = []
    for job in json.loads(Path(sys.argv[1]).read_text()):
        child = os.fork()
        if not child:
            start(job)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(statuses))
