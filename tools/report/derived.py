"""A device's kernels joined to the operations that they belong to, as a lane of its own."""

from __future__ import annotations

import numpy as np

from tools.report.gaps import DEVICE, own_lines
from tools.report.xspace import Plane

NAMES = ("tf_op", "annotation", "hlo_op")  # what tells a kernel's operation, the best first
MOST = 100_000  # kernels: with more, a lane of operations would be as long as the kernels'
Joined = tuple[str, int, int]  # operation, start, end


def operations(plane: Plane) -> list[Joined]:
    """Neighbours of one operation are one; nothing where the profile has such a lane already."""
    if not DEVICE.match(plane.name) or any(ln.name == "TensorFlow Ops" for ln in plane.lines):
        return []
    kernels: list[Joined] = []
    for line in own_lines(plane):
        rows = np.flatnonzero(line.duration_ps > 0)
        if len(rows) > MOST:
            return []
        told = [line.texts(name, rows) for name in NAMES]
        spans = zip(line.start_ps[rows].tolist(), line.end_ps[rows].tolist())
        for names, (start, end) in zip(zip(*told), spans):
            name = next(filter(None, names), "").partition(":")[0]
            if name:
                kernels.append((name, start, end))
    made: list[Joined] = []
    for name, start, end in sorted(kernels, key=lambda kernel: kernel[1]):
        if made and made[-1][0] == name:
            made[-1] = name, made[-1][1], max(made[-1][2], end)
        else:
            made.append((name, start, end))
    return made
