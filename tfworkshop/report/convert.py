"""TensorFlow's own converters, those behind TensorBoard's Profile page, over a run's bytes.

Everything stays in memory: given a path, they would write files beside the profile.
"""

from __future__ import annotations

import os
import re
import signal
import sys

from tfworkshop.problem import Problem
from tfworkshop.quiet import quiet_cpp
from tfworkshop.report import wire, xspace
from tfworkshop.report.profile import ENDING
from tfworkshop.report.recording import Host

IDLE = "ThreadpoolListener::"
LARGE = 20_000_000  # bytes
NEEDS = "TensorFlow 2.17 and its plugin: pip install tensorflow-cpu==2.17.1 and, with --no-deps, "
NEEDS += "tensorboard-plugin-profile==2.17.0"


def load_tensorflow() -> None:
    """Ctrl+C ends at once: caught inside TensorFlow's import it would come out as anything."""
    if "tensorflow" in sys.modules:
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

    def end(*_: object) -> None:
        os.write(2, b"\nworkshop: interrupted\n")
        os._exit(130)

    before = {n: signal.signal(n, end) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        import tensorflow  # noqa: F401
        from tensorboard_plugin_profile.protobuf import overview_page_pb2  # noqa: F401
        from tensorflow.python.profiler.internal import _pywrap_profiler

        if not hasattr(_pywrap_profiler, "xspace_to_tools_data_from_byte_string"):
            raise ImportError
    except ImportError as error:
        missing = f" ({error})" if str(error) else ""
        raise Problem(f"a profile is read with {NEEDS}{missing}") from None
    for number, handler in before.items():
        signal.signal(number, handler)


class Converter:
    """The profile's bytes, and TensorFlow's tools over them."""

    def __init__(self, hosts: list[Host]) -> None:
        load_tensorflow()
        self.hosts = hosts
        self.files: list[str] = []
        self.names: list[str] = []
        for host in hosts:
            # The converter takes a host's name for a path, and wants files named after hosts.
            name = re.sub(r"[^\w.:-]", "_", host.name, flags=re.ASCII)
            while name.replace(":", "_") + ENDING in self.files:
                name += "_"
            self.files.append(name.replace(":", "_") + ENDING)
            self.names.append(name)
        pairs = zip(hosts, self.names)
        self.spaces = [rebuilt(host, name, host.space.texts) for host, name in pairs]

    def convert(self, tool: str, host: int | None = None) -> bytes | None:
        """A tool's data for all hosts or one; None where TensorFlow cannot compute it."""
        from tensorflow.python.profiler.internal import _pywrap_profiler

        chosen = slice(None) if host is None else slice(host, host + 1)
        try:
            with quiet_cpp():
                data, fine = _pywrap_profiler.xspace_to_tools_data_from_byte_string(
                    self.spaces[chosen], self.files[chosen], tool, {}
                )
        except Exception:  # whatever C++ threw: this tool is not there
            return None
        return data if fine else None

    def clean_stats(self) -> None:
        """Texts that are told of events, too: C++ refuses a profile with one that is no UTF-8."""
        for i, host in enumerate(self.hosts):
            spans = list(host.space.texts)
            for plane in host.space.planes:
                for line in plane.lines:
                    stats = line.stats()
                    texts = stats.kind == xspace.TEXT
                    spans += zip(stats.value[texts].tolist(), stats.end[texts].tolist())
            self.spaces[i] = rebuilt(host, self.names[i], spans)


def clean(data: bytes, texts: list[tuple[int, int]]) -> bytes:
    """The same bytes, with a question mark for each that is no UTF-8: C++ would refuse them all."""
    made = None
    for at, end in texts:
        try:
            data[at:end].decode()
        except UnicodeDecodeError:
            made = made or bytearray(data)
            plain = data[at:end].decode("ascii", "replace").replace("\ufffd", "?")
            made[at:end] = plain.encode()
    return bytes(made) if made else data


def rebuilt(host: Host, name: str, texts: list[tuple[int, int]]) -> bytes:
    """The same profile, with clean texts, of a host of this name; a large one without idle threads.

    These are workers that note only when they are woken: most events on a CPU are theirs. Without
    them host compute is less by a few parts in ten thousand, and the converters need a fifth.
    """
    data = clean(host.space.data, texts)
    if len(data) < LARGE and host.space.hosts[:1] == [name]:
        return data
    parts = []
    for plane in host.space.planes:
        at, kept = plane.span[0], []
        for line, (start, end) in zip(plane.lines, plane.line_spans):
            working = line.called(lambda name: not name.startswith(IDLE)).any()
            if not working and len(data) >= LARGE:
                tag = 1 + len(wire.encoded(end - start))  # before it: which field, and its length
                kept.append(data[at : start - tag])
                at = end
        body = b"".join([*kept, data[at : plane.span[1]]])
        parts += [b"\x0a", wire.encoded(len(body)), body]
    told = name.encode()
    return b"".join([*parts, b"\x22", wire.encoded(len(told)), told])
