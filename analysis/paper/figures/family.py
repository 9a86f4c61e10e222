"""What figures of the paper share: their captions' sentences, and which points they compare."""

from __future__ import annotations

import functools

import polars as pl

from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.sweep import blocks, dataset, nights

WHISKERS = "Bars are medians of repeats, dots the repeats; whiskers run from min to max."
STEP = "The time of a step is the mean of the rank that is slowest over the timed window, without a profiler."

family = functools.partial(Family, aside=blocks.NEUTRAL)
"""A figure of the paper: labels are its factors' levels, so none leaves settings unsaid."""


@functools.lru_cache(maxsize=2)  # two workloads of one sweep, asked for by many figures
def measured_points(tables: dataset.Tables, workload: str) -> pl.DataFrame:
    """Points of a workload with step times, and their `night`. Where as many ranks of a model ran on several counts of
    nodes, those on the fewest, for these figures are over GPUs."""
    points = tables["points"].filter(pl.col("workload") == workload, pl.col("step_ms_mean").is_not_null())
    points = points.filter(pl.col("nodes") == pl.col("nodes").min().over("model", "world_size"))
    points = nights.add_nights(points, tables["points"])
    # DALI goes on into the next epoch in any case, so the switch is no difference between it and other loaders.
    going_on = pl.when(pl.col("loader") == "dali").then(True).otherwise("across_epochs")
    return points.with_columns(across_epochs=going_on)


def widest_block(tables: dataset.Tables, workload: str, factor: str, *along: str) -> pl.DataFrame:
    """Points of the workload in the widest block of this factor."""
    return blocks.widest_block(measured_points(tables, workload), factor, along)[0]
