"""Idle stretches of a device as sets of time, by what the launching thread did: the breakdown's idle parts
(analysis/metrics/steps/parts.py), not only their lengths; and what waiting for the device cost afterwards.

A thread that waits for its device gives up the lead that it had over it. With that lead the device would have had work
later: as much of the idle time that follows as the waits took would not have been. That much is theirs; the rest would
have been idle anyhow.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals
from analysis.metrics.steps import parts, trace
from analysis.metrics.steps.parts import Ints
from analysis.tables.parts import IDLE as WHOLE

Mask = npt.NDArray[np.bool_]

IDLE = ("idle_data_wait", "idle_sync", "idle_allocator", "idle_launch", "idle_between", "idle_queued",
        "idle_unmarked_data", "idle_host", "idle_outside")  # fmt: skip
"""As in WHOLE, but for three. Of idle_launch, what was launched before the device became idle: idle_between, it
begins as soon as the device can (the next kernel of a CUDA graph, or of a host that is ahead), and idle_queued, it
takes more than QUEUED_NS. Of idle_host and idle_outside, idle_unmarked_data ends with a copy of a batch to the device,
where no thread of the rank marks ranges of its loader."""
QUEUED_NS = 100_000
"""A free device begins what was launched some 10 us after the call."""
SHORTEST_WAIT_NS = 1_000
LEAST_BATCH_BYTES = 1 << 12
"""A smaller copy to the device is a number, not a batch: waiting for it is like reading one."""
WAITS = ("sync", "allocator", "copy_pageable", "copy_pinned")
"""Why a thread waited for its device: by what it called, or what it had copied right before."""


def divided(
    events: Mapping[str, pl.DataFrame],
    own: Mapping[str, pl.DataFrame],
    hosts: Intervals,
    windows: pl.DataFrame,
    busy: Intervals,
) -> dict[str, Intervals]:
    """The time of each of IDLE in the windows. `events`: of one rank; `own`: its activities on one device; `hosts`: the
    steps on the host; `busy`: of the device."""
    gaps, _ = parts.gaps_in(busy, windows)
    found = dict.fromkeys(IDLE, intervals.empty())
    if not len(gaps):
        return found
    ends = pl.concat([own[k].select("start_ns", "thread", "launch_ns", "launch_end_ns") for k in own]).sort("start_ns")
    thread, launch = parts.following(ends, gaps)
    launched = parts.following(ends.with_columns(launch_ns="launch_end_ns"), gaps)[1]
    batch = _ends_with_batch(own["copies"], ends, gaps) & trace.named(events["nvtx"], parts.DATA).is_empty()
    for each in np.unique(thread):
        mine = thread == each
        pieces = _of_thread(events, int(each), gaps[mine], (launch[mine], launched[mine]), hosts, batch[mine])
        for part, piece in pieces.items():
            found[part] = intervals.merge(found[part], piece)
    return found


def _ends_with_batch(copies: pl.DataFrame, activities: pl.DataFrame, gaps: Intervals) -> Mask:
    """Whether what ends each gap is a copy to the device that is as large as a batch."""
    starts = activities["start_ns"].to_numpy()
    ends = starts[np.minimum(np.searchsorted(starts, gaps[:, 1]), len(starts) - 1)]
    large = copies.filter(pl.col("direction") == "HtoD", pl.col("bytes") >= LEAST_BATCH_BYTES)["start_ns"].to_numpy()
    return np.isin(ends, large)


def _of_thread(
    events: Mapping[str, pl.DataFrame],
    thread: int,
    gaps: Intervals,
    launch: tuple[Ints, Ints],
    hosts: Intervals,
    batch: Mask,
) -> dict[str, Intervals]:
    """`launch`: start and end of the call that launched what ends each gap."""
    sets = parts.thread_sets(events, thread)
    stop, called = (np.clip(at, gaps[:, 0], gaps[:, 1]) for at in launch)
    begun = np.column_stack((called, gaps[:, 1]))
    late = gaps[:, 1] - called > QUEUED_NS
    ahead = (called == gaps[:, 0]) & ~late
    left = intervals.union(np.column_stack((gaps[:, 0], stop)))
    found = {"idle_queued": intervals.union(begun[late]), "idle_between": intervals.union(begun[ahead])}
    for part in WHOLE[:4]:
        found[part] = intervals.intersect(left, sets[part])
        left = intervals.subtract(left, sets[part])
    launching = np.column_stack((stop, np.where(late | ahead, called, gaps[:, 1])))
    found["idle_launch"] = intervals.merge(found["idle_launch"], launching)
    before = intervals.union(np.column_stack((gaps[:, 0], stop))[batch])
    found["idle_unmarked_data"] = intervals.intersect(left, before)
    left = intervals.subtract(left, before)
    found["idle_host"] = intervals.intersect(left, hosts)
    found["idle_outside"] = intervals.subtract(left, hosts)
    return found


def waits(events: Mapping[str, pl.DataFrame], own: Mapping[str, pl.DataFrame], work: Intervals) -> pl.DataFrame:
    """Calls in which a launching thread waited for its device: start_ns, end_ns, why (one of WAITS), waited_ns, in
    order of their ends. `work`: when the device had work of its own, other ranks' lateness left out. Calls in ranges
    of the loader are the loader's."""
    launching = pl.concat([own[k]["thread"] for k in own]).drop_nulls().unique()
    calls = events["runtime"].filter(pl.col("thread").is_in(launching.implode())).sort("thread", "start_ns")
    memory = pl.when(pl.col("direction") == "HtoD").then("source").otherwise("target").alias("memory")
    copies = own["copies"].filter(pl.col("direction").is_in(["HtoD", "DtoH"])).drop_nulls("launch_ns")
    copied = copies.select("thread", "launch_ns", "direction", "bytes", memory).unique(
        ["thread", "launch_ns"], keep="first"
    )
    marked = calls.select("thread", "start_ns", "end_ns", pl.col("name").cast(pl.String)).join(
        copied, left_on=["thread", "start_ns"], right_on=["thread", "launch_ns"], how="left", maintain_order="left"
    )
    batch = (pl.col("direction") == "HtoD") & (pl.col("bytes") >= LEAST_BATCH_BYTES)
    of_batch = pl.when(batch).then(pl.concat_str(pl.lit("copy_"), "memory"))
    waits_for_all = pl.col("name").str.contains(parts.SYNC) & ~pl.col("name").str.contains("Query")
    why = (
        # A copy of pageable memory comes back when it is done; one that waits right after a copy waits for that copy,
        # as `tensor.to(device)` does.
        pl.when(pl.col("memory") == "pageable").then(pl.coalesce(of_batch, pl.lit("sync")))
        .when(waits_for_all).then(pl.coalesce(of_batch, of_batch.shift().over("thread"), pl.lit("sync")))
        .when(pl.col("name").str.contains(parts.ALLOCATOR)).then(pl.lit("allocator"))
    )  # fmt: skip
    found = marked.with_columns(why=why).filter(pl.col("why").is_in(WAITS))
    start, end = found["start_ns"].to_numpy(), found["end_ns"].to_numpy()
    found = found.with_columns(waited_ns=pl.Series(parts.inside(work, start, end), dtype=pl.Int64))
    loading = intervals.merge(*(parts.thread_sets(events, int(each))["idle_data_wait"] for each in launching))
    beside = parts.inside(loading, start, end) == 0
    kept = found.filter(pl.Series(beside) & (pl.col("waited_ns") >= SHORTEST_WAIT_NS))
    return kept.select("start_ns", "end_ns", "why", "waited_ns").sort("end_ns")


def lost(waited: pl.DataFrame, idle: Intervals) -> dict[str, Intervals]:
    """Of the idle time, what each of WAITS took: what follows a wait, at most as long as all waits before it were, less
    what they have taken already."""
    found: dict[str, list[Intervals]] = {why: [] for why in WAITS}
    if waited.is_empty() or not len(idle):
        return dict.fromkeys(WAITS, intervals.empty())
    begin = waited["end_ns"].to_numpy()
    before = intervals.until(idle, begin)
    lengths = np.diff(np.append(before, intervals.total(idle)))
    credit = dict.fromkeys(WAITS, 0.0)
    for start, length, why, took in zip(before, lengths, waited["why"], waited["waited_ns"], strict=True):
        credit[why] += took
        whole = sum(credit.values())
        share = min(1.0, length / whole)
        for each in WAITS:
            taken = credit[each] * share
            if taken >= 1:
                found[each].append(np.array([[start, start + taken]]))
                start += taken
            credit[each] -= taken
    return {why: _places(idle, np.concatenate(spans)) if spans else intervals.empty() for why, spans in found.items()}


def _places(idle: Intervals, spans: npt.NDArray[np.float64]) -> Intervals:
    """The parts of a set between two lengths of it, counted from its start."""
    before = np.concatenate(([0], np.cumsum(idle[:, 1] - idle[:, 0])))
    at = np.rint(spans).astype(np.int64)
    place = np.clip(np.searchsorted(before, at, side="right") - 1, 0, len(idle) - 1)
    times = np.minimum(idle[place, 0] + at - before[place], idle[place, 1])
    return intervals.intersect(intervals.union(times), idle)
