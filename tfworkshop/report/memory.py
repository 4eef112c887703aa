"""Memory: each allocator's peak, what was allocated then, and how much more would fit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tfworkshop.report import names
from tfworkshop.report.profile import Allocation, Allocator
from tfworkshop.report.recording import Host

MOST = 20  # allocations to name
MOST_POINTS = 1000  # of a curve
EARLIER = "allocated before the recording"
VARIES = 0.05  # of the peak: with less, nothing is known of what a batch needs


@dataclass
class Change:
    """One allocation or deallocation."""

    at_ps: int
    allocates: bool
    stats: dict[str, object]

    def number(self, stat: str) -> int:
        value = self.stats.get(stat, 0)
        return int(value) if isinstance(value, (int, float)) else 0


def allocators(host: Host) -> list[Allocator]:
    by_name: dict[str, list[Change]] = defaultdict(list)
    for line in host.threads:
        rows = np.flatnonzero(line.matches(names.MEMORY))
        changes = [
            Change(at, name == "MemoryAllocation", {})
            for at, name in zip(line.start_ps[rows].tolist(), line.names(rows))
        ]
        for i, stat, value in line.plane.named_values(line.stats(rows)):
            changes[i].stats[stat] = value
        for change in changes:
            by_name[str(change.stats.get("allocator_name", ""))].append(change)
    result = []
    for name, changes in sorted(by_name.items()):
        changes.sort(key=lambda change: change.at_ps)
        result.append(allocator(host, name, changes))
    return result


def allocator(host: Host, name: str, changes: list[Change]) -> Allocator:
    used = [change.number("bytes_allocated") for change in changes]
    peak = max(range(len(changes)), key=lambda i: used[i])
    curve = [[(c.at_ps - host.bounds[0]) / 1e9, float(u)] for c, u in zip(changes, used)]
    stays, varies = min(used), max(used) - min(used)
    available = changes[peak].number("bytes_available")
    result = Allocator(
        host=host.name,
        allocator=name,
        peak_bytes=used[peak],
        lifetime_peak_bytes=max(change.number("peak_bytes_in_use") for change in changes),
        capacity_bytes=used[peak] + available,
        curve=thinned(curve),
        at_peak=at_peak(changes[: peak + 1], used[peak]),
    )
    # What comes and goes in a step grows with the batch, the rest does not.
    if "GPU" in name and available and varies > VARIES * used[peak]:
        result.headroom = (result.capacity_bytes - stays) / varies
    return result


def thinned(curve: list[list[float]]) -> list[list[float]]:
    """Of many points the highest in each stretch."""
    if len(curve) <= MOST_POINTS:
        return curve
    edges = np.linspace(0, len(curve), MOST_POINTS + 1).astype(int)
    return [
        max(curve[first:last], key=lambda point: point[1]) for first, last in zip(edges, edges[1:])
    ]


def at_peak(changes: list[Change], peak_bytes: int) -> list[Allocation]:
    """What was in use at the peak, by operation and shape, the largest first."""
    held: dict[int, Change] = {}
    for change in changes:
        address = change.number("addr")
        if change.allocates:
            held[address] = change
        else:
            held.pop(address, None)
    found: dict[tuple[str, str], Allocation] = {}
    for change in held.values():
        operation = str(change.stats.get("tf_op", "unknown"))
        key = operation, str(change.stats.get("tensor_shapes", ""))
        item = found.setdefault(key, Allocation(*key, 0, 0))
        item.count += 1
        item.total_bytes += change.number("allocation_bytes")
    earlier = peak_bytes - sum(item.total_bytes for item in found.values())
    if earlier > 0:
        found[EARLIER, ""] = Allocation(EARLIER, "", 1, earlier)
    return sorted(found.values(), key=lambda item: -item.total_bytes)[:MOST]
