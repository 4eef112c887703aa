"""A `python` whose processes start with TensorFlow loaded: loading takes longer than a short run.

started(PROGRAM) puts a client at PROGRAM, to be called as python is. The client hands its
arguments, folder, environment and files to a server, which forks a process to run them, and passes
on signals and the exit status. Nothing of TensorFlow has run in the server, so a forked process is
as good as a new one. What TensorFlow reads from the environment while it loads has no effect here.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MODULES = ["tensorflow", "keras", "horovod.tensorflow", "line_profiler", "rich.console", "psutil"]
MODULES += ["xprof.convert.raw_to_tool_data"]
CLIENT = """\
#!{python} -IS
import json, os, signal, socket, sys

words = sys.argv[1:]
if not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
    os.execv({python!r}, [{python!r}, *words])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"-"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    answers = server.makefile()
    process = int(answers.readline())
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(process, number))
    status = int(answers.readline())
if status < 0:  # a signal ended it
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
Request = tuple[list[str], str, dict[str, str]]  # arguments, folder, environment


@contextmanager
def started(program: Path) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="warm") as folder:
        address = f"{folder}/socket"
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
        env.pop("PYTHONPATH", None)
        command = [sys.executable, __file__, address]
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE) as server:
            try:
                while not Path(address).exists():
                    assert server.poll() is None
                    time.sleep(0.05)
                program.write_text(CLIENT.format(python=sys.executable, address=address))
                program.chmod(0o755)
                program.with_name("python3").symlink_to(program.name)
                yield
            finally:
                server.kill()


def serve(address: str) -> Request:
    """Wait for requests; return each one in a process of its own."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(100)
        for name in MODULES:
            with suppress(ImportError):  # Horovod is optional
                importlib.import_module(name)
        gc.freeze()
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return receive(client)
            client.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    os._exit(0)  # the tests have ended


def receive(client: socket.socket) -> Request:
    """Return the request in a child process; the parent reports how that ends."""
    _, files, _, _ = socket.recv_fds(client, 1, 3)
    request = json.loads(client.makefile().readline())
    child = os.fork()
    if child == 0:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        client.close()
        return request
    for file in files:
        os.close(file)
    client.sendall(f"{child}\n".encode())
    child_ended = os.pidfd_open(child)
    if child_ended not in select.select([child_ended, client], [], [])[0]:
        os.kill(child, signal.SIGKILL)  # the client was killed
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        client.sendall(f"{status}\n".encode())
    os._exit(0)


def run(words: list[str], folder: str, env: dict[str, str]) -> None:
    """`python ...`, from its start on."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)
    sys.stdout.reconfigure(write_through=bool(env.get("PYTHONUNBUFFERED")))
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")
    sys.executable, first, *rest = words
    sys.prefix = sys.exec_prefix = str(Path(sys.executable).parents[1])
    sys.path[:1] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    if first == "-m":
        sys.path.insert(0, folder)
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(rest[0], vars(main))
    else:
        sys.path.insert(0, str(Path(first).resolve().parent))
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    run(*serve(sys.argv[1]))
