"""Which of many traced ranks are replayed: time and memory grow with their number, and most ranks do the same."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.tables.part_names import BUSY

MOST = 16
"""The largest number of ranks that are replayed. A job with no more than these has all of them replayed."""
SUSPECTS = 4
"""In a larger job, how many ranks are taken because others waited for them longest, and how many because their devices
had most to do."""


def choose_ranks(ranks: list[int], waited_for: pl.DataFrame, step_parts: pl.DataFrame) -> list[int]:
    """Ranks to look at: all, or MOST: those that may hold up the others, the first, and others evenly spread.

    Args:
        ranks: all that have a trace, sorted.
        waited_for, step_parts: the tables of these names.
    """
    if len(ranks) <= MOST:
        return ranks
    waits = waited_for.filter(pl.col("step").is_null()).sort("late_ns", "rank", descending=[True, False])
    busy = pl.col("part").is_in([part for part in BUSY if part != "communication"])
    work = step_parts.filter(busy).group_by("rank").agg(pl.col("duration_ns").sum())
    work = work.sort("duration_ns", "rank", descending=[True, False])
    suspects = [*waits["rank"].head(SUSPECTS), *work["rank"].head(SUSPECTS)]
    spread = (ranks[place * len(ranks) // MOST] for place in range(MOST))
    return sorted(list(dict.fromkeys([*(rank for rank in suspects if rank in ranks), *spread]))[:MOST])
