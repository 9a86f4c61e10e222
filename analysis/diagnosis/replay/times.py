"""Running a graph: when everything begins and ends, and how long the steps are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analysis.diagnosis.replay.graph import Calls, Graph, Ints, Mask

NEVER = -(1 << 62)
_WAITED, _CALL, _WORK = range(3)


@dataclass(frozen=True)
class Times:
    """When calls and work begin and end, ns, in the order of the graph."""

    call_start: Ints
    call_end: Ints
    work_start: Ints
    work_end: Ints


@dataclass(frozen=True)
class _Segments:
    """Calls in runs in which each follows the one before without waiting: their times are sums. `number`: of the run of
    each call; `first`: whether a call begins one; `start`, `end`: times of a call since some moment of its run."""

    number: Ints
    first: Mask
    start: Ints
    end: Ints

    @classmethod
    def of(cls, calls: Calls) -> _Segments:
        count = len(calls.start)
        places = np.arange(count)
        waits = calls.waits_for >= 0
        first = (calls.after != places - 1) | (places == 0)
        first[1:] |= waits[:-1]
        through = np.cumsum(calls.gap + calls.least)
        return cls(np.cumsum(first) - 1, first, through - calls.least, through)


def replay(graph: Graph) -> Times:
    """Run the graph. Takes about a second for a million pieces of work."""
    calls, runs = graph.calls, _Segments.of(graph.calls)
    base, ended, work_start, work_end = _run(graph, runs)
    begun = base[runs.number] if len(base) else np.zeros(0, np.int64)
    return Times(begun + runs.start, np.where(calls.waits_for >= 0, ended, begun + runs.end), work_start, work_end)


def _run(graph: Graph, runs: _Segments) -> tuple[Ints, Ints, Ints, Ints]:
    """In measured order, for what waits for something ended after it. Plain lists: a step of this loop takes less than
    numpy's to look at one number.

    Returns:
        The moment that each run of calls is counted from; ends of the calls that wait; starts and ends of work.
    """
    calls, work = graph.calls, graph.work
    heads, waiting = np.flatnonzero(runs.first), np.flatnonzero(calls.waits_for >= 0)
    # Of one moment: what has waited ends, then a call follows, then its work begins.
    at = np.concatenate((calls.end[waiting], calls.start[heads], work.start))
    kind = np.repeat((_WAITED, _CALL, _WORK), (len(waiting), len(heads), len(work.start)))
    place = np.concatenate((waiting, heads, np.arange(len(work.start))))
    order = np.lexsort((kind, at))
    called = work.call >= 0
    run_of = np.where(called, runs.number[work.call], -1).tolist() if len(runs.number) else [-1] * len(work.start)
    offset = np.where(called, runs.start[work.call], 0) if len(runs.start) else np.zeros(len(work.start), np.int64)
    offset = (offset + np.where(called, work.launch_lag, 0)).tolist()
    measured, lane, duration = work.start.tolist(), work.lane.tolist(), work.duration.tolist()
    stream_lag, wait_lag, waits, group = (
        work.stream_lag.tolist(),
        work.wait_lag.tolist(),
        work.waits,
        work.group.tolist(),
    )
    number, since, until = runs.number.tolist(), runs.start.tolist(), runs.end.tolist()
    after, gap, first_start = calls.after.tolist(), calls.gap.tolist(), calls.start.tolist()
    waits_for, lag = calls.waits_for.tolist(), calls.lag.tolist()

    base, ended = [0] * len(heads), [0] * len(after)
    begins, ends = [0] * len(measured), [0] * len(measured)
    last: dict[int, int] = {}
    come: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for what, n in zip(kind[order].tolist(), place[order].tolist(), strict=True):
        if what == _WORK:
            run = run_of[n]
            own = lane[n]
            free = last.get(own)
            moment = base[run] + offset[n] if run >= 0 else measured[n] if free is None else NEVER
            if free is not None and free + stream_lag[n] > moment:  # not by max, which takes twice as long
                moment = free + stream_lag[n]
            if n in waits:
                moment = max(moment, max(ends[other] for other in waits[n]) + wait_lag[n])
            begins[n] = moment
            if group[n] < 0:
                ends[n] = last[own] = moment + duration[n]
            else:  # all of a group end after the last has come
                joint = max(moment, come.get(group[n], NEVER))
                come[group[n]] = joint
                members.setdefault(group[n], []).append(n)
                for each in members[group[n]]:
                    ends[each] = last[lane[each]] = joint + duration[each]
        elif what == _WAITED:
            through, come_back = base[number[n]] + until[n], ends[waits_for[n]] + lag[n]
            ended[n] = come_back if come_back > through else through
        else:
            before = after[n]
            if before < 0:
                moment = first_start[n]
            else:
                moment = (ended[before] if waits_for[before] >= 0 else base[number[before]] + until[before]) + gap[n]
            base[number[n]] = moment - since[n]
    return tuple(np.array(times, dtype=np.int64) for times in (base, ended, begins, ends))  # type: ignore[return-value]


def periods(graph: Graph, times: Times) -> list[Ints]:
    """Times of the steps that count of each device, ns, as `detection.windows` has them: a step begins when the host's
    step before it, and all that was launched before its own, have ended."""
    return [_lane_periods(graph, times, own) for own in graph.windows]


def _lane_periods(graph: Graph, times: Times, windows: pl.DataFrame) -> Ints:
    rank = windows["rank"][0]
    here = (pl.col("rank") == rank) & pl.col("device").eq_missing(windows["device"][0])
    there = np.flatnonzero(graph.work.frame.select(here).to_series().to_numpy())
    order = there[np.argsort(graph.work.launched[there], kind="stable")]
    done = np.append(NEVER, np.maximum.accumulate(times.work_end[order]))

    def moment(at: Ints) -> Ints:
        """When the host is where it was at that time, and all that was launched before has ended."""
        before = np.searchsorted(graph.work.launched[order], at)
        host = _host_moment(graph.calls, times, np.flatnonzero(graph.calls.rank == rank), at)
        return np.asarray(np.maximum(host, done[before]))

    host_begins, host_ends = (moment(windows[name].to_numpy()) for name in ("host_start_ns", "host_end_ns"))
    begins = np.maximum(host_begins, np.append(NEVER, host_ends[:-1]))
    ends = np.maximum(host_ends, np.append(begins[1:], NEVER))
    return np.asarray((ends - begins)[windows["counted"].to_numpy()])


def _host_moment(calls: Calls, times: Times, own: Ints, at: Ints) -> Ints:
    """When the launching threads are where they were at these times: in a call or between two as far as then."""
    if not len(own):
        return at
    measured = np.stack((calls.start[own], calls.end[own]), axis=1).ravel()
    moved = np.stack((times.call_start[own], times.call_end[own]), axis=1).ravel()
    order = np.argsort(measured, kind="stable")
    measured, moved = measured[order], np.maximum.accumulate(moved[order])
    place = np.clip(np.searchsorted(measured, at, side="right") - 1, 0, len(measured) - 2)
    whole = np.maximum(1, measured[place + 1] - measured[place])
    part = np.clip((at - measured[place]) / whole, 0.0, 1.0)
    between = moved[place] + np.rint(part * (moved[place + 1] - moved[place])).astype(np.int64)
    beyond = np.where(at < measured[0], at - measured[0], np.maximum(0, at - measured[-1]))
    return np.asarray(between + beyond)
