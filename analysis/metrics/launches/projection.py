"""NVTX ranges projected on the GPU: when the activities launched in a range ran, and for how long.

The projection reaches from the first start to the last end of the activities launched in the range, as
`nsys stats -r nvtx_gpu_proj_trace` has it; `gpu_busy_ns` is the union of those activities, not their sum.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from nightsweep.analysis.metrics.launches.range_tree import Ints, Tree

COLUMNS = ("gpu_start_ns", "gpu_end_ns", "gpu_busy_ns", "launches", "activities")


def project(
    tree: Tree, inner: Ints, calls: pl.DataFrame, activities: pl.DataFrame, call: Ints
) -> tuple[Ints, pl.DataFrame]:
    """Project the ranges in which something was launched on the GPU.

    Args:
        tree: the ranges.
        inner: place in the tree of the innermost range of each call; -1 for none.
        calls: thread, start_ns and end_ns of the calls.
        activities: start_ns and end_ns of the activities.
        call: place of the launching call of each activity; -1 for none.

    Returns:
        Places in the tree of these ranges, and COLUMNS of them.
    """
    own = np.flatnonzero(call >= 0)
    start, end = (activities[name].to_numpy()[own] for name in ("start_ns", "end_ns"))
    rows = list(_level_groups(tree, inner, call[own], start, end))
    if len(tree.crossed):
        rows += _crossed_groups(tree, calls, call[own], start, end)
    joined = [np.concatenate(column) for column in zip(*rows, strict=True)] if rows else [np.empty(0, np.int64)] * 6
    order = np.argsort(tree.row[joined[0]], kind="stable")
    return joined[0][order], pl.DataFrame({n: values[order] for n, values in zip(COLUMNS, joined[1:], strict=True)})


def _level_groups(tree: Tree, inner: Ints, call: Ints, start: Ints, end: Ints) -> Iterator[tuple[Ints, ...]]:
    """Place and COLUMNS of the ranges of each depth, innermost first, without those that others cross.

    An activity counts for one range of each depth.
    """
    plain = np.ones(len(tree.begin), dtype=np.bool_)
    plain[tree.crossed] = False
    holder = inner[call]
    order = np.argsort(start, kind="stable")
    order = order[holder[order] >= 0]
    holder, call, start, end = holder[order], call[order], start[order], end[order]
    depth = tree.depth[holder].astype(np.int64)
    for level in range(int(depth.max(initial=-1)), -1, -1):
        at = np.flatnonzero(depth == level)
        kept = at if not len(tree.crossed) else at[plain[holder[at]]]
        if len(kept):
            yield _groups(holder[kept], call[kept], start[kept], end[kept])
        holder[at] = tree.parent[holder[at]]
        depth[at] = np.where(holder[at] >= 0, tree.depth[holder[at]].astype(np.int64), -1)


def _crossed_groups(tree: Tree, calls: pl.DataFrame, call: Ints, start: Ints, end: Ints) -> Iterator[tuple[Ints, ...]]:
    """The same of ranges that others cross, one after another: what they contain does not follow from parents."""
    begin = tree.key(*(calls[name].to_numpy()[call] for name in ("thread", "start_ns")))
    done = tree.key(*(calls[name].to_numpy()[call] for name in ("thread", "end_ns")))
    order = np.argsort(begin, kind="stable")
    first = np.searchsorted(begin[order], tree.begin[tree.crossed], side="left")
    last = np.searchsorted(begin[order], tree.end[tree.crossed], side="right")
    for low, high, place in zip(first.tolist(), last.tolist(), tree.crossed.tolist(), strict=True):
        own = order[low:high]
        own = own[done[own] <= tree.end[place]]
        own = own[np.argsort(start[own], kind="stable")]
        if len(own):
            yield _groups(np.full(len(own), place), call[own], start[own], end[own])


def _groups(group: Ints, call: Ints, start: Ints, end: Ints) -> tuple[Ints, ...]:
    """Group, first start, last end, union, calls and activities of each group. Activities come sorted by start."""
    order = np.argsort(group, kind="stable")
    group, call = group[order], call[order]
    base = int(start[0])
    start, end = start[order] - base, end[order] - base
    edges = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    sizes = np.diff(np.append(edges, len(group)))
    # Groups one after another on one axis, each past the former: so one running maximum serves them all.
    places = np.arange(len(edges), dtype=np.int64) * (int(end.max()) + 1)
    offset = np.repeat(places, sizes)
    reach = np.maximum.accumulate(end + offset)
    new = np.maximum(end + offset - np.maximum(start + offset, np.append(0, reach[:-1])), 0)
    last = reach[np.append(edges[1:], len(group)) - 1] - places
    return (
        group[edges],
        start[edges] + base,
        last + base,
        np.add.reduceat(new, edges),
        _call_counts(group, call, edges),
        sizes,
    )


def _call_counts(group: Ints, call: Ints, edges: Ints) -> Ints:
    """Number of different calls in each group: one call may launch many activities, as that of a CUDA graph does."""
    order = np.lexsort((call, group))
    new = np.append(True, (call[order][1:] != call[order][:-1]) | (group[order][1:] != group[order][:-1]))
    return np.add.reduceat(new.astype(np.int64), edges)
