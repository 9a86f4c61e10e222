"""What it costs afterwards that a thread waited for its device.

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
from analysis.metrics.steps import parts

SHORTEST_WAIT_NS = 1_000
WAITS = ("sync", "allocator", "copy_pageable", "copy_pinned")
"""Why a thread waited for its device: by what it called, or what it had copied right before."""


def calls(events: Mapping[str, pl.DataFrame], own: Mapping[str, pl.DataFrame], work: Intervals) -> pl.DataFrame:
    """Calls in which a launching thread waited for its device: start_ns, end_ns, why (one of WAITS), waited_ns, in
    order of their ends. `work`: when the device had work of its own, other ranks' lateness left out. Calls in ranges
    of the loader are the loader's."""
    launching = pl.concat([own[k]["thread"] for k in own]).drop_nulls().unique()
    called = events["runtime"].filter(pl.col("thread").is_in(launching.implode())).sort("thread", "start_ns")
    memory = pl.when(pl.col("direction") == "HtoD").then("source").otherwise("target").alias("memory")
    copies = own["copies"].filter(pl.col("direction").is_in(["HtoD", "DtoH"])).drop_nulls("launch_ns")
    copied = copies.select("thread", "launch_ns", "direction", "bytes", memory).unique(
        ["thread", "launch_ns"], keep="first"
    )
    marked = called.select("thread", "start_ns", "end_ns", pl.col("name").cast(pl.String)).join(
        copied, left_on=["thread", "start_ns"], right_on=["thread", "launch_ns"], how="left", maintain_order="left"
    )
    batch = (pl.col("direction") == "HtoD") & (pl.col("bytes") >= parts.LEAST_BATCH_BYTES)
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
    found = found.with_columns(waited_ns=pl.Series(parts.lengths_inside(work, start, end), dtype=pl.Int64))
    loading = intervals.merge(*(parts.thread_sets(events, int(each))["idle_data_wait"] for each in launching))
    beside = parts.lengths_inside(loading, start, end) == 0
    kept = found.filter(pl.Series(beside) & (pl.col("waited_ns") >= SHORTEST_WAIT_NS))
    return kept.select("start_ns", "end_ns", "why", "waited_ns").sort("end_ns")


def idle_of_waits(waited: pl.DataFrame, idle: Intervals) -> dict[str, Intervals]:
    """Of the idle time, what each of WAITS took: what follows a wait, at most as long as all waits before it were, less
    what they have taken already."""
    found: dict[str, list[Intervals]] = {why: [] for why in WAITS}
    if waited.is_empty() or not len(idle):
        return dict.fromkeys(WAITS, intervals.empty())
    begin = waited["end_ns"].to_numpy()
    before = intervals.length_before(idle, begin)
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
