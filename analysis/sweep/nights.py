"""Nights in which points were measured.

A host's load, and the cores and the GPU that a job gets, differ from night to night: the same job took 62 ms a step on
one evening and 50 on another.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

PAUSE = pl.duration(hours=1)
"""A longer pause between two points begins a new night."""
SET = pl.col("point_id").str.extract("^(.+)/")
"""A point's set, where several are joined (analysis/sweep/dataset.py): machines of two may run at the same time."""


def add_nights(points: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Add `night` to points: 0, 1 and so on, by set and in order of time; null where it is not known when a point ran.

    `measured`: all points, since others may have run where these pause.
    """
    start = pl.col("started_at").str.to_datetime(time_zone="UTC")
    known = measured.filter(pl.col("started_at").is_not_null()).select("point_id", start=start, wall_s="wall_s")
    known = known.with_columns(end=pl.col("start") + pl.duration(seconds=pl.col("wall_s").fill_null(0)))
    pause = pl.col("start") - pl.col("end").cum_max().shift().over(SET)
    begins = pause.is_null() | (pause > PAUSE)
    nights = known.sort(SET, "start").select("point_id", night=begins.cum_sum() - 1)
    return points.join(nights, on="point_id", how="left", maintain_order="left")


def select_shared_nights(points: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Select the points of those nights in which their group, `by`, has several values of `shape`."""
    return points.filter(pl.col("shape").n_unique().over(*by, "night") > 1)


def ratios(
    points: pl.DataFrame, value: str, by: Sequence[str], level: Sequence[str], bases: pl.DataFrame
) -> pl.DataFrame:
    """The ratio of each level's value to that of its group's base in the same nights.

    Args:
        points: with `night`.
        value: name of the column.
        by: columns whose values make a group.
        level: columns whose values make a level.
        bases: the columns `by` and `level`, a row a group.

    Returns:
        `by`, `level`, ratio, least, most, n. `ratio` is that of medians; of several nights their geometric mean, each
        weighted as the difference of two means of n and m runs (n m / (n + m)). `least`, `most`: the extreme ratios of
        two runs of one night. `n`: runs of the level.
    """
    number = pl.col(value)
    cells = points.group_by(*by, *level, "night").agg(
        median=number.median(), low=number.min(), high=number.max(), n=pl.len()
    )
    base = cells.join(bases, on=[*by, *level], how="semi", nulls_equal=True).drop(level)
    pairs = cells.join(base, on=[*by, "night"], suffix="_base", nulls_equal=True)
    weight = pl.col("n") * pl.col("n_base") / (pl.col("n") + pl.col("n_base"))
    logarithm = (pl.col("median") / pl.col("median_base")).log()
    return (
        pairs.sort("night")  # sums of floats depend on their order
        .group_by(*by, *level, maintain_order=True)
        .agg(
            ratio=((logarithm * weight).sum() / weight.sum()).exp(),
            least=(pl.col("low") / pl.col("high_base")).min(),
            most=(pl.col("high") / pl.col("low_base")).max(),
            n=pl.col("n").sum(),
        )
        .sort(*by, *level)
    )
