"""Running a graph: when everything begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nightsweep.analysis.diagnosis.replay.graph import Graph, Ints
from nightsweep.analysis.diagnosis.replay.schedule import NEVER, WAITED, WORK, Schedule, Stretches


@dataclass(frozen=True)
class Times:
    """When calls and work begin and end, ns, in the order of the graph."""

    call_start: Ints
    call_end: Ints
    work_start: Ints
    work_end: Ints


@dataclass(frozen=True)
class _Sums:
    """Times of calls since some moment of their run; and of work, in the order of `Stretches.row`, how long after what
    came before its stretch it begins at the soonest (`begun`), and how long after the moment of its run the stretch
    would have to have begun for it to begin in time (`launched`)."""

    start: Ints
    end: Ints
    begun: Ints
    launched: Ints

    @classmethod
    def of(cls, graph: Graph, stretches: Stretches) -> _Sums:
        calls, work, row = graph.calls, graph.work, stretches.row
        end = np.cumsum(calls.gap + calls.least)
        start = end - calls.least
        took = work.duration[row]
        whole = np.cumsum(work.stream_lag[row] + took)
        begun = whole - took
        begun -= begun[stretches.first][stretches.number]
        call = work.call[row]
        # Work without a call begins when the one before it has ended; where there is none, when it was measured to.
        offset = np.full(len(row), NEVER)
        alone = np.append(True, work.lane[row][1:] != work.lane[row][:-1])[: len(row)]
        offset[alone] = work.start[row[alone]]
        if len(start):
            offset = np.where(call >= 0, start[call] + work.launch_lag[row], offset)
        return cls(start, end, begun, _running_max(offset - begun, stretches))


def _running_max(values: Ints, stretches: Stretches) -> Ints:
    """The largest so far in each stretch: over twice as much with each round."""
    inside = np.arange(len(values)) - stretches.first[stretches.number]
    out, reach = values.copy(), 1
    while reach < stretches.longest:
        np.maximum(out[reach:], out[:-reach], out=out[reach:], where=inside[reach:] >= reach)
        reach *= 2
    return out


def replay(graph: Graph) -> Times:
    """Run the graph. Takes about 0.2 s for a million kernels that one thread launches one by one."""
    calls, work, schedule = graph.calls, graph.work, Schedule.of(graph)
    runs, stretches = schedule.runs, schedule.stretches
    sums = _Sums.of(graph, stretches)
    base, ended, come, ends = _run(graph, schedule, sums)
    call_start = base[runs.number] + sums.start
    call_end = base[runs.number] + sums.end
    call_end[runs.waiting] = np.where(calls.waits_for[runs.waiting] >= 0, ended, call_end[runs.waiting])
    begins = sums.begun + np.maximum(come[stretches.number], base[stretches.run][stretches.number] + sums.launched)
    start, end = np.empty(len(begins), np.int64), np.empty(len(begins), np.int64)
    start[stretches.row] = begins
    end[stretches.row] = np.where(
        work.group[stretches.row] >= 0, ends[stretches.number], begins + work.duration[stretches.row]
    )
    return Times(call_start, call_end, start, end)


def _run(graph: Graph, schedule: Schedule, sums: _Sums) -> tuple[Ints, Ints, Ints, Ints]:
    """One after the other, in measured order. Plain lists: a step of this loop takes less than numpy's to look at one
    number.

    Returns:
        The moment that each run of calls is counted from, and 0 for what none launched; ends of the calls that wait;
        when each stretch of work could begin for what came before it; ends of stretches.
    """
    calls, work, runs, stretches = graph.calls, graph.work, schedule.runs, schedule.stretches
    before, waiting = calls.after[runs.heads], runs.waiting
    waited = np.where(before >= 0, calls.waits_for[before] >= 0, False) if len(before) else before
    since = np.where(waited, 0, sums.end[before]) + calls.gap[runs.heads] if len(before) else before
    since = (np.where(before >= 0, since, calls.start[runs.heads]) - sums.start[runs.heads]).tolist()
    held = np.where(waited, runs.place[before], -1).tolist() if len(before) else []
    after = runs.after.tolist()
    target = calls.waits_for[waiting]
    wanted = (np.where(target >= 0, stretches.of_work[target], -1) if len(target) else target).tolist()
    caller, until, lag = runs.number[waiting].tolist(), sums.end[waiting].tolist(), calls.lag[waiting].tolist()
    begin = stretches.row[stretches.first]
    stream_lag, wait_lag, duration = (
        column[begin].tolist() for column in (work.stream_lag, work.wait_lag, work.duration)
    )
    whole = sums.begun[stretches.last] + work.duration[stretches.row[stretches.last]]
    rest, most = whole.tolist(), (whole + sums.launched[stretches.last]).tolist()
    lane, group, run, waits = stretches.lane, stretches.group, stretches.run.tolist(), stretches.waits

    base, ended = [0] * (len(runs.heads) + 1), [0] * len(waiting)
    come, ends = [0] * len(begin), [0] * len(begin)
    last = [NEVER] * (int(work.lane.max(initial=-1)) + 1)
    joint: dict[int, int] = {}
    members: dict[int, list[int]] = {}
    for what, n in zip(schedule.kind, schedule.place, strict=True):
        if what == WORK:
            own, launched = lane[n], base[run[n]] + most[n]
            moment = last[own] + stream_lag[n]
            for other in waits[n]:
                if (able := ends[other] + wait_lag[n]) > moment:  # not by max, which takes twice as long
                    moment = able
            come[n] = moment
            moment += rest[n]
            if launched > moment:
                moment = launched
            if group[n] < 0:
                ends[n] = last[own] = moment
            else:  # all of a group end after the last has come
                all_come = max(moment - duration[n], joint.get(group[n], NEVER))
                joint[group[n]] = all_come
                members.setdefault(group[n], []).append(n)
                for each in members[group[n]]:
                    ends[each] = last[lane[each]] = all_come + duration[each]
        elif what == WAITED:
            if wanted[n] >= 0:
                through, back = base[caller[n]] + until[n], ends[wanted[n]] + lag[n]
                ended[n] = back if back > through else through
        else:
            base[n] = (base[after[n]] if held[n] < 0 else ended[held[n]]) + since[n]
    return tuple(np.array(times, dtype=np.int64) for times in (base, ended, come, ends))  # type: ignore[return-value]
