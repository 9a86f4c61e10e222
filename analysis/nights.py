"""When points were measured. A host's load, and the cores and the GPU that a job is given, differ from night to night:
the same job took 62 ms a step on one evening and 50 on another."""

from __future__ import annotations

import polars as pl

PAUSE = pl.duration(hours=1)
"""Nothing runs for so long between two nights."""


def numbered(points: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """The points with `night`, in the order of time from 0; null where it is not known when a point ran. `measured`:
    all points, for others may have run where these pause."""
    start = pl.col("started_at").str.to_datetime(time_zone="UTC")
    known = measured.filter(pl.col("started_at").is_not_null()).select("point_id", start=start, wall_s="wall_s")
    known = known.with_columns(end=pl.col("start") + pl.duration(seconds=pl.col("wall_s").fill_null(0)))
    pause = pl.col("start") - pl.col("end").cum_max().shift()
    nights = known.sort("start").select("point_id", night=(pause > PAUSE).fill_null(False).cum_sum())
    return points.join(nights, on="point_id", how="left", maintain_order="left")
