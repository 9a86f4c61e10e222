"""How often and how long each activity ran in the counted steps: the table ACTIVITIES of one rank.

Included are the host's calls, and what they launched, from the start of the first counted step to the end of the last
one, so that the counts of a step are whole. An activity without a launching call in the trace is included if it starts
in the windows of these steps. A trace without steps is included whole.
"""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.metrics.steps import selection

_SYNC = "Synchronize"
_COLUMNS = ("category", "name", "start_ns", "end_ns", "bytes", "launch_ns")


def rows(events: selection.Events, windows: pl.DataFrame) -> pl.DataFrame:
    """Category, name, count, total_ns and bytes (null where nothing is moved), a row a category and name.

    Args:
        events: the tables of one rank, attributed to their launches.
        windows: its table of that name.
    """
    kinds = selection.split_by_kind(events)
    exchange = pl.col("category").cast(pl.String) == "communication"
    category = pl.when(exchange).then(pl.lit("communication")).otherwise(pl.lit("compute"))
    kernels = events["kernels"].with_columns(category=category, name=pl.col("name").cast(pl.String))
    sync = pl.when(pl.col("name").str.contains(_SYNC, literal=True)).then(pl.lit("sync")).otherwise(pl.lit("runtime"))
    cpu = kernels.is_empty() and events["graphs"].is_empty() and events["copies"].is_empty()
    parts = [
        *([_as_rows(kinds[kind], pl.lit(kind)) for kind in ("compute", "communication")] if cpu else []),
        _as_rows(kernels, pl.col("category")),
        _as_rows(events["graphs"], pl.lit("compute")),
        _as_rows(events["copies"].with_columns(name=pl.col("direction")), pl.lit("copy")),
        _as_rows(events["memsets"], pl.lit("memset")),
        _as_rows(events["runtime"].with_columns(pl.col("name").cast(pl.String)), sync),
    ]
    took = pl.col("end_ns") - pl.col("start_ns")
    moved = pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum())
    return (
        _filter_counted(pl.concat(parts), windows)
        .group_by("category", "name")
        .agg(count=pl.len().cast(pl.Int64), total_ns=took.sum(), bytes=moved)
        .sort("category", "name")
    )


def _as_rows(frame: pl.DataFrame, category: pl.Expr) -> pl.DataFrame:
    absent = [pl.lit(None, pl.Int64).alias(name) for name in ("bytes", "launch_ns") if name not in frame.columns]
    named = frame.with_columns(*absent, category=category, name=pl.col("name").cast(pl.String).fill_null("?"))
    return named.select(_COLUMNS)


def _filter_counted(frame: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    if windows.height and not windows["counted"].any():  # of a trace that is cut off
        return frame.clear()
    if windows.is_empty() or windows["source"][0] == "none":
        return frame
    steps = windows.filter("counted")
    on_host = (steps["host_start_ns"].min(), steps["host_end_ns"].max())
    on_device = (steps["start_ns"].min(), steps["end_ns"].max())
    of_device = pl.col("category").is_in(["compute", "communication", "copy", "memset"]) & pl.lit(
        steps["device"].null_count() == 0
    )
    at = pl.coalesce("launch_ns", "start_ns").is_between(*on_host, closed="left")
    unlaunched = pl.col("start_ns").is_between(*on_device, closed="left")
    return frame.filter(pl.when(of_device & pl.col("launch_ns").is_null()).then(unlaunched).otherwise(at))
