"""Two profiles side by side: what got faster, what slower, sorted by the difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tools.report.profile import LABELS, Profile


@dataclass
class Difference:
    name: str
    type: str
    where: str
    a_ms: float | None  # None where that profile does not have it
    b_ms: float | None
    difference_ms: float  # B minus A: less than 0 is faster


@dataclass
class Comparison:
    per_step: bool  # or else in all, where a profile has no steps
    a_step_ms: float | None
    b_step_ms: float | None
    sentence: str
    split: list[Difference] = field(default_factory=list)
    operations: list[Difference] = field(default_factory=list)
    kernels: list[Difference] = field(default_factory=list)


Key = tuple[str, str, str]  # name, type, where


def compare(a: Profile, b: Profile) -> Comparison:
    per_step = bool(a.steps.count and b.steps.count)
    a_count, b_count = (a.steps.count, b.steps.count) if per_step else (1, 1)
    made = Comparison(per_step, a.steps.average_ms, b.steps.average_ms, sentence(a, b))
    if per_step:
        made.split = [
            difference((LABELS[key], "", ""), a.steps.split[key], b.steps.split[key])
            for key in LABELS
            if a.steps.split[key] or b.steps.split[key]
        ]
    made.operations = differences(
        summed((((op.name, op.type, op.where), op.self_ms) for op in a.operations), a_count),
        summed((((op.name, op.type, op.where), op.self_ms) for op in b.operations), b_count),
    )
    made.kernels = differences(
        summed((((k.short, "kernel", "device"), k.total_ms) for k in a.kernels), a_count),
        summed((((k.short, "kernel", "device"), k.total_ms) for k in b.kernels), b_count),
    )
    return made


def sentence(a: Profile, b: Profile) -> str:
    before, after = a.steps.average_ms, b.steps.average_ms
    if not before or not after:
        which = "A and B have" if not (before or after) else "A has" if not before else "B has"
        return f"{which} no step time: operations are compared by their time in all."
    figures = f"{after:.1f} ms a step against {before:.1f} ms"
    if abs(after / before - 1) < 0.02:
        return f"B is as fast as A: {figures}."
    if after < before:
        return f"B is {before / after:.2f} times as fast as A: {figures}."
    return f"B is slower than A, {after / before:.2f} times the time: {figures}."


def summed(items: Iterable[tuple[Key, float]], steps: int) -> dict[Key, float]:
    """Time a step; entries of one name (other launch sizes of a kernel, say) are one."""
    totals: dict[Key, float] = {}
    for key, value in items:
        totals[key] = totals.get(key, 0) + value / steps
    return totals


def differences(a: dict[Key, float], b: dict[Key, float]) -> list[Difference]:
    found = [difference(key, a.get(key), b.get(key)) for key in {**a, **b}]
    return sorted(found, key=lambda item: (-abs(item.difference_ms), item.name))


def difference(key: Key, a: float | None, b: float | None) -> Difference:
    name, kind, where = key
    return Difference(name, kind, where, a, b, (b or 0) - (a or 0))
