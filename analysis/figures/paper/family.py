"""A figure family of the paper: the points it shows, how they are drawn, and what its caption says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
from matplotlib.figure import Figure

from analysis import blocks
from analysis.figures import data, style

WHISKERS = "Bars are medians of repeats, dots the repeats, whiskers run from the least to the most."
RATIOS = "Bars are ratios of medians of repeats; whiskers run from the least to the most that any two repeats give."
STEP = "Time of a step: its mean over the timed window, which no profiler sees; a step is as slow as its slowest rank."


@dataclass(frozen=True)
class Family:
    """`shown`: the points it rests on, none where the tables have not what it needs. `paint`: these points, all tables
    and the width in inches to a figure. `missing`: one sentence for tables without such points."""

    title: str
    text: str
    missing: str
    shown: Callable[[data.Tables], pl.DataFrame]
    paint: Callable[[pl.DataFrame, data.Tables, float], Figure]

    def draw(self, tables: data.Tables, width_in: float = style.TWO_COLUMNS_IN) -> Figure:
        """The figure, or the sentence that says why there is none."""
        points = self.shown(tables)
        with style.context():
            return style.says(self.missing) if points.is_empty() else self.paint(points, tables, width_in)


def measured(tables: data.Tables, workload: str) -> pl.DataFrame:
    """Points of a workload with step times."""
    points = tables["points"].filter(pl.col("workload") == workload, pl.col("step_ms_mean").is_not_null())
    # DALI goes on into the next epoch in any case, so the switch is no difference between it and other loaders.
    going_on = pl.when(pl.col("loader") == "dali").then(True).otherwise("across_epochs")
    return points.with_columns(across_epochs=going_on)


def ratios(points: pl.DataFrame, factor: str, base: object, value: str, by: list[str]) -> pl.DataFrame:
    """`by`, factor, ratio, least, most: value of the base over each other level's; above 1 is less than the base."""
    numbers = pl.col(value)
    cells = points.group_by(*by, factor).agg(median=numbers.median(), low=numbers.min(), high=numbers.max())
    bases = cells.filter(pl.col(factor) == pl.lit(base)).drop(factor)
    return (
        cells.filter(pl.col(factor) != pl.lit(base))
        .join(bases, on=by, suffix="_base")
        .select(
            *by,
            factor,
            ratio=pl.col("median_base") / pl.col("median"),
            least=pl.col("low_base") / pl.col("high"),
            most=pl.col("high_base") / pl.col("low"),
        )
        .sort(*by, factor)
    )


def widest(tables: data.Tables, workload: str, factor: str, *along: str) -> pl.DataFrame:
    """Points of the workload in the widest block of this factor."""
    return blocks.widest(measured(tables, workload), factor, along)[0]
