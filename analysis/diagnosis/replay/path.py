"""The path of a replay: what held up what, from the last work back to the first. Whatever is not on it could take
longer without the run taking longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Calls, Graph, Ints, Work
from nightsweep.analysis.diagnosis.replay.times import Times

SPANS = pl.Schema({"rank": pl.Int64, "lane": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})
_Host = tuple[int, int, int]


@dataclass(frozen=True)
class Path:
    """The path of a run.

    Attributes:
        work: its work, the last first. Of a collective that waited for another rank, both ranks' part.
        unexplained: the share of its time before work which began later than all that it is known to wait for lets
            expect, from 0 to 1; 0 where there is no work.
        spans: when it was where, as measured: SPANS, with lanes as in the table `timeline`.
    """

    work: Sequence[int]
    unexplained: float
    spans: pl.DataFrame


def find_path(graph: Graph, times: Times) -> Path:
    """The path of a graph that was run."""
    calls, work = graph.calls, graph.work
    found: list[int] = []
    host: list[_Host] = []
    latest = _latest(work, times)
    seen = np.zeros(len(work.start), bool)  # lags below 0 could lead in a circle
    n = int(np.argmax(times.work_end)) if len(seen) else -1
    while n >= 0 and not seen[n]:
        seen[n] = True
        found.append(n)
        if latest[n] != n:  # it waited for another rank
            n = int(latest[n])
            continue
        ends = [(int(times.work_end[other] + work.wait_lag[n]), other) for other in work.waits.get(n, ())]
        if work.previous[n] >= 0:
            ends.append((int(times.work_end[work.previous[n]] + work.stream_lag[n]), int(work.previous[n])))
        moment, other = max(ends, default=(-1, -1))
        call = int(work.call[n])
        if call >= 0 and (other < 0 or times.call_start[call] + work.launch_lag[n] >= moment):
            other, first = _waited_for(calls, times, call)
            host.append((other, first, call))
        n = other
    if not found:
        return Path(found, 0.0, _spans(graph, found, latest, host))
    # Of a part that waited for another rank it does not matter why it began late.
    late = np.where(latest[found] == found, work.unexplained[found], 0)
    begins = [times.work_start[found[-1]] - late[-1], *(times.call_start[first] for _, first, _ in host)]
    whole = int(times.work_end[found[0]]) - int(min(begins))
    return Path(found, int(late.sum()) / max(1, whole), _spans(graph, found, latest, host))


def _latest(work: Work, times: Times) -> Ints:
    """Of each collective the part of the rank that came last; of other work, itself."""
    latest = np.arange(len(work.start))
    inside = np.flatnonzero(work.group >= 0)
    inside = inside[np.argsort(times.work_start[inside], kind="stable")]
    last = np.full(int(work.group.max(initial=-1)) + 1, -1)
    last[work.group[inside]] = inside  # of several the last stays
    latest[inside] = last[work.group[inside]]
    return latest


def _waited_for(calls: Calls, times: Times, call: int) -> tuple[int, int]:
    """The work that the host last waited for before this call, -1 where it waited for none; and the call in which it
    did, or the first of all."""
    while (before := int(calls.after[call])) >= 0:
        call = before
        if calls.waits_for[call] >= 0 and times.call_end[call] > times.call_start[call] + calls.least[call]:
            return int(calls.waits_for[call]), call
    return -1, call


def _spans(graph: Graph, found: Sequence[int], latest: Ints, host: Sequence[_Host]) -> pl.DataFrame:
    calls, work = graph.calls, graph.work
    place = np.array(found, dtype=np.int64)
    waited, first, last = np.array(host, dtype=np.int64).reshape(-1, 3).T
    copied = pl.col("kind").is_in(["copies", "memsets"])
    sent = (pl.col("category") == "communication").fill_null(False)
    lane = pl.when(sent).then(pl.lit("communication")).when(copied).then(pl.lit("copy")).otherwise(pl.lit("compute"))
    on_device = work.frame[place].select("rank", lane.alias("lane")).with_columns(
        # From when the last rank had come.
        start_ns=pl.Series(np.minimum(np.maximum(work.start[place], work.start[latest[place]]), work.end[place])),
        end_ns=pl.Series(work.end[place]),
    )  # fmt: skip
    ended = np.where(waited >= 0, work.end[waited], calls.start[first]) if len(host) else first
    begun = np.clip(ended, calls.start[first], calls.end[first])
    called = {"rank": calls.rank[last], "lane": ["call"] * len(host), "start_ns": begun, "end_ns": calls.end[last]}
    return pl.concat([on_device, pl.DataFrame(called, schema=SPANS)]).sort("rank", "lane", "start_ns")
