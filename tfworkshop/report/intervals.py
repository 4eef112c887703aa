"""Stretches of time as two sorted columns, starts and ends, in which nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

Intervals = tuple[np.ndarray, np.ndarray]
NONE: Intervals = (np.zeros(0, np.int64), np.zeros(0, np.int64))


def union(starts: np.ndarray, ends: np.ndarray) -> Intervals:
    """What is covered by any of them."""
    if not len(starts):
        return NONE
    order = np.argsort(starts, kind="stable")
    starts, latest = starts[order], np.maximum.accumulate(ends[order])
    first = np.concatenate(([True], starts[1:] > latest[:-1]))
    last = np.concatenate((first[1:], [True]))
    return starts[first], latest[last]


def joined(spans: Iterable[tuple[int, int]]) -> Intervals:
    """union() of pairs of a start and an end."""
    return union(*np.array([*spans], np.int64).reshape(-1, 2).T)


def merged(sets: Iterable[Intervals]) -> Intervals:
    """union() of several sets."""
    parts = [*sets, NONE]
    return union(*(np.concatenate(part) for part in zip(*parts)))


def total(covered: Intervals) -> int:
    return int((covered[1] - covered[0]).sum())


def gaps(covered: Intervals, window: tuple[int, int]) -> Intervals:
    """The rest of the window."""
    starts, ends = clip(covered, window)
    lows = np.concatenate(([window[0]], ends))
    highs = np.concatenate((starts, [window[1]]))
    real = highs > lows
    return lows[real], highs[real]


def clip(covered: Intervals, window: tuple[int, int]) -> Intervals:
    """The part inside the window."""
    first = np.searchsorted(covered[1], window[0], side="right")
    last = np.searchsorted(covered[0], window[1], side="left")
    starts, ends = covered[0][first:last], covered[1][first:last]
    return np.maximum(starts, window[0]), np.minimum(ends, window[1])


def inside(covered: Intervals, times: np.ndarray) -> np.ndarray:
    """Which of these times are covered."""
    if not len(covered[0]):
        return np.zeros(len(times), bool)
    place = np.searchsorted(covered[0], times, side="right") - 1
    return (place >= 0) & (times < covered[1][np.maximum(place, 0)])


def pieces(*sets: Intervals) -> Intervals:
    """Time cut wherever one of them starts or ends: each covers a piece wholly or not at all."""
    points = np.unique(np.concatenate([column for covered in sets for column in covered]))
    return points[:-1], points[1:]


def both(a: Intervals, b: Intervals) -> int:
    """How long both are covered."""
    lows, highs = pieces(a, b)
    return int((highs - lows)[inside(a, lows) & inside(b, lows)].sum())


def without(covered: Intervals, taken: Intervals) -> Intervals:
    """The first, as far as the second does not cover it."""
    lows, highs = pieces(covered, taken)
    kept = inside(covered, lows) & ~inside(taken, lows)
    return union(lows[kept], highs[kept])


def first_of(classes: list[Intervals], within: Intervals) -> np.ndarray:
    """For each stretch within, a row: how long each class is the first that covers it.

    The last column is what no class covers.
    """
    lows, highs = pieces(within, *classes)
    kept = inside(within, lows)
    lows, highs = lows[kept], highs[kept]
    chosen = np.full(len(lows), len(classes))
    for i, covered in reversed(list(enumerate(classes))):
        chosen[inside(covered, lows)] = i
    table = np.zeros((len(within[0]), len(classes) + 1), np.int64)
    np.add.at(table, (np.searchsorted(within[0], lows, side="right") - 1, chosen), highs - lows)
    return table
