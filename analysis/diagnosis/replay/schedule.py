"""What of running a graph no change touches: the order in which its calls and its work are seen, and what of them
follows each other so plainly that sums and running maxima tell when it ends.

Calls that follow each other without waiting are a run: their times are sums. Work of one stream that one run launched,
and that waits for nothing else, is a stretch: it ends after the larger of two sums, one from the end of the work before
it, one from the start of its run. So only runs, calls that wait and stretches are looked at one by one, which are a
tenth of the calls and work of a trace, or fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nightsweep.analysis.diagnosis.replay.graph import Calls, Graph, Ints, Mask, Work

NEVER = -(1 << 62)
WAITED, CALL, WORK = range(3)
"""Kinds of what is looked at. Of one moment: what has waited ends, then a call follows, then its work begins."""


@dataclass(frozen=True)
class Runs:
    """Runs of calls.

    Attributes:
        number: of the run of each call.
        heads: the calls that begin one; `after`: the run of the call that each of these follows, -1 for none.
        waiting: the calls that wait; `place`: of each call among them, -1 where it does not wait.
    """

    number: Ints
    heads: Ints
    after: Ints
    waiting: Ints
    place: Ints

    @classmethod
    def of(cls, calls: Calls) -> Runs:
        places, waits = np.arange(len(calls.start)), calls.waits_for >= 0
        first = (calls.after != places - 1) | (places == 0)
        first[1:] |= waits[:-1]
        number, heads, waiting = np.cumsum(first) - 1, np.flatnonzero(first), np.flatnonzero(waits)
        place = np.full(len(places), -1)
        place[waiting] = np.arange(len(waiting))
        before = calls.after[heads]
        after = np.where(before >= 0, number[before], -1) if len(heads) else before
        return cls(number, heads, after, waiting, place)


@dataclass(frozen=True)
class Stretches:
    """Stretches of work, in order of their first. Arrays are of each stretch, but for the first three.

    Attributes:
        row: places of the work, stream by stream.
        number: of the stretch of each piece of work, in the order of `row`; `of_work`: in the order of the work.
        first, last: places in `row` of its ends; `longest`: the most work in one.
        lane, group: of its work; `run`: that launched it, and the number of runs where that is not known.
        waits: for which stretches' ends its first waits.
    """

    row: Ints
    number: Ints
    of_work: Ints
    first: Ints
    last: Ints
    longest: int
    lane: Sequence[int]
    group: Sequence[int]
    run: Ints
    waits: Sequence[Sequence[int]]

    @classmethod
    def of(cls, graph: Graph, runs: Runs) -> Stretches:
        work, run = graph.work, _launching_run(graph, runs)
        row = np.argsort(work.lane, kind="stable")
        cut = _cuts(graph, runs, run, row)
        first = np.flatnonzero(cut)
        seen = np.argsort(row[first], kind="stable")
        rank = np.empty(len(first), np.int64)
        rank[seen] = np.arange(len(first))
        number = rank[np.cumsum(cut) - 1] if len(row) else row
        of_work = np.empty(len(row), np.int64)
        of_work[row] = number
        last = np.append(first[1:], len(row))[: len(first)] - 1
        begin = row[first][seen]
        waits: list[Sequence[int]] = [()] * len(first)
        for place, others in work.waits.items():
            waits[of_work[place]] = of_work[list(others)].tolist()
        longest = int((last - first).max(initial=0)) + 1
        return cls(
            row, number, of_work, first[seen], last[seen], longest, work.lane[begin].tolist(),
            work.group[begin].tolist(), run[begin], waits,
        )  # fmt: skip


def _launching_run(graph: Graph, runs: Runs) -> Ints:
    """The run that launched each piece of work; the number of runs where that is not known when the work begins."""
    calls, work = graph.calls, graph.work
    nothing = np.full(len(work.start), len(runs.heads))
    if not len(runs.heads):
        return nothing
    run = runs.number[work.call]
    return np.where((work.call >= 0) & (calls.start[runs.heads[run]] <= work.start), run, nothing)


def _cuts(graph: Graph, runs: Runs, run: Ints, row: Ints) -> Mask:
    """Whether a stretch begins with each piece of work, in the order of `row`."""
    calls, work = graph.calls, graph.work
    ends, begins = np.zeros(len(row), bool), work.group >= 0
    target = calls.waits_for[runs.waiting]
    ends[target] = True  # something waits for its end
    begins[target[work.start[target] >= calls.end[runs.waiting]]] = True
    for place, others in work.waits.items():
        ends[list(others)] = begins[place] = True
        begins[[other for other in others if other >= place]] = True  # is not known yet when it is waited for
    ends |= work.group >= 0
    begins |= np.isin(work.lane, work.lane[_overtaken(work, row)])
    lane, run = work.lane[row], run[row]
    cut = begins[row]
    cut[:1] = True
    cut[1:] |= (lane[1:] != lane[:-1]) | (run[1:] != run[:-1]) | ends[row][:-1]
    return cut


def _overtaken(work: Work, row: Ints) -> Ints:
    """Collectives after which more work of their stream begins before their last rank has come."""
    following = np.full(len(row), len(row))
    same = work.lane[row][1:] == work.lane[row][:-1]
    following[row[:-1][same]] = row[1:][same]
    grouped = np.flatnonzero(work.group >= 0)
    last = np.zeros(int(work.group.max(initial=-1)) + 1, np.int64)
    np.maximum.at(last, work.group[grouped], grouped)
    return grouped[following[grouped] < last[work.group[grouped]]]


@dataclass(frozen=True)
class Schedule:
    """`waits_for`, `joint`: what the graph's calls wait for and the groups of its work, that it was made of; `kind`,
    `place`: what is looked at in turn: a call that waits (place in `Runs.waiting`), a run, or a stretch."""

    waits_for: Ints
    joint: Ints
    runs: Runs
    stretches: Stretches
    kind: Sequence[int]
    place: Sequence[int]

    @classmethod
    def of(cls, graph: Graph) -> Schedule:
        """The schedule of a graph, or that of the graph of which changes made it."""
        known = graph.kept.get(cls)
        if not isinstance(known, cls) or not known._fits(graph):
            known = graph.kept[cls] = cls._make(graph)
        return known

    @classmethod
    def _make(cls, graph: Graph) -> Schedule:
        calls, work, runs = graph.calls, graph.work, Runs.of(graph.calls)
        stretches = Stretches.of(graph, runs)
        # In measured order, for what waits for something ended after it.
        begin = work.start[stretches.row[stretches.first]]
        at = np.concatenate((calls.end[runs.waiting], calls.start[runs.heads], begin))
        counts = (len(runs.waiting), len(runs.heads), len(begin))
        kind, place = np.repeat((WAITED, CALL, WORK), counts), np.concatenate([np.arange(n) for n in counts])
        order = np.lexsort((kind, at))
        return cls(calls.waits_for, work.group, runs, stretches, kind[order].tolist(), place[order].tolist())

    def _fits(self, graph: Graph) -> bool:
        if graph.work.group is not self.joint:
            return False
        before, now = self.waits_for, graph.calls.waits_for
        if now is before or np.array_equal(now, before):
            return True
        return bool((now[now >= 0] == before[now >= 0]).all()) and not _precedes_its_call(graph)


def _precedes_its_call(graph: Graph) -> bool:
    """Whether clocks differ so much that some work begins before the call that launches it."""
    called = np.flatnonzero(graph.work.call >= 0)
    return bool((graph.work.start[called] < graph.calls.start[graph.work.call[called]]).any())
