"""Who launched what: every activity of a GPU with its launching call, and with the NVTX ranges open there.

An activity belongs to the call with its process and correlation id; a call to all ranges of its thread that contain it
whole. A range's projection on the GPU reaches from the first to the end of the last activity launched in it, as
`nsys stats -r nvtx_gpu_proj_trace` has it; its busy time is the union of those activities, not their sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.metrics import ranges as nvtx
from analysis.metrics.ranges import Ints

ON_DEVICE = ("kernels", "graphs", "copies", "memsets")
_ADDED = {"thread": pl.Int64, "launch_ns": pl.Int64, "launch_end_ns": pl.Int64}


@dataclass(frozen=True)
class Attributed:
    """Events of one rank with what was found of them. `ranges`: the table nvtx_gpu."""

    events: dict[str, pl.DataFrame]
    ranges: pl.DataFrame


def attribute(events: Mapping[str, pl.DataFrame]) -> Attributed:
    """Events of one process, with columns added: nvtx_path (ranges, calls and activities), depth (ranges), and thread,
    launch_ns, launch_end_ns, the launching call's (activities)."""
    marks = events["nvtx"].filter(pl.col("style").cast(pl.String) != "across")
    tree = nvtx.tree(*(_ints(marks, name) for name in ("thread", "start_ns", "end_ns")))
    texts, path = nvtx.paths(tree, marks["name"])
    calls = events["runtime"]
    inner = tree.innermost(*(_ints(calls, name) for name in ("thread", "start_ns", "end_ns")))
    activities = pl.concat(
        [events[kind].select("start_ns", "end_ns", "correlation", kind=pl.lit(kind)) for kind in ON_DEVICE]
    )
    call = launching(calls["correlation"], activities["correlation"])
    words = texts.cast(pl.Categorical())
    found = dict(events)
    found["nvtx"] = _marked(marks, tree, words, path)
    of_call = _taken(words, np.append(path, -1)[inner] if len(path) else inner)
    found["runtime"] = calls.with_columns(nvtx_path=of_call)
    launched = _launches(calls, of_call, call)
    done = 0
    for kind in ON_DEVICE:
        height = events[kind].height
        found[kind] = events[kind].hstack(launched.slice(done, height))
        done += height
    return Attributed(found, projected(tree, marks, words, path, inner, calls, activities, call))


def _ints(frame: pl.DataFrame, name: str) -> Ints:
    return frame[name].fill_null(-1).to_numpy()


def _taken(words: pl.Series, place: Ints) -> pl.Series:
    """The words at these places; null at -1."""
    return (
        words.gather(pl.Series(place).replace(-1, None))
        if len(words)
        else pl.Series([None] * len(place), dtype=words.dtype)
    )


def _marked(marks: pl.DataFrame, tree: nvtx.Tree, words: pl.Series, path: Ints) -> pl.DataFrame:
    back = np.empty(len(path), dtype=np.int64)
    back[tree.row] = path
    depth = np.empty(len(path), dtype=np.int64)
    depth[tree.row] = tree.depth
    return marks.with_columns(nvtx_path=words.gather(back), depth=pl.Series(depth))


def launching(of_calls: pl.Series, of_activities: pl.Series) -> Ints:
    """Place of the call that launched each activity, by correlation id within a process; -1 for none. Of calls with one
    id the first."""
    ids, wanted = of_calls.fill_null(-1).to_numpy(), of_activities.fill_null(-2).to_numpy()
    if not len(ids) or not len(wanted):
        return np.full(len(wanted), -1, dtype=np.int64)
    least, room = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    if room > 4 * len(ids) + (1 << 22):  # ids far apart: a table would be too large
        order = np.argsort(ids, kind="stable")
        at = np.searchsorted(ids, wanted, sorter=order)
        place = order[np.minimum(at, len(ids) - 1)]
        return np.where(ids[place] == wanted, place, -1)
    table = np.full(room + 1, -1, dtype=np.int64)
    table[ids[::-1] - least] = np.arange(len(ids) - 1, -1, -1)
    inside = (wanted >= least) & (wanted < least + room)
    return table[np.where(inside, wanted - least, room)]


def _launches(calls: pl.DataFrame, of_call: pl.Series, call: Ints) -> pl.DataFrame:
    """The launching call of each activity: thread, launch_ns, launch_end_ns, nvtx_path."""
    place = pl.Series(call).replace(-1, None)
    columns = calls.select("thread", launch_ns="start_ns", launch_end_ns="end_ns").with_columns(nvtx_path=of_call)
    if columns.is_empty():
        return columns.clear(len(call))
    return columns.select(pl.all().gather(place))


def projected(
    tree: nvtx.Tree,
    marks: pl.DataFrame,
    words: pl.Series,
    path: Ints,
    inner: Ints,
    calls: pl.DataFrame,
    activities: pl.DataFrame,
    call: Ints,
) -> pl.DataFrame:
    """Each range in which something was launched: gpu_start_ns, gpu_end_ns, gpu_span_ns, gpu_busy_ns, launches (calls)
    and activities."""
    own = np.flatnonzero(call >= 0)
    holder = inner[call[own]]
    own, holder = own[holder >= 0], holder[holder >= 0]
    start, end = (activities[name].to_numpy()[own] for name in ("start_ns", "end_ns"))
    rows = list(levels(tree, holder, call[own], start, end))
    joined = [np.concatenate(each) for each in zip(*rows, strict=True)] if rows else [np.empty(0, np.int64)] * 6
    place, first, last, busy, launches, count = joined
    order = np.argsort(tree.row[place], kind="stable")
    place = place[order]
    return marks.select("start_ns", "end_ns", "name", "process", "thread", "domain", "style")[
        tree.row[place]
    ].with_columns(
        nvtx_path=words.gather(path[place]),
        depth=pl.Series(tree.depth[place].astype(np.int64)),
        gpu_start_ns=pl.Series(first[order]),
        gpu_end_ns=pl.Series(last[order]),
        gpu_span_ns=pl.Series((last - first)[order]),
        gpu_busy_ns=pl.Series(busy[order]),
        launches=pl.Series(launches[order]),
        activities=pl.Series(count[order]),
    )


def levels(tree: nvtx.Tree, holder: Ints, call: Ints, start: Ints, end: Ints):
    """For each depth of the tree, innermost first: place of the ranges, first start, last end, union of activities, calls
    and activities."""
    if not len(holder):
        return
    base = int(start.min())
    room = int(end.max()) - base + 1
    order = np.argsort(start, kind="stable")
    holder, call, start, end = holder[order].copy(), call[order], start[order] - base, end[order] - base
    depth = tree.depth[holder].astype(np.int64)
    for level in range(int(depth.max()), -1, -1):
        at = np.flatnonzero(depth == level)
        if len(at):
            yield _groups(holder[at], call[at], start[at], end[at], base, room)
            holder[at] = tree.parent[holder[at]]
            depth[at] = np.where(holder[at] >= 0, tree.depth[holder[at]], -1)


def _groups(group: Ints, call: Ints, start: Ints, end: Ints, base: int, room: int) -> tuple[Ints, ...]:
    """One row a group; activities come sorted by start."""
    order = np.argsort(group, kind="stable")
    group, call, start, end = group[order], call[order], start[order], end[order]
    edges = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    sizes = np.diff(np.append(edges, len(group)))
    # Groups one after another on one axis: then one running maximum serves them all, for a group begins past the former.
    offset = np.repeat(np.arange(len(edges), dtype=np.int64) * room, sizes)
    reach = np.maximum.accumulate(end + offset)
    before = np.append(0, reach[:-1])
    new = np.maximum(end + offset - np.maximum(start + offset, before), 0)
    busy = np.add.reduceat(new, edges)
    last = reach[np.append(edges[1:], len(group)) - 1] - np.arange(len(edges), dtype=np.int64) * room
    return group[edges], start[edges] + base, last + base, busy, _distinct(group, call, edges), sizes


def _distinct(group: Ints, call: Ints, edges: Ints) -> Ints:
    """Number of different calls in each group: one call may launch many activities, as that of a CUDA graph does."""
    width = int(call.max()) + 1
    if int(group.max()) < (1 << 62) // width:
        keys = np.unique(group * width + call)
        return np.diff(np.append(np.searchsorted(keys // width, group[edges]), len(keys)))
    return np.array([len(np.unique(part)) for part in np.split(call, edges[1:])])
