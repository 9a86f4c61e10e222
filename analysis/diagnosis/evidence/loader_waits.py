"""Waits for a loader that a short trace does not see."""

from __future__ import annotations

import polars as pl


def longer_waits(timed: pl.DataFrame, traced: pl.DataFrame) -> dict[int, float]:
    """How much longer the host of each rank waits for its loader in the mean timed step than in the traced steps that
    count, ns. `timed`, `traced`: tables of steps; the first traced step does not count."""
    if timed.is_empty() or traced.is_empty():
        return {}
    waits, before = (table.group_by("rank").agg(pl.col("data_ms").mean()) for table in (timed, _counted(traced)))
    both = waits.join(before, on="rank", suffix="_traced").drop_nulls()
    return {row["rank"]: (row["data_ms"] - row["data_ms_traced"]) * 1e6 for row in both.iter_rows(named=True)}


def _counted(traced: pl.DataFrame) -> pl.DataFrame:
    first = pl.col("step").min().over("rank")
    return traced.filter((pl.col("step") > first) | (pl.len().over("rank") == 1))


def traced_wait(traced: pl.DataFrame, rank: int) -> float:
    """Mean wait of this rank for its loader in the traced steps that count, ns."""
    mean = _counted(traced).filter(pl.col("rank") == rank)["data_ms"].mean()
    return float(mean) * 1e6 if isinstance(mean, float) else 0.0


SHORT_WAIT, ENOUGH = 0.25, 0.25
"""A step waits for nothing if it waits for less than so much of the mean wait; so many steps tell what one takes."""


def step_without_waits(timed: pl.DataFrame, rank: int) -> float | None:
    """Median time on the slowest rank of the timed steps in which this rank does not wait for its loader, ns; None
    where too few do not: what a step would take then is not known."""
    waits = timed.filter(pl.col("rank") == rank).select("step", "data_ms")
    slowest = timed.group_by("step").agg(pl.col("step_ms").max()).join(waits, on="step").drop_nulls()
    free = slowest.filter(pl.col("data_ms") < SHORT_WAIT * pl.col("data_ms").mean())
    middle = free["step_ms"].median()
    return float(middle) * 1e6 if isinstance(middle, float) and free.height >= ENOUGH * slowest.height else None
