"""Two profiles side by side: what got faster, what slower, what came and went."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from tfworkshop.report.figures import percent
from tfworkshop.report.profile import LABELS, Operation, Profile

ALIKE = 0.2  # of the operations' names: with fewer in common, the programs are unrelated
FEW = 5  # operations: too few to say whether programs are related


@dataclass
class Difference:
    name: str
    type: str
    where: str
    a_ms: float | None  # None where that profile does not have it
    b_ms: float | None
    difference_ms: float  # B minus A: less than 0 is faster
    a_count: float | None = None  # how often, in a step
    b_count: float | None = None


@dataclass
class Comparison:
    per_step: bool  # or else in all, where a profile has no steps
    a_step_ms: float | None
    b_step_ms: float | None
    sentence: str
    next: str = ""
    notes: list[str] = field(default_factory=list)
    split: list[Difference] = field(default_factory=list)
    operations: list[Difference] = field(default_factory=list)
    kernels: list[Difference] = field(default_factory=list)


Key = tuple[str, str, str]  # name, type, where
Totals = dict[Key, tuple[float, float]]  # time and count of a step


def compare(a: Profile, b: Profile) -> Comparison:
    per_step = bool(a.steps.count and b.steps.count)
    a_count, b_count = (a.steps.count, b.steps.count) if per_step else (1, 1)
    result = Comparison(per_step, a.steps.average_ms, b.steps.average_ms, sentence(a, b))
    result.next = b.verdict["next"]
    if per_step:
        parts = [(label, a.steps.split[key], b.steps.split[key]) for key, label in LABELS.items()]
        result.split = [
            Difference(label, "", "", before, after, after - before)
            for label, before, after in parts
            if before or after
        ]
    result.operations = differences(operations(a, a_count), operations(b, b_count))
    result.kernels = differences(kernels(a, a_count), kernels(b, b_count))
    notes = (unrelated(a, b), unlike_recordings(a, b), came_and_went(result), explained(result))
    result.notes = [note for note in notes if note]
    return result


def sentence(a: Profile, b: Profile) -> str:
    before, after = a.steps.average_ms, b.steps.average_ms
    if not before or not after:
        which = "A has" if after else "B has"
        if not before and not after:
            which = "A and B have"
        return f"{which} no step time: operations are compared by their time in all."
    figures = f"{after:.1f} ms a step against {before:.1f} ms"
    if abs(after / before - 1) < 0.02:
        return f"B is as fast as A: {figures}."
    times = [[step.total_ms for step in profile.steps.per_step] for profile in (b, a)]
    if overlap(*times):
        ranges = " against ".join(f"{min(side):.1f} to {max(side):.1f} ms" for side in times)
        return (
            f"No clear difference between A and B: {figures}, and the steps vary, {ranges}: "
            "record both again where nothing else runs."
        )
    if after < before:
        return f"B is {before / after:.2f} times as fast as A: {figures}."
    return f"B is slower than A, {after / before:.2f} times the time: {figures}."


def overlap(a: list[float], b: list[float]) -> bool:
    """Whether the middle halves of two sets of step times overlap; False for very few steps."""
    if min(len(a), len(b)) < 4:
        return False
    (low_a, _, high_a), (low_b, _, high_b) = statistics.quantiles(a), statistics.quantiles(b)
    return max(low_a, low_b) < min(high_a, high_b)


# --- what the operations say ---


def unrelated(a: Profile, b: Profile) -> str:
    """Warn if the profiles look unrelated."""

    def names(operations: list[Operation]) -> set[tuple[str, str]]:
        chosen = [op for op in operations if op.mode != "tf.data"]
        return {(re.sub(r"_?\d+", "", op.name), op.type) for op in chosen}

    first, second = names(a.operations), names(b.operations)
    fewest = min(len(first), len(second))
    if fewest < FEW or len(first & second) >= ALIKE * fewest:
        return ""
    shared = percent(len(first & second) / fewest)
    return f"These look like two programs: they share {shared} of their operations' names."


def unlike_recordings(a: Profile, b: Profile) -> str:
    """Recording changes a program with XLA on a GPU more than one without."""
    if a.setup.xla == b.setup.xla or not (a.kernels and b.kernels):
        return ""
    return (
        "Only one of them uses XLA, which does without CUDA graphs while it is recorded: compare "
        "steps that are not recorded, too (img_per_s)."
    )


def runs_differ(item: Difference) -> bool:
    """Whether it runs more or less often in B."""
    return bool(item.a_count and item.b_count and abs(item.a_count - item.b_count) > 0.5)


def came_and_went(result: Comparison) -> str:
    added = [item.difference_ms for item in result.operations if item.a_ms is None]
    removed = [item.difference_ms for item in result.operations if item.b_ms is None]
    changed = sum(map(runs_differ, result.operations))
    parts = []
    if added:
        parts.append(f"{len(added):,} added ({sum(added):+.1f} ms)")
    if removed:
        parts.append(f"{len(removed):,} removed ({sum(removed):+.1f} ms)")
    if changed:
        parts.append(f"{changed:,} run more or less often")
    return f"Operations in B: {', '.join(parts)}." if parts else ""


def explained(result: Comparison) -> str:
    """How much of the difference lies in the operations that are listed."""
    if result.a_step_ms is None or result.b_step_ms is None:
        return ""
    step = result.b_step_ms - result.a_step_ms
    sides = {item.where for item in result.operations}
    side = "device" if "device" in sides else "host"
    listed = sum(item.difference_ms for item in result.operations if item.where == side)
    if not sides or abs(step) <= 0.02 * result.a_step_ms:
        return ""
    change = f"A step changed by {step:+.1f} ms, the operations listed by {listed:+.1f}"
    if 0 < listed / step <= 1.05:
        return f"{change}: {percent(min(1.0, listed / step))} of it."
    return f"{change}: they run beside each other, or part of them is in no table."


def operations(profile: Profile, steps: int) -> Totals:
    items = (((op.name, op.type, op.where), op.self_ms, op.count) for op in profile.operations)
    return summed(items, steps)


def kernels(profile: Profile, steps: int) -> Totals:
    return summed(
        (((k.short, "kernel", "device"), k.total_ms, k.count) for k in profile.kernels), steps
    )


def summed(items: Iterable[tuple[Key, float, float]], steps: int) -> Totals:
    """Time and count per step; entries of one name (other launch sizes of a kernel) are one."""
    totals: Totals = {}
    for key, spent, count in items:
        before = totals.get(key, (0.0, 0.0))
        totals[key] = before[0] + spent / steps, before[1] + count / steps
    return totals


def differences(a: Totals, b: Totals) -> list[Difference]:
    result = []
    for key in {**a, **b}:
        a_ms, a_count = a.get(key, (None, None))
        b_ms, b_count = b.get(key, (None, None))
        change = (b_ms or 0) - (a_ms or 0)
        result.append(Difference(*key, a_ms, b_ms, change, a_count, b_count))
    return sorted(result, key=lambda item: (-abs(item.difference_ms), item.name))
