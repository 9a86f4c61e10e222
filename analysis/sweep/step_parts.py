"""The parts of a step of points with a trace."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables.part_names import GROUPS


def mean_parts(tables: dataset.Tables) -> pl.DataFrame:
    """point_id and a column for each part: its mean over traced steps and ranks, ms. The parts add up to the step; one
    that is absent took no time."""
    rows = tables["breakdown"]
    steps = rows.group_by("point_id").agg(steps=pl.struct("rank", "step").n_unique())
    sums = rows.group_by("point_id", "part").agg(pl.col("duration_ns").sum()).join(steps, on="point_id")
    means = sums.select("point_id", "part", ms=pl.col("duration_ns") / pl.col("steps") / 1e6)
    wide = means.pivot("part", index="point_id", values="ms").sort("point_id")
    return wide.select(
        "point_id", *(wide.get_column(part, default=pl.lit(0.0).alias(part)) for part in GROUPS)
    ).fill_null(0.0)
