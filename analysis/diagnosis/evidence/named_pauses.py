"""Where the launching threads pause: in which range of NVTX or annotation, or before which call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.replay.graph import Graph
from nightsweep.analysis.diagnosis.replay.pauses import working
from nightsweep.analysis.metrics.steps import detection

UNNAMED = "INVALID"
"""What PyTorch's profiler calls those that its CUPTI does not know."""
MOST = 3
"""Places that are told, the longest first."""


def longest(lanes: Sequence[Lane], graph: Graph, rank: int | None = None) -> list[tuple[str, float]]:
    """The places with the longest pauses for other work of the steps that count, ms a step, of this rank, or in the
    mean."""
    calls, found = graph.calls, defaultdict[str, float](float)
    ranges = {lane.rank: _ranges(lane) for lane in lanes}
    of_rank = True if rank is None else calls.rank == rank
    for place in np.flatnonzero(working(graph) & graph.calls_of_steps & of_rank).tolist():
        middle = int(calls.start[place] - calls.gap[place] // 2)
        inside = ranges[int(calls.rank[place])].filter(pl.col("start_ns") <= middle, pl.col("end_ns") > middle)
        where = inside.sort("start_ns")["name"].to_list()
        call = str(calls.name[place]).replace(UNNAMED, "a call that the trace does not name")
        found[where[-1] if where else f"no range, before {call}"] += float(calls.gap[place])
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [(where, ns / 1e6 / graph.rank_steps(rank)) for where, ns in ordered[:MOST]]


def _ranges(lane: Lane) -> pl.DataFrame:
    """The ranges of the threads that launch, but those of steps."""
    own = lane.events["nvtx"].filter(pl.col("thread").is_in(lane.launching.implode()))
    own = own.select("start_ns", "end_ns", pl.col("name").cast(pl.String))
    step = pl.col("name").str.contains(detection.NUMBERED) | pl.col("name").str.contains(detection.UNNUMBERED)
    return own.filter(~step)
