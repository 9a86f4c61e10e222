"""The optimizer's kernels: in its ranges or by their names."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.steps import selection


def kernels(lane: Lane) -> pl.DataFrame:
    """Of a lane, the compute kernels of its optimizer."""
    own = lane.own["kernels"]
    named = pl.col("category").cast(pl.String) == "optimizer"
    launched = own["launch_ns"].fill_null(-1).to_numpy()
    stepping = selection.pass_time(lane.events["nvtx"], "(?i)optimizer")
    inside = pl.Series(intervals.length_before(stepping, launched + 1) > intervals.length_before(stepping, launched))
    return own.filter((named | inside) & (pl.col("category").cast(pl.String) != "communication"))
