"""Kernels that run beside collectives share the SMs and the memory with them: how much longer they take.

A kernel is compared with kernels of its name and number of blocks that ran alone. On two H100s or H200s that average
gradients over NVLink, products took 1.3 to 2.1 times as long, elementwise kernels 1.0 to 1.4 times.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analysis.diagnosis.evidence.lane import Lane
from analysis.metrics import intervals

BESIDE, ALONE = 0.9, 0.1
"""Shares of its time that a kernel runs beside a collective, from which and up to which it counts as such."""
FEWEST = 3
"""Kernels of each sort that a comparison needs."""
PLAUSIBLE = (0.8, 2.5)
"""Outside of this kernels of one name and number of blocks are not alike: their matrices differ."""


def slowdowns(lane: Lane) -> pl.DataFrame:
    """The lane's kernels that run beside its collectives, as fast as alone: for `Evidence.scaled`."""
    frame = lane.own["kernels"]
    sent = frame["category"].cast(pl.String) == "communication"
    start, end = (frame[name].to_numpy() for name in ("start_ns", "end_ns"))
    covered = intervals.union(np.column_stack((start, end))[sent.to_numpy()])
    took = np.maximum(end - start, 1)
    inside = (intervals.length_before(covered, end) - intervals.length_before(covered, start)) / took
    kernels = frame.with_columns(inside=pl.Series(inside), took=pl.Series(took)).filter(~sent)
    kind, beside, alone = ("name", "blocks"), pl.col("inside") > BESIDE, pl.col("inside") < ALONE
    known = (
        kernels.group_by(kind)
        .agg(
            slowdown=pl.col("took").filter(beside).median() / pl.col("took").filter(alone).median(),
            fewest=pl.min_horizontal(beside.sum(), alone.sum()),
        )
        .filter(pl.col("fewest") >= FEWEST, pl.col("slowdown").is_between(*PLAUSIBLE))
    )
    slowed = kernels.filter(beside).join(known, on=kind, how="inner")
    return slowed.with_columns(factor=(1 / pl.col("slowdown")).clip(upper_bound=1.0), kept=pl.lit(1.0))
