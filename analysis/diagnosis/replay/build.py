"""From a run's events to its graph."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay.device import build_work
from nightsweep.analysis.diagnosis.replay.graph import Graph
from nightsweep.analysis.diagnosis.replay.host import build_calls
from nightsweep.analysis.diagnosis.replay.measured import Frames, Measured


def build(events: Mapping[int, Frames], windows: pl.DataFrame, *, loader_holds_gil: bool = False) -> Graph:
    """The graph of a run.

    Args:
        events: tables of each rank's events, attributed to their launches.
        windows: the table `windows` of these ranks.
        loader_holds_gil: whether a loader's thread is known to hold the GIL while it frees batches.
    """
    m = Measured.of(events)
    calls, work = build_calls(m), build_work(m)
    lanes = windows.sort("rank", "device", "start_ns").partition_by("rank", "device", maintain_order=True)
    counted_calls, counted_work = np.zeros(len(calls.start), bool), np.zeros(len(work.start), bool)
    for own in lanes:
        rank = own["rank"][0]
        for begin in own.filter("counted")["host_start_ns"].sort().head(1).to_list():
            counted_calls |= (calls.rank == rank) & (calls.start >= begin)
            counted_work |= (work.rank == rank) & (m.launched >= begin)
    return Graph(calls, work, tuple(lanes), counted_calls, counted_work, loader_holds_gil)
