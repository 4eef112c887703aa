"""GPU kernels: the table, their kinds, and the share of 16-bit arithmetic."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.activity import spans
from tfworkshop.report.intervals import merged, total, without
from tfworkshop.report.operations import kernel_operations
from tfworkshop.report.profile import Kernel
from tfworkshop.report.recording import Host, device_lines, kernel_rows

DETAILS = re.compile(r"(\w+):([\d,]+)")
HALF_SHAPE = re.compile(r"half|bf(loat)?16")


def kernels(hosts: list[Host]) -> list[Kernel]:
    """Kernels of one name, launch size and operation are one row."""
    found: dict[tuple[str, str, str], list[int]] = defaultdict(list)  # durations in ps
    operation_time: dict[tuple[str, str, str], dict[str, int]] = defaultdict(dict)
    for host in hosts:
        for plane in host.devices:
            has_operation = bool(plane.stat_numbers("tf_op"))
            for line in device_lines(plane):
                rows = np.flatnonzero(line.matches(names.COPY) == 0)
                lengths = line.duration_ps[rows].tolist()
                operations = [name for name, _, _ in kernel_operations(line, rows)]
                details = line.texts("kernel_details", rows)
                for name, size, op, spent in zip(line.names(rows), details, operations, lengths):
                    key = name, size, op if has_operation else ""
                    found[key].append(spent)
                    operation_time[key][op] = operation_time[key].get(op, 0) + spent
    whole = sum(sum(lengths) for lengths in found.values()) or 1
    result = []
    for (name, size, _), lengths in found.items():
        spent_by = operation_time[name, size, _]
        operation = max(spent_by, key=lambda op: spent_by[op])
        result.append(kernel(name, size, operation, lengths, whole))
    return sorted(result, key=lambda kernel: -kernel.total_ms)


def kernel(name: str, details: str, operation: str, lengths: list[int], whole: int) -> Kernel:
    sizes = dict(DETAILS.findall(details))
    used = uses_tensor_core(name)
    eligible = None if names.AMD.search(name) else bool(names.ELIGIBLE.search(operation))
    spent = sum(lengths)
    return Kernel(
        name=name,
        short=names.short_kernel_name(name),
        operation=operation,
        count=len(lengths),
        total_ms=spent / 1e9,
        average_us=spent / len(lengths) / 1e6,
        min_us=min(lengths) / 1e6,
        max_us=max(lengths) / 1e6,
        share=spent / whole,
        tensor_core_eligible=eligible,
        tensor_core_used=used,
        registers=int(sizes.get("regs", "0").split(",")[0]),
        block=numbers(sizes.get("block", "")),
        grid=numbers(sizes.get("grid", "")),
    )


def uses_tensor_core(kernel: str) -> bool | None:
    """By the kernel's name; None where the name cannot tell: AMD's, and what a compiler made."""
    if names.AMD.search(kernel):
        return None
    if names.TENSOR_CORE.search(kernel):
        return True
    return None if names.GENERATED.match(kernel) else False


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


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
    if not any(plane.stat_numbers("shape") for host in hosts for plane in host.devices):
        return {"bits16_percent": None, "bits32_percent": None}
    in_16 = in_all = 0
    for host in hosts:
        half, every = [], []
        for plane in host.devices:
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
    if not in_all:
        return {"bits16_percent": None, "bits32_percent": None}
    share = 100 * in_16 / in_all
    return {"bits16_percent": share, "bits32_percent": 100 - share}


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
