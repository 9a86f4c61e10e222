"""The steps of a run's slowest rank, which add up to the time that passed.

The longest of all ranks in each step adds up to more where ranks are held up in turns, for one that waits for another
does so in that step or the next, by where its own begin: to 12 % more with MobileNetV2 at 500 px on four H200s.
"""

from __future__ import annotations

from typing import TypeVar

import polars as pl

Steps = TypeVar("Steps", pl.DataFrame, pl.LazyFrame)


def slowest_rank(steps: Steps, *by: str) -> Steps:
    """Of these steps those of the rank whose mean is longest, the first of several, by step; `by`: of each group. Ranks
    that have fewer steps than others, as where a log was cut, do not count."""
    ranks = steps.group_by(*by, "rank").agg(pl.col("step_ms").count().alias("steps"), pl.col("step_ms").mean())
    ranks = ranks.sort("steps", "step_ms", "rank", descending=[True, True, False], nulls_last=True)
    slowest = ranks.group_by(*by, maintain_order=True).agg(pl.col("rank").first()) if by else ranks.head(1)
    return steps.join(slowest.select(*by, "rank"), on=[*by, "rank"], how="semi").sort(*by, "step")
