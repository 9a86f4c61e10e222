"""Sets of time: unions, intersections and differences of half-open integer-ns intervals.

A set is an int64 array of shape (n, 2), sorted, its intervals apart from each other; `union` makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Intervals: TypeAlias = NDArray[np.int64]
_Mask: TypeAlias = NDArray[np.bool_]


def union(intervals: ArrayLike) -> Intervals:
    """The time that any of these covers; they may come unsorted, overlapping, touching or empty."""
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
    return _combine(a, b, lambda x, y: x & y)


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The time in a and not in b."""
    if not len(a) or not len(b):
        return a
    return _combine(a, b, lambda x, y: x & ~y)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The time of the set in [start, end)."""
    near = a[np.searchsorted(a[:, 1], start, "right") : np.searchsorted(a[:, 0], end, "left")]
    cut = np.clip(near, start, max(start, end))
    return cut[cut[:, 1] > cut[:, 0]]


def total(a: Intervals) -> int:
    """Length of the set, ns."""
    return int((a[:, 1] - a[:, 0]).sum())


def until(a: Intervals, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of a set lies before each time, ns."""
    start, end = np.ascontiguousarray(a[:, 0]), np.append(a[:, 1], 0)
    before = np.append(0, np.cumsum(end[:-1] - start))
    place = np.searchsorted(start, at, side="right")
    over = end[place - 1] - at
    return before[place] - np.where(place > 0, np.maximum(over, 0), 0)


def empty() -> Intervals:
    """No time."""
    return np.empty((0, 2), dtype=np.int64)


def _combine(a: Intervals, b: Intervals, keep: Callable[[_Mask, _Mask], _Mask]) -> Intervals:
    # Between two neighbouring bounds nothing changes, so one look at each bound decides the whole stretch.
    # Sorted as two runs that are sorted already; np.unique would hash times, which takes thirty times as long.
    bounds = np.sort(np.concatenate((a.ravel(), b.ravel())), kind="stable")
    bounds = bounds[np.append(True, bounds[1:] > bounds[:-1])] if len(bounds) else bounds
    kept = keep(_inside(a, bounds), _inside(b, bounds))[:-1]
    return union(np.column_stack((bounds[:-1], bounds[1:]))[kept])


def _inside(a: Intervals, at: NDArray[np.int64]) -> _Mask:
    inside: _Mask = np.searchsorted(a[:, 0], at, "right") > np.searchsorted(a[:, 1], at, "right")
    return inside
