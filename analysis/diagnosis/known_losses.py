"""Points of a sweep of whose lost time something is known."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.sweep import dataset


def known_points(tables: dataset.Tables) -> pl.DataFrame:
    """Rows of `diagnoses` of the sweep's own points of which something is known: there is a trace, or a loss that shows
    without one."""
    has_trace = (pl.col("kind") != "missing_trace").all().over("point_id")
    has_loss = (pl.col("share") >= NOISE.value).any().over("point_id")
    return tables.own["diagnoses"].filter(has_trace | has_loss)
