"""A program on the ideal GPU: which Python runs it, and what it gave the device to do."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tfworkshop.ideal_gpu import build
from tfworkshop.problem import Problem
from tfworkshop.profile.summary import Kind
from tfworkshop.report.figures import ms
from tfworkshop.report.profile import Profile
from tfworkshop.report.text import end_of

MOST_COPIES = 12  # kinds of copies to the host that are listed


def choose_python(name: str, environment: dict[str, str]) -> Path:
    """The program's own Python if its TensorFlow is built for GPUs, else the workshop's."""
    own = shutil.which(name, path=environment.get("PATH"))
    if own:
        try:
            build.find_tensorflow(Path(own))
            return Path(own)
        except Problem:
            pass
    print(f"{name} has no TensorFlow for GPUs: running with {sys.executable}", file=sys.stderr)
    return Path(sys.executable)


def describe(kind: Kind, profile: Profile) -> list[str]:
    """Per step: the host's time and its limit, the device's work, and who asks the host to wait."""
    work = {name: total / kind.unrecorded.steps for name, total in kind.work.items()}
    host = f"Ideal GPU: kernels take no time. The host takes {ms(kind.median_ms)} ms a step"
    if kind.samples:
        limit = kind.samples / kind.median_ms * 1e3
        host += f": with any GPU, this program trains at most {limit:,.0f} samples a second here"
    kernels = work["tensorflow_kernels"] + work["xla_kernels"]
    lines = [
        f"{host}.",
        f"A step: {count(kernels, 'kernel')}, {count(work['library_calls'], 'library call')}, "
        f"{count(work['graph_launches'], 'graph launch', 'graph launches')}; "
        f"{count(work['to_device'], 'copy', 'copies')} to the device "
        f"({work['to_device_bytes']:,.0f} bytes), {number(work['to_host'])} to the host "
        f"({work['to_host_bytes']:,.0f}); {count(work['waits'], 'wait')}.",
    ]
    to_host = [copy for copy in profile.copies if copy.way == "to host"]
    for copy in to_host[:MOST_COPIES]:
        line = f"  to the host: {number(copy.per_step)} x {copy.bytes:,} bytes"
        if copy.source:
            line += f", from {end_of(copy.source, 28)}"
        lines.append(f"{line}, for {end_of(copy.reader, 30)}")
    if len(to_host) > MOST_COPIES:
        lines.append(f"  and {len(to_host) - MOST_COPIES} more: ./workshop report lists them")
    return lines


def number(value: float) -> str:
    """Whole where it is; work that some steps do has a fraction."""
    return f"{round(value, 1):,.10g}"


def count(value: float, one: str, many: str = "") -> str:
    return f"{number(value)} {one if number(value) == '1' else many or one + 's'}"
