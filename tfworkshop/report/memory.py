"""Memory: the peak of every allocator, what was allocated then, and how much more would fit."""

from __future__ import annotations

import json

from tfworkshop.report.profile import Allocation, Memory, Profile

MOST = 20  # allocations to name
UNMAPPED = "unused preallocated device memory"  # what the converter has seen no allocation of
EARLIER = "allocated before the recording"
VARIES = 0.05  # of the peak: with less, nothing is known of what a batch needs


def add_memory(profile: Profile, tables: dict[str, bytes | None]) -> None:
    """From the converter's tables, one for each host."""
    allocators = []
    for host, data in tables.items():
        found = json.loads(data or b"{}").get("memoryProfilePerAllocator", {})
        allocators += [allocator(host, name, entry) for name, entry in sorted(found.items())]
    profile.memory = {
        "peak_bytes": max((item.peak_bytes for item in allocators), default=None),
        "allocators": allocators,
    }
    if not allocators:
        profile.missing.append("No memory profile.")


def allocator(host: str, name: str, entry: dict) -> Memory:
    summary = entry.get("profileSummary", {})
    snapshots = entry.get("sampledTimelineSnapshots") or entry.get("memoryProfileSnapshots") or []
    made = Memory(
        host=host,
        allocator=name,
        peak_bytes=int(summary.get("peakStats", {}).get("peakBytesInUse", 0)),
        lifetime_peak_bytes=int(summary.get("peakBytesUsageLifetime", 0)),
        capacity_bytes=int(summary.get("memoryCapacity", 0)),
        curve=sorted(map(memory_point, snapshots)),
        at_peak=at_peak(entry),
    )
    made.headroom = headroom(made)
    return made


def memory_point(snapshot: dict) -> list[float]:
    used = snapshot.get("aggregationStats", {})
    in_use = int(used.get("stackReservedBytes", 0)) + int(used.get("heapAllocatedBytes", 0))
    return [int(snapshot.get("timeOffsetPs", 0)) / 1e9, in_use]


def at_peak(entry: dict) -> list[Allocation]:
    """What was in use at the peak, by operation and shape, the largest first."""
    snapshots = entry.get("memoryProfileSnapshots", [])
    found: dict[tuple[str, str], Allocation] = {}
    for active in entry.get("activeAllocations", []):
        index = int(active.get("snapshotIndex", -1))
        if 0 <= index < len(snapshots):
            told = snapshots[index].get("activityMetadata", {})
        else:
            told = entry["specialAllocations"][int(active.get("specialIndex", 0))]
        count = int(active.get("numOccurrences", 1))
        name, shape = told.get("tfOpName", "unknown"), told.get("tensorShape", "")
        key = (EARLIER, "") if name == UNMAPPED else (name, shape)
        item = found.setdefault(key, Allocation(*key, 0, 0))
        item.count += count
        item.total_bytes += count * int(told.get("allocationBytes", 0))
    return sorted(found.values(), key=lambda item: -item.total_bytes)[:MOST]


def headroom(item: Memory) -> float | None:
    """How many times the batch: what comes and goes in a step grows with it, the rest does not."""
    stays = min((used for _, used in item.curve), default=0)
    varies = item.peak_bytes - stays
    if "GPU" not in item.allocator or item.capacity_bytes <= item.peak_bytes:
        return None
    return (item.capacity_bytes - stays) / varies if varies > VARIES * item.peak_bytes else None
