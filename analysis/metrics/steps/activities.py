"""What ran how often and how long: the table ACTIVITIES of one trace.

Counted is what starts in the traced window: from the first step's start on the host to the last step's end. A trace
without steps is counted whole.
"""

from __future__ import annotations

import polars as pl

from analysis.metrics.steps import trace

_SYNC = "Synchronize"


def rows(events: trace.Events) -> pl.DataFrame:
    """One row a category and name: category, name, count, total_ns, mean_ns, bytes (null where nothing is moved)."""
    lanes = trace.lanes(events)
    copies = events["copies"].with_columns(name=pl.col("direction"))
    sync = pl.when(pl.col("name").str.contains(_SYNC, literal=True)).then(pl.lit("sync")).otherwise(pl.lit("runtime"))
    parts = [
        _as(lanes["compute"], pl.lit("compute")),
        _as(lanes["communication"], pl.lit("communication")),
        _as(copies, pl.lit("copy")),
        _as(events["memsets"], pl.lit("memset")),
        _as(events["runtime"], sync),
    ]
    took = pl.col("end_ns") - pl.col("start_ns")
    moved = pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum())
    return (
        _in_window(pl.concat(parts), events)
        .group_by("category", "name")
        .agg(count=pl.len().cast(pl.Int64), total_ns=took.sum(), mean_ns=took.mean(), bytes=moved)
        .sort("category", "name")
    )


def _as(frame: pl.DataFrame, category: pl.Expr) -> pl.DataFrame:
    size = pl.col("bytes") if "bytes" in frame.columns else pl.lit(None, pl.Int64).alias("bytes")
    return frame.select(category.alias("category"), pl.col("name").fill_null("?"), "start_ns", "end_ns", size)


def _in_window(frame: pl.DataFrame, events: trace.Events) -> pl.DataFrame:
    bounds = pl.concat([trace.steps(events), trace.windows(events)])
    if bounds.is_empty():
        return frame
    first, last = bounds["start_ns"].min(), bounds["end_ns"].max()
    return frame.filter(pl.col("start_ns").is_between(first, last, closed="left"))
