"""Sets of time: unions, intersections and differences of half-open integer-ns intervals.

A set is an int64 array of shape (n, 2), sorted, its intervals neither overlapping nor touching; `union` makes one.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Intervals: TypeAlias = NDArray[np.int64]


def union(intervals: ArrayLike) -> Intervals:
    """The time that any of these covers.

    Args:
        intervals: pairs (start, end), ns, of shape (n, 2); unsorted, overlapping, touching or empty ones are fine.

    Example:
        >>> union([[5, 9], [0, 3], [3, 4]]).tolist()
        [[0, 4], [5, 9]]
    """
    pairs = np.asarray(intervals, dtype=np.int64).reshape(-1, 2)
    some = pairs[:, 1] > pairs[:, 0]
    pairs = pairs if some.all() else pairs[some]
    if not len(pairs):
        return pairs
    if (pairs[1:, 0] < pairs[:-1, 0]).any():
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    reach = np.maximum.accumulate(pairs[:, 1])
    first = np.concatenate(([True], pairs[1:, 0] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((pairs[first, 0], reach[last]))


def merge(*sets: ArrayLike) -> Intervals:
    """The time in any of several sets."""
    return union(np.concatenate([np.asarray(s, dtype=np.int64).reshape(-1, 2) for s in sets] or [empty()]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The time in both sets."""
    if not len(a) or not len(b):
        return empty()
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    of, place = meetings(many, few[:, 0], few[:, 1])
    return np.column_stack((np.maximum(few[of, 0], many[place, 0]), np.minimum(few[of, 1], many[place, 1])))


def meetings(
    a: Intervals, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which intervals of a set lie in part in each of these times, which may overlap: number of the time, and of the
    interval. An empty time meets one that it lies in."""
    start, end = (np.ascontiguousarray(a[:, column]) for column in (0, 1))
    # Each time meets a run of the set's.
    low = np.searchsorted(end, starts, side="right")
    counts = np.maximum(np.searchsorted(start, ends, side="left") - low, 0)
    of = np.repeat(np.arange(len(starts)), counts)
    return of, low[of] + np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The time in a and not in b."""
    if not len(a) or not len(b):
        return a
    ever = np.iinfo(np.int64)
    return intersect(a, np.column_stack((np.append(ever.min, b[:, 1]), np.append(b[:, 0], ever.max))))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The time of the set in [start, end)."""
    near = a[np.searchsorted(a[:, 1], start, "right") : np.searchsorted(a[:, 0], end, "left")]
    cut = np.clip(near, start, max(start, end))
    return cut[cut[:, 1] > cut[:, 0]]


def total(a: Intervals) -> int:
    """Length of the set, ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def length_before(a: Intervals, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of a set lies before each of these times, ns."""
    start, end = np.ascontiguousarray(a[:, 0]), np.append(a[:, 1], 0)
    before = np.append(0, np.cumsum(end[:-1] - start))
    place = np.searchsorted(start, at, side="right")
    over = end[place - 1] - at
    return before[place] - np.where(place > 0, np.maximum(over, 0), 0)


def empty() -> Intervals:
    return np.empty((0, 2), dtype=np.int64)
