"""What the times of all ranks' steps tell, also of ranks that have no trace."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nightsweep.analysis.diagnosis.thresholds import NOISE


@dataclass(frozen=True)
class SlowRank:
    """A rank whose steps last longer than those of each other rank. `own_ms`: its median step; `others_ms`: the median
    of the others' medians."""

    rank: int
    own_ms: float
    others_ms: float


def slow_rank(steps: pl.DataFrame) -> SlowRank | None:
    """The rank that is slower than the next by more than NOISE; None where there is none. Ranks that wait for each
    other in every step end it together: of these only traces tell which one is late.

    `steps`: the table of this name, of the timed steps.
    """
    if steps.is_empty():
        return None
    medians = steps.group_by("rank").agg(pl.col("step_ms").median()).drop_nulls().sort("step_ms", descending=True)
    if medians.height < 2:
        return None
    (rank, own), (_, second) = medians.head(2).rows()
    others = float(medians["step_ms"][1:].median())  # type: ignore[arg-type]
    return SlowRank(rank, own, others) if own - second >= NOISE.value * own else None
