"""Communication that nothing computes beside: how much of it moves data, and how much waits for a rank that is late.

A collective's wait is at its start, until the last rank has come; its transfer is at its end and as long as on the rank
that waited least (`transfer_ns` of analysis/metrics/ranks/collectives.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals


@dataclass(frozen=True)
class Exposed:
    """Sets of time of one device. `transfer` and `waiting` make up the exposed communication; `calls`: the device's
    collectives; `heard`: whether all ranks of most of them have a trace, which it takes to separate the two."""

    transfer: Intervals
    waiting: Intervals
    calls: pl.DataFrame
    heard: bool


def divide(collectives: pl.DataFrame, exposed: Intervals) -> Exposed:
    """`collectives`: of one rank and device, as ingest writes them; `exposed`: its communication without compute."""
    start, end = collectives["start_ns"].to_numpy(), collectives["end_ns"].to_numpy()
    begins = end - np.minimum(collectives["transfer_ns"].fill_null(2**62).to_numpy(), end - start)
    moving = intervals.union(np.column_stack((begins, end)))
    waiting = intervals.intersect(
        exposed, intervals.subtract(intervals.union(np.column_stack((start, begins))), moving)
    )
    joint = collectives.filter(pl.col("collective").cast(pl.String).ne_missing("send_recv"))  # those are of two ranks
    whole = joint.select((pl.col("matched_ranks") >= pl.coalesce("ranks", pl.lit(2))).sum()).item()
    return Exposed(intervals.subtract(exposed, waiting), waiting, collectives, heard=whole >= joint.height / 2)
