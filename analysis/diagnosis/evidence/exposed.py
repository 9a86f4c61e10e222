"""Communication that nothing computes beside: how much of it moves data, and how much waits for a rank that is late.

A collective's wait is at its start, until the last rank has come; its transfer is at its end and as long as on the rank
that waited least (`transfer_ns` of analysis/metrics/ranks/collectives.py). Where the other ranks have no trace, the
shortest collective of the same kind and size stands for the transfer, if there are LEAST_ALIKE of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals

LEAST_ALIKE = 3


@dataclass(frozen=True)
class Exposed:
    """Sets of time of one device. `transfer` and `waiting` make up the exposed communication; `waited_for`: the part of
    `waiting` for each late rank; `calls`: the device's collectives with transfer_ns (of alone ones estimated, null
    where that cannot be) and exposed_ns, the exposed part of the transfer; `heard`: whether all
    ranks of most of them have a trace, which it takes to separate waiting from transfer."""

    transfer: Intervals
    waiting: Intervals
    waited_for: dict[int, Intervals]
    calls: pl.DataFrame
    heard: bool


def divide(collectives: pl.DataFrame, exposed: Intervals) -> Exposed:
    """`collectives`: of one rank and device, as ingest writes them; `exposed`: its communication without compute."""
    alike = pl.len().over("collective", "bytes") >= LEAST_ALIKE
    took = pl.col("end_ns") - pl.col("start_ns")
    alone = pl.when(alike & pl.col("bytes").is_not_null()).then(took.min().over("collective", "bytes"))
    calls = collectives.with_columns(transfer_ns=pl.coalesce("transfer_ns", alone))
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    length = calls.select(pl.coalesce("transfer_ns", took)).to_series().to_numpy()
    begins = end - np.minimum(length, end - start)
    moving = intervals.union(np.column_stack((begins, end)))
    waiting = intervals.intersect(
        exposed, intervals.subtract(intervals.union(np.column_stack((start, begins))), moving)
    )
    late = calls["late_rank"].drop_nulls().unique().sort().to_list()
    spans = np.column_stack((start, begins))
    by_rank = {
        rank: intervals.intersect(waiting, intervals.union(spans[(calls["late_rank"] == rank).fill_null(False)]))
        for rank in late
    }
    transfer = intervals.subtract(exposed, waiting)
    inside = intervals.length_before(transfer, end) - intervals.length_before(transfer, begins)
    joint = calls.filter(pl.col("collective").cast(pl.String).ne_missing("send_recv"))  # those are of two ranks
    whole = joint.select((pl.col("matched_ranks") >= pl.coalesce("ranks", pl.lit(2))).sum()).item()
    return Exposed(
        transfer,
        waiting,
        by_rank,
        calls.with_columns(exposed_ns=pl.Series(inside, dtype=pl.Int64)),
        heard=whole >= joint.height / 2,
    )
