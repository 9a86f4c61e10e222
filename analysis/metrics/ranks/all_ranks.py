"""The tables that need all ranks: one clock, collectives matched over ranks, and the ranks that others waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import polars as pl

from nightsweep.analysis.metrics.ranks import collectives, matching, straggler
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.traces import TRACE_TABLES

TIMES = (
    "start_ns", "end_ns", "launch_ns", "launch_end_ns", "gpu_start_ns", "gpu_end_ns", "host_start_ns", "host_end_ns",
)  # fmt: skip
"""Columns that are points in time, not lengths."""
NEEDED = ("kernels", "copies", "memsets", "runtime", "nvtx")
"""Events that show what a late rank did instead."""
NAMES = ("collectives", "collective_sizes", "waited_for", "stragglers", "file_clocks")


def subtract_offset(frame: pl.LazyFrame, by: int) -> pl.LazyFrame:
    """The table with an offset (ns) subtracted from its times."""
    have = [name for name in frame.collect_schema().names() if name in TIMES]
    return frame.with_columns(pl.col(have) - by) if by else frame


def file_offsets(files: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The table `file_clocks`: the offset of each file's clock to the first one's, by the ends of common collectives.

    All ranks of a file share its clock. `files`: the collectives of each.
    """
    if len(files) < 2:
        return column.empty(TRACE_TABLES["file_clocks"])
    firsts = [frame.filter(pl.col("rank") == frame["rank"].min()) if frame.height else frame for frame in files]
    _, offsets = matching.align(firsts)
    return offsets


def joint_tables(
    files: Sequence[pl.DataFrame],
    events_of: Callable[[int], Mapping[str, pl.DataFrame]],
    names: Collection[str] = NAMES,
) -> dict[str, pl.DataFrame]:
    """Of the tables NAMES but `file_clocks` those of these names.

    Args:
        files: the collectives of each file, on one clock.
        events_of: returns a rank's events; called only for ranks that others waited for.
        names: the tables to make.
    """
    ranks = [part for frame in files for part in frame.partition_by("rank", maintain_order=True)]
    found = collectives.match_ranks(ranks)

    def stragglers() -> pl.DataFrame:
        late = found["late_rank"].drop_nulls().unique().sort().to_list()
        instead = [straggler.straggler_rows(events_of(rank), found, rank) for rank in late]
        return pl.concat([column.empty(TRACE_TABLES["stragglers"]), *instead])

    make = {
        "collectives": lambda: found,
        "collective_sizes": lambda: collectives.bandwidth_by_size(found),
        "waited_for": lambda: straggler.waits_by_rank(found),
        "stragglers": stragglers,
    }
    return {
        name: column.conform(frame(), TRACE_TABLES[name]).collect() for name, frame in make.items() if name in names
    }
