"""GPU kernels: the table, their kinds, and the share of 16-bit arithmetic."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cache

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.activity import spans
from tfworkshop.report.intervals import merged, total, without
from tfworkshop.report.operations import kernel_operations
from tfworkshop.report.profile import Kernel
from tfworkshop.report.recording import Host, device_lines, kernel_rows

HALF_SHAPE = re.compile(r"half|bf(loat)?16")


def kernels(hosts: list[Host]) -> list[Kernel]:
    """Kernels of one name and TensorFlow operation are one row; XLA's of one name."""
    lengths: dict[tuple[str, str], list[int]] = defaultdict(list)  # in ps
    by_operation: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for host in hosts:
        for plane in host.devices:
            has_operation = bool(plane.stat_numbers("tf_op"))
            for line in device_lines(plane):
                rows = np.flatnonzero(~line.matches(names.COPY))
                operations = [name for name, _, _ in kernel_operations(line, rows)]
                spent = line.duration_ps[rows].tolist()
                for name, operation, length in zip(line.names(rows), operations, spent):
                    key = name, operation if has_operation else ""
                    lengths[key].append(length)
                    by_operation[key][operation] += length
    whole = sum(map(sum, lengths.values())) or 1
    result = []
    for key, of_kernel in lengths.items():
        ((operation, _),) = by_operation[key].most_common(1)
        result.append(kernel(key[0], operation, of_kernel, whole))
    return sorted(result, key=lambda kernel: -kernel.total_ms)


def kernel(name: str, operation: str, lengths: list[int], whole: int) -> Kernel:
    spent = sum(lengths)
    return Kernel(
        name=name,
        short=names.short_kernel_name(name),
        operation=operation,
        count=len(lengths),
        total_ms=spent / 1e9,
        average_us=spent / len(lengths) / 1e6,
        share=spent / whole,
        tensor_core_eligible=bool(names.ELIGIBLE.search(operation)),
        tensor_core_used=uses_tensor_core(name),
    )


def uses_tensor_core(kernel: str) -> bool | None:
    """By the kernel's name; None where the name cannot tell: AMD's, and what a compiler made."""
    if names.AMD.search(kernel):
        return None
    if names.TENSOR_CORE.search(kernel):
        return True
    return None if names.GENERATED.match(kernel) else False


def kinds(table: list[Kernel]) -> dict[str, float]:
    """ms of kernels by kind, the largest first."""
    found: dict[str, float] = defaultdict(float)
    for item in table:
        found[names.kind_of_kernel(item.name, item.operation)] += item.total_ms
    return dict(sorted(found.items(), key=lambda item: -item[1]))


# --- 16 or 32 bit ---


def precision(hosts: list[Host]) -> dict[str, float | None]:
    """Shares of the time in which kernels ran, by the shapes that were recorded with them.

    A kernel of a matrix library counts as 16 bit by its name, too. None without shapes.
    """
    in_16 = in_all = 0
    for host in hosts:
        half, every = [], []
        for plane in host.devices:
            if not plane.stat_numbers("shape"):
                continue
            for line in device_lines(plane):
                rows = np.flatnonzero(kernel_rows(line))
                shapes = line.texts("shape", rows)
                is_half = [
                    bool(HALF_SHAPE.search(shape)) or is_16_bit(name)
                    for shape, name in zip(shapes, line.names(rows))
                ]
                half.append(spans(line, rows[np.array(is_half, bool)]))
                every.append(spans(line, rows))
        computing_16, computing = merged(half), merged(every)
        in_16 += total(computing_16)
        in_all += total(computing_16) + total(without(computing, computing_16))
    share = 100 * in_16 / in_all if in_all else None
    rest = 100 - share if share is not None else None
    return {"bits16_percent": share, "bits32_percent": rest}


@cache
def is_16_bit(kernel: str) -> bool:
    """Whether a matrix kernel's name says so."""
    return bool(names.MATRIX_KERNEL.search(kernel) and names.SIXTEEN_BIT.search(kernel))


def mostly_16_bit(table: list[Kernel], bits: dict[str, float | None]) -> bool | None:
    """Whether most of the heavy arithmetic is in 16 bit already; None if that cannot be seen."""
    matrix = [item for item in table if names.MATRIX_KERNEL.search(item.name)]
    spent = sum(item.total_ms for item in matrix)
    in_16 = sum(item.total_ms for item in matrix if is_16_bit(item.name))
    if spent and in_16 / spent >= 0.5:
        return True
    percent = bits["bits16_percent"]
    if percent is not None:
        return percent >= 50
    return False if spent else None
