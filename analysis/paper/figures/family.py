"""A figure family of the paper: the points it shows, how they are drawn, and what its caption says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.sweep import blocks, dataset, nights

WHISKERS = "Bars are medians of repeats, dots the repeats, whiskers run from the least to the most."
RATIOS = (
    "Bars are ratios of medians of repeats of the same night, over several nights their geometric mean; whiskers run "
    "from the least to the most that two repeats of a night give."
)
STEP = "Time of a step: its mean over the timed window, which no profiler sees; a step is as slow as its slowest rank."


@dataclass(frozen=True)
class Family:
    """`shown`: the points it rests on, none where the tables have not what it needs. `paint`: these points, all tables
    and the width in inches to a figure. `missing`: one sentence for tables without such points."""

    title: str
    text: str
    missing: str
    shown: Callable[[dataset.Tables], pl.DataFrame]
    paint: Callable[[pl.DataFrame, dataset.Tables, float], Figure]

    def draw(self, tables: dataset.Tables, width_in: float = style.TWO_COLUMNS_IN) -> Figure:
        """The figure, or the sentence that says why there is none."""
        points = self.shown(tables)
        with style.context():
            return style.says(self.missing) if points.is_empty() else self.paint(points, tables, width_in)


def measured(tables: dataset.Tables, workload: str) -> pl.DataFrame:
    """Points of a workload with step times, and their `night`. Where as many ranks of a model ran on several counts of
    nodes, those on the fewest, for these figures are over GPUs."""
    points = tables["points"].filter(pl.col("workload") == workload, pl.col("step_ms_mean").is_not_null())
    points = points.filter(pl.col("nodes") == pl.col("nodes").min().over("model", "world_size"))
    points = nights.add_nights(points, tables["points"])
    # DALI goes on into the next epoch in any case, so the switch is no difference between it and other loaders.
    going_on = pl.when(pl.col("loader") == "dali").then(True).otherwise("across_epochs")
    return points.with_columns(across_epochs=going_on)


def ratios(points: pl.DataFrame, factor: str, base: object, value: str, by: list[str]) -> pl.DataFrame:
    """`by`, factor, ratio, least, most: value of the base over each other level's of the same nights; above 1 is less
    than the base."""
    bases = points.filter(pl.col(factor) == pl.lit(base)).select(*by, factor).unique()
    found = nights.ratios(points, value, by, [factor], bases).filter(pl.col(factor) != pl.lit(base))
    return found.select(*by, factor, ratio=1 / pl.col("ratio"), least=1 / pl.col("most"), most=1 / pl.col("least"))


def widest(tables: dataset.Tables, workload: str, factor: str, *along: str) -> pl.DataFrame:
    """Points of the workload in the widest block of this factor."""
    return blocks.widest_block(measured(tables, workload), factor, along)[0]
