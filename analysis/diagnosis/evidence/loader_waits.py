"""Waits for a loader that a short trace does not see."""

from __future__ import annotations

import polars as pl


def longer_waits(timed: pl.DataFrame, traced: pl.DataFrame) -> dict[int, float]:
    """How much longer the host of each rank waits for its loader in the mean timed step than in the traced steps that
    count, ns. `timed`, `traced`: tables of steps; the first traced step does not count."""
    if timed.is_empty() or traced.is_empty():
        return {}
    first = pl.col("step").min().over("rank")
    counted = traced.filter((pl.col("step") > first) | (pl.len().over("rank") == 1))
    waits, before = (table.group_by("rank").agg(pl.col("data_ms").mean()) for table in (timed, counted))
    both = waits.join(before, on="rank", suffix="_traced").drop_nulls()
    return {row["rank"]: (row["data_ms"] - row["data_ms_traced"]) * 1e6 for row in both.iter_rows(named=True)}
