"""Layers of events as segments that do not overlap: at each moment the event of the uppermost layer."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightsweep.analysis.metrics.intervals import Intervals, meetings

Times = NDArray[np.int64]
Label = tuple[str, str | None]
"""Category and name."""


@dataclass(frozen=True)
class Segments:
    """Stretches of time, int64 of shape (n, 2), ns, sorted and disjoint, and the label of each."""

    spans: Intervals
    labels: list[Label]

    def during(self, starts: Times, ends: Times) -> tuple[Times, Times, Times]:
        """What of the segments lies in each of these times, which may overlap: number of the time, number of the
        segment, and length, ns."""
        of, place = meetings(self.spans, starts, ends)
        length = np.minimum(self.spans[place, 1], ends[of]) - np.maximum(self.spans[place, 0], starts[of])
        some = length > 0
        return of[some], place[some], length[some]

    def without(self, spans: Intervals) -> Segments:
        """The segments outside of these times."""
        ever = np.iinfo(np.int64)
        starts, ends = np.append(ever.min, spans[:, 1]), np.append(spans[:, 0], ever.max)
        of, place, _ = self.during(starts, ends)
        cut = np.column_stack(
            (np.maximum(self.spans[place, 0], starts[of]), np.minimum(self.spans[place, 1], ends[of]))
        )
        return Segments(cut, [self.labels[number] for number in place.tolist()])


def overlay(frames: list[tuple[str, pl.DataFrame]], during: Intervals) -> Segments:
    """The label of each moment of `during`, and around it.

    Args:
        frames: category and events (start_ns, end_ns, name) of each layer, the uppermost first. Within a layer the
            event that began last counts: of nested ranges the innermost.
        during: the times of interest; other events are left out.
    """
    starts, ends, levels, labels = [], [], [], []
    for level, (category, frame) in enumerate(frames):
        near = frame.filter(pl.Series(_touches(frame, during)))
        starts += near["start_ns"].to_list()
        ends += near["end_ns"].to_list()
        levels += [level] * len(near)
        labels += [(category, name) for name in near["name"].to_list()]
    return _sweep(starts, ends, levels, labels)


def _touches(frame: pl.DataFrame, during: Intervals) -> NDArray[np.bool_]:
    begun = np.searchsorted(during[:, 0], frame["end_ns"].to_numpy(), "left")
    over = np.searchsorted(during[:, 1], frame["start_ns"].to_numpy(), "right")
    touches: NDArray[np.bool_] = begun > over
    return touches


def _sweep(starts: list[int], ends: list[int], levels: list[int], labels: list[Label]) -> Segments:
    order = sorted(range(len(starts)), key=starts.__getitem__)
    bounds = sorted({*starts, *ends})
    # The smallest of the heap counts; one that has ended stays in it until it comes to the top.
    open_: list[tuple[int, int, int]] = []
    spans: list[list[int]] = []
    chosen: list[int] = []
    pushed = 0
    for now, then in itertools.pairwise(bounds):
        while pushed < len(order) and starts[order[pushed]] <= now:
            event = order[pushed]
            heapq.heappush(open_, (levels[event], -starts[event], event))
            pushed += 1
        while open_ and ends[open_[0][2]] <= now:
            heapq.heappop(open_)
        if not open_:
            continue
        event = open_[0][2]
        if chosen and chosen[-1] == event and spans[-1][1] == now:
            spans[-1][1] = then
        else:
            spans.append([now, then])
            chosen.append(event)
    return Segments(np.array(spans, dtype=np.int64).reshape(-1, 2), [labels[event] for event in chosen])
