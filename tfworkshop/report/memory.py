"""Memory: each allocator's peak, what was allocated then, and how much more would fit."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.profile import Allocation, Allocator
from tfworkshop.report.recording import Host
from tfworkshop.report.xspace import Line

MOST = 20  # allocations to name
MOST_POINTS = 1000  # of a curve
EARLIER = "allocated before the recording"
VARIES = 0.05  # of the peak: with less, nothing is known of what a batch needs
STATS = ("bytes_allocated", "bytes_available", "peak_bytes_in_use", "allocation_bytes", "addr")
IN_USE, AVAILABLE, LIFETIME_PEAK, SIZE, ADDRESS, TIME, ALLOCATES, LINE, ROW = range(9)


def allocators(host: Host) -> list[Allocator]:
    """Every allocation and deallocation is a row of a table, sorted by time."""
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for number, line in enumerate(host.threads):
        rows = np.flatnonzero(line.matches(names.MEMORY))
        if not len(rows):
            continue
        allocates = line.matches(names.ALLOCATION)[rows]
        more = (line.start_ps[rows], allocates, np.full(len(rows), number), rows)
        table = np.column_stack((line.integers(STATS, rows), *more))
        owners = np.array(line.texts("allocator_name", rows))
        for owner in np.unique(owners).tolist():
            parts[owner].append(table[owners == owner])
    result = []
    for owner, tables in sorted(parts.items()):
        table = np.concatenate(tables)
        result.append(allocator(host, owner, table[np.argsort(table[:, TIME], kind="stable")]))
    return result


def allocator(host: Host, name: str, table: np.ndarray) -> Allocator:
    peak = int(np.argmax(table[:, IN_USE]))
    peak_bytes, available = int(table[peak, IN_USE]), int(table[peak, AVAILABLE])
    stays = int(table[:, IN_USE].min())
    result = Allocator(
        host=host.name,
        allocator=name,
        peak_bytes=peak_bytes,
        lifetime_peak_bytes=int(table[:, LIFETIME_PEAK].max()),
        capacity_bytes=peak_bytes + available,
        curve=curve((table[:, TIME] - host.bounds[0]) / 1e9, table[:, IN_USE]),
        at_peak=at_peak(host.threads, table[: peak + 1], peak_bytes),
    )
    # What comes and goes in a step grows with the batch, the rest does not.
    if "GPU" in name and available and peak_bytes - stays > VARIES * peak_bytes:
        result.headroom = (result.capacity_bytes - stays) / (peak_bytes - stays)
    return result


def curve(times: np.ndarray, used: np.ndarray) -> list[list[float]]:
    """Bytes in use over time; of many points the highest in each stretch."""
    chosen = np.arange(len(used))
    if len(used) > MOST_POINTS:
        stretches = np.array_split(chosen, MOST_POINTS)
        chosen = np.array([stretch[np.argmax(used[stretch])] for stretch in stretches])
    return [[float(time), float(count)] for time, count in zip(times[chosen], used[chosen])]


def at_peak(threads: list[Line], table: np.ndarray, peak_bytes: int) -> list[Allocation]:
    """What was in use at the peak, by operation and shape, the largest first."""
    held: dict[int, int] = {}  # by address: the row of the allocation
    for i, (address, allocates) in enumerate(table[:, [ADDRESS, ALLOCATES]].tolist()):
        if allocates:
            held[address] = i
        else:
            held.pop(address, None)
    found: dict[tuple[str, str], Allocation] = {}
    in_use = table[list(held.values())]
    for number in np.unique(in_use[:, LINE]).tolist():
        of_line = in_use[in_use[:, LINE] == number]
        labels = threads[number].texts_of(("tf_op", "tensor_shapes"), of_line[:, ROW])
        for operation, shape, size in zip(*labels, of_line[:, SIZE].tolist()):
            key = operation or "unknown", shape
            item = found.setdefault(key, Allocation(*key, 0, 0))
            item.count += 1
            item.total_bytes += size
    earlier = peak_bytes - sum(item.total_bytes for item in found.values())
    if earlier > 0:
        found[EARLIER, ""] = Allocation(EARLIER, "", 1, earlier)
    return sorted(found.values(), key=lambda item: -item.total_bytes)[:MOST]
