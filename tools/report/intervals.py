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


def merged(sets: Iterable[Intervals]) -> Intervals:
    found = [*sets, NONE]
    return union(*(np.concatenate(part) for part in zip(*found)))


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
    starts, ends = (np.clip(column, *window) for column in covered)
    real = ends > starts
    return starts[real], ends[real]


def inside(covered: Intervals, times: np.ndarray) -> np.ndarray:
    """Which of these times are covered."""
    place = np.searchsorted(covered[0], times, side="right") - 1
    if not len(covered[0]):
        return np.zeros(len(times), bool)
    return (place >= 0) & (times < covered[1][np.maximum(place, 0)])


def both(a: Intervals, b: Intervals) -> int:
    """How long both are covered."""
    points = np.unique(np.concatenate((*a, *b)))
    if len(points) < 2:
        return 0
    return int(np.diff(points)[inside(a, points[:-1]) & inside(b, points[:-1])].sum())


def first_of(classes: list[Intervals], within: Intervals) -> tuple[np.ndarray, np.ndarray]:
    """For each stretch within, how long each class is the first that covers it.

    A table, a row for a stretch; the last column is what no class covers. And the rows' lengths.
    """
    count, length = len(within[0]), within[1] - within[0]
    table = np.zeros((count, len(classes) + 1), np.int64)
    if not count:
        return table, length
    window = int(within[0][0]), int(within[1][-1])
    sets = [clip(covered, window) for covered in classes]
    points = np.unique(np.concatenate([*within, *(column for each in sets for column in each)]))
    lows, lengths = points[:-1], np.diff(points)
    kept = inside(within, lows)
    lows, lengths = lows[kept], lengths[kept]
    row = np.searchsorted(within[0], lows, side="right") - 1
    chosen = np.full(len(lows), len(classes))
    for i in range(len(sets) - 1, -1, -1):
        chosen[inside(sets[i], lows)] = i
    np.add.at(table, (row, chosen), lengths)
    return table, length
