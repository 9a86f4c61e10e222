"""When points were measured. A host's load, and the cores and the GPU that a job is given, differ from night to night:
the same job took 62 ms a step on one evening and 50 on another."""

from __future__ import annotations

from collections.abc import Sequence

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


def shared(points: pl.DataFrame, by: Sequence[str], level: str) -> pl.DataFrame:
    """The points of nights in which their group, `by`, has several values of `level`."""
    return points.filter(pl.col(level).n_unique().over(*by, "night") > 1)


def relative(
    points: pl.DataFrame, value: str, by: Sequence[str], level: Sequence[str], bases: pl.DataFrame
) -> pl.DataFrame:
    """`by`, `level`, ratio, least, most, n: of each group and level, the value over that at the group's base of the
    same nights. `bases`: the columns `by` and `level`, a row a group.

    `ratio` is that of medians; of several nights their geometric mean, each weighted as the difference of two means of
    so many runs (n m / (n + m)). `least`, `most`: the ratios that two runs of one night give. `n`: runs of the level.
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
        pairs.group_by(*by, *level)
        .agg(
            ratio=((logarithm * weight).sum() / weight.sum()).exp(),
            least=(pl.col("low") / pl.col("high_base")).min(),
            most=(pl.col("high") / pl.col("low_base")).max(),
            n=pl.col("n").sum(),
        )
        .sort(*by, *level)
    )
