"""A `python` that has TensorFlow loaded already: starting it takes longer than most short runs.

started(PROGRAM) puts a client at PROGRAM, to be called as python is. It hands its words, folder,
environment and files to a server, which forks a process to run them: nothing of TensorFlow has run
there before, so that it is as good as a new one.
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
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOADED = ("tensorflow", "keras", "horovod.tensorflow", "line_profiler", "rich.console")
LOADED += ("tensorboard_plugin_profile.protobuf.overview_page_pb2", "psutil")
CLIENT = """\
#!{python} -IS
import json, os, socket, sys

words = sys.argv[1:]
if not words or (words[0][0] == "-" and words[0] not in ("-c", "-m")):
    os.execv({python!r}, [{python!r}, *words])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"-"], [0, 1, 2])
    server.sendall(json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    status = int(server.makefile().readline() or 1)
sys.exit(status if status >= 0 else 128 - status)
"""


@contextmanager
def started(program: Path) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="warm") as folder:
        address = f"{folder}/socket"
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
        env.pop("PYTHONPATH", None)
        words = [sys.executable, __file__, address]
        with subprocess.Popen(words, env=env, stdin=subprocess.PIPE) as server:
            try:
                with socket.socket(socket.AF_UNIX) as there:  # bound before it loads anything
                    while there.connect_ex(address):
                        assert server.poll() is None
                        select.select([], [], [], 0.05)
                program.write_text(CLIENT.format(python=sys.executable, address=address))
                program.chmod(0o755)
                program.with_name("python3").symlink_to(program.name)
                yield
            finally:
                server.kill()


def serve(address: str) -> tuple[list[str], str, dict[str, str]]:
    """What to run; comes back only in a process of its own for it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(100)
        for name in LOADED:
            importlib.import_module(name)
        gc.freeze()
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            client, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                return take(client)
            client.close()
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    os._exit(0)  # whoever started us is gone


def take(client: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """The request, in a child; here its end is awaited, and told."""
    _, files, _, _ = socket.recv_fds(client, 1, 3)
    if not files:
        os._exit(0)
    request = json.loads(client.makefile().readline())
    child = os.fork()
    for number, file in enumerate(files):
        if child == 0:
            os.dup2(file, number)
        os.close(file)
    if child == 0:
        client.close()
        return request
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, client], [], [])[0]:  # the client was ended
        os.kill(child, signal.SIGTERM)
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
    through = bool(env.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False, buffering=1 if os.isatty(1) else -1)
    sys.stdout.reconfigure(write_through=through)
    sys.stderr = open(2, "w", closefd=False, buffering=1, errors="backslashreplace")
    sys.executable, first, *rest = words
    sys.prefix = sys.exec_prefix = str(Path(sys.executable).parents[1])
    script = first not in ("-c", "-m")
    paths = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [str(Path(first).resolve().parent) if script else "", *paths]
    sys.argv = [first, *rest[0 if script else 1 :]]
    if script:
        runpy.run_path(first, run_name="__main__")
    elif first == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(rest[0], vars(main))


if __name__ == "__main__":
    run(*serve(sys.argv[1]))
