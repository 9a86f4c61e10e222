"""How long the steps of a graph are that was run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Graph, Ints
from nightsweep.analysis.diagnosis.replay.schedule import NEVER
from nightsweep.analysis.diagnosis.replay.times import Times


def periods(graph: Graph, times: Times) -> list[Ints]:
    """Times of the steps that count of each device, ns, as `detection.windows` has them: a step begins when the host's
    step before it, and all that was launched before its own, have ended."""
    known = graph.known(_Edges, lambda: [_Edges.of_device(graph, windows) for windows in graph.windows])
    return [edges.periods(times) for edges in known]


@dataclass(frozen=True)
class _Edges:
    """Where the edges of a device's steps on the host lie in the graph, whatever changes make of that: first all
    starts, then all ends.

    Attributes:
        counted: whether each step counts.
        at: the edges as they were measured, ns.
        launched: the device's work in the order of its launches; `before`: how much of it precedes each edge.
        calls: of the launching threads; `order`: of their starts and ends, which alternate, by time.
        place: of these the last before each edge; `part`: how much of the time to the next has passed then.
        beyond: how long before the first or after the last of them an edge lies, ns.
    """

    counted: npt.NDArray[np.bool_]
    at: Ints
    launched: Ints
    before: Ints
    calls: Ints
    order: Ints
    place: Ints
    part: npt.NDArray[np.float64]
    beyond: Ints

    @classmethod
    def of_device(cls, graph: Graph, windows: pl.DataFrame) -> _Edges:
        rank = windows["rank"][0]
        here = (pl.col("rank") == rank) & pl.col("device").eq_missing(windows["device"][0])
        there = np.flatnonzero(graph.work.frame.select(here).to_series().to_numpy())
        launched = there[np.argsort(graph.work.launched[there], kind="stable")]
        at = np.concatenate([windows[name].to_numpy() for name in ("host_start_ns", "host_end_ns")])
        calls = np.flatnonzero(graph.calls.rank == rank)
        measured = np.stack((graph.calls.start[calls], graph.calls.end[calls]), axis=1).ravel()
        order = np.argsort(measured, kind="stable")
        measured = measured[order]
        place, part, beyond = np.zeros(len(at), np.int64), np.zeros(len(at)), np.zeros(len(at), np.int64)
        if len(calls):
            place = np.clip(np.searchsorted(measured, at, side="right") - 1, 0, len(measured) - 2)
            whole = np.maximum(1, measured[place + 1] - measured[place])
            part = np.clip((at - measured[place]) / whole, 0.0, 1.0)
            beyond = np.where(at < measured[0], at - measured[0], np.maximum(0, at - measured[-1]))
        before = np.searchsorted(graph.work.launched[launched], at)
        return cls(windows["counted"].to_numpy(), at, launched, before, calls, order, place, part, beyond)

    def periods(self, times: Times) -> Ints:
        """Of the steps that count, ns."""
        done = np.append(NEVER, np.maximum.accumulate(times.work_end[self.launched]))
        host_begins, host_ends = np.split(np.maximum(self._on_host(times), done[self.before]), 2)
        begins = np.maximum(host_begins, np.append(NEVER, host_ends[:-1]))
        ends = np.maximum(host_ends, np.append(begins[1:], NEVER))
        return np.asarray((ends - begins)[self.counted])

    def _on_host(self, times: Times) -> Ints:
        """When the launching threads are where they were at the edges: in a call or between two as far as then."""
        if not len(self.calls):
            return self.at
        moved = np.stack((times.call_start[self.calls], times.call_end[self.calls]), axis=1).ravel()
        moved = np.maximum.accumulate(moved[self.order])
        way = moved[self.place + 1] - moved[self.place]
        return moved[self.place] + np.rint(self.part * way).astype(np.int64) + self.beyond
