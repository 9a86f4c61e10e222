"""Collectives of many ranks: who came late, how long the data took, how long the others waited.

    frames = [collectives.rank_collectives(events) for events in each_rank]  # small: one row an NCCL kernel
    table = collectives.match_ranks(frames)                                  # on one clock; else matching.align first

Of each rank only its frame is kept, so ranks can be read one after the other, or in several processes
(`analysis/metrics/ranks/pool.py`). Definitions are TraceLens' (transfer, skew) and nccl-tests'
doc/PERFORMANCE.md (algorithm and bus bandwidth).
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from nightsweep.analysis.metrics.ranks import matching, nccl_calls
from nightsweep.analysis.metrics.steps import selection
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import NCCL_KERNEL
from nightsweep.analysis.tables.traces import COLLECTIVES, RANK_COLLECTIVES

_SHARED = ("all_gather", "reduce_scatter", "all_to_all")
"""Of these NCCL reports a rank's share; nccl-tests counts all shares."""


def rank_collectives(events: selection.Events) -> pl.DataFrame:
    """The NCCL kernels of one rank's trace with the calls that they carry out: RANK_COLLECTIVES, in order of start.

    The column `step` is null; the engine fills it.
    """
    found = events["kernels"].filter(pl.col("name").str.contains(NCCL_KERNEL))
    if found.is_empty():
        return column.empty(RANK_COLLECTIVES)
    key = ["process", "correlation"]
    calls = events["runtime"].select(*key, "thread", launch_ns="start_ns").drop_nulls(key)
    launched = found.join(calls.unique(key, keep="first", maintain_order=True), on=key, how="left")
    joined = nccl_calls.join_calls(launched.with_columns(collective=nccl_calls.kind("name")), events["nccl_calls"])
    return column.conform(joined, RANK_COLLECTIVES).sort("start_ns").collect()


def match_ranks(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Match the collectives of all ranks: the table COLLECTIVES.

    `frames`: of `rank_collectives`, one a trace, on one clock. A trace whose rank is not known gets its place as rank;
    one with several processes or devices holds as many ranks. Matched are collectives of one communicator (or stream,
    where that is unknown) that agree in order, kind and size, and mostly overlap in time; others stay with
    matched_ranks 1 and nulls. Sends and receives are matched only between two ranks. Of an all-to-all each rank may
    send as much as it likes: its size is that of the rank that sends most. The number of ranks in the bus bandwidth is
    the communicator's, or the matched ranks where that is unknown.
    """
    placed = [_add_places(lane, parts) for lane, parts in _split_by_lane(_participants(frames)).items()]
    if not placed:
        return column.empty(COLLECTIVES)
    table = _add_waits(_verify(pl.concat(placed)))
    return column.conform(_add_bandwidths(table), COLLECTIVES).collect().sort("start_ns", "rank")


def _participants(frames: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Frames of one rank each, with missing rank numbers filled in."""
    parts = []
    for frame in frames:
        alone = frame.partition_by("rank", "process", "device", maintain_order=True)
        parts += sorted(alone, key=lambda p: (p["device"][0] or 0, p["process"][0] or 0))
    taken = {rank for part in parts if (rank := part["rank"][0]) is not None}
    free = iter(n for n in range(len(parts) + len(taken)) if n not in taken)
    return [p if p["rank"][0] is not None else p.with_columns(rank=pl.lit(next(free), pl.Int64)) for p in parts]


def _split_by_lane(participants: list[pl.DataFrame]) -> dict[str, list[pl.DataFrame]]:
    found: dict[str, list[pl.DataFrame]] = {}
    for participant in participants:
        for lane, part in matching.split_by_lane(participant).items():
            found.setdefault(lane, []).append(part)
    return found


def _add_places(lane: str, parts: list[pl.DataFrame]) -> pl.DataFrame:
    """The collectives of all ranks on one lane, with their place on it; null where not known."""
    # The longest list is the one that most of any other can be laid on.
    parts = sorted(parts, key=lambda part: (-len(part), int(part["rank"][0])))
    alone = lane.endswith("send_recv") and (len(parts) > 2 or (parts[0]["ranks"].max() or 2) != 2)
    first = matching.Calls.from_frame(parts[0])
    placed = []
    for number, part in enumerate(parts):
        own = matching.Calls.from_frame(part)
        by = 0 if not number else None if alone else matching.shift(first, own, same_clock=True)
        place = pl.int_range(pl.len()) + by if by is not None else pl.lit(None, pl.Int64)
        placed.append(part.with_columns(place=place.cast(pl.Int64)))
    return pl.concat(placed)


def _verify(placed: pl.DataFrame) -> pl.DataFrame:
    """Add sequence and matched_ranks, and unmatch what does not agree over the ranks.

    Only the overlap with the longest list was compared when places were given.
    """
    whole = pl.struct("lane", "place")
    size = matching.size()
    alike = (pl.col("collective").n_unique() == 1) & (size.drop_nulls().n_unique() <= 1)
    sure = pl.col("place").is_not_null() & alike.over(whole) & pl.col("rank").is_unique().over(whole)
    known = placed.with_columns(place=pl.when(sure).then("place"))
    number = pl.col("place").rank("dense").over("lane", "collective").cast(pl.Int64) - 1
    matched = pl.when(pl.col("place").is_not_null()).then(pl.len().over(whole)).otherwise(1)
    return known.with_columns(sequence=number, matched_ranks=matched.cast(pl.Int64))


def _add_waits(table: pl.DataFrame) -> pl.DataFrame:
    whole = ("lane", "place")
    start, took = pl.col("start_ns"), pl.col("end_ns") - pl.col("start_ns")
    matched = pl.col("matched_ranks") > 1
    found = {
        "first_start_ns": start.min().over(whole),
        "others_start_ns": start.sort().slice(pl.len() - 2, 1).first().over(whole),
        "skew_ns": (start.max() - start.min()).over(whole),
        "late_rank": pl.col("rank").sort_by("start_ns", "rank").last().over(whole),
        "transfer_ns": took.min().over(whole),
        "wait_ns": took - took.min().over(whole),
    }
    table = table.with_columns(pl.when(matched).then(value).alias(name) for name, value in found.items())
    left = pl.col("end_ns").filter(pl.col("rank") != pl.col("late_rank")).max().over(whole)
    return table.with_columns(others_end_ns=pl.when(matched).then(left))


def _add_bandwidths(table: pl.DataFrame) -> pl.DataFrame:
    kind, n = pl.col("collective"), pl.coalesce("ranks", "matched_ranks")
    most = pl.when(kind == "all_to_all").then(pl.col("bytes").max().over("lane", "place")).otherwise("bytes")
    total = pl.when(kind.is_in(_SHARED)).then(most * n).otherwise(most)
    factor = (
        pl.when(kind == "all_reduce").then(2 * (n - 1) / n).when(kind.is_in(_SHARED)).then((n - 1) / n).otherwise(1.0)
    )
    speed = pl.when(pl.col("transfer_ns") > 0).then(pl.col("total_bytes") * 1e9 / pl.col("transfer_ns"))
    counted = table.with_columns(total_bytes=pl.when(pl.col("matched_ranks") > 1).then(total))
    counted = counted.with_columns(algorithm_bandwidth=speed)
    return counted.with_columns(bus_bandwidth=pl.col("algorithm_bandwidth") * factor)


def bandwidth_by_size(table: pl.DataFrame) -> pl.DataFrame:
    """The table `collective_sizes`: matched collectives of `match_ranks` by kind and size.

    A collective counts once, whatever its ranks. size_bytes is the power of two at or below total_bytes, null where
    sizes are not known.
    """
    matched = table.filter(pl.col("matched_ranks") > 1)
    size = pl.col("total_bytes")
    power = pl.when(size > 0).then((2.0 ** size.log(2).round(9).floor()).cast(pl.Int64))
    one = pl.col("rank") == pl.col("late_rank")
    return (
        matched.with_columns(size_bytes=pl.when(size == 0).then(0).otherwise(power))
        .group_by("collective", "size_bytes")
        .agg(
            count=one.sum().cast(pl.Int64),
            median_bus_bandwidth=pl.col("bus_bandwidth").filter(one).median(),
            max_bus_bandwidth=pl.col("bus_bandwidth").filter(one).max(),
            transfer_ns=pl.col("transfer_ns").filter(one).sum(),
            wait_share=pl.col("wait_ns").sum() / (pl.col("end_ns") - pl.col("start_ns")).sum(),
        )
        .sort("collective", "size_bytes")
    )
