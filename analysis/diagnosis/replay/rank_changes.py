"""What if: the work of ranks and devices divided otherwise (changes.py has the other changes)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nightsweep.analysis.diagnosis.replay.edit import change_calls, change_work
from nightsweep.analysis.diagnosis.replay.graph import Floats, Graph, Ints, Mask, marked
from nightsweep.analysis.diagnosis.replay.masks import communication, of_batches
from nightsweep.analysis.diagnosis.thresholds import PAUSE

IN_TURNS = 0.1
"""Share of a process's kernels that follow one of another device, at least, where it drives both at once; assumed. With
DataParallel on four H100s most do; of a model whose layers are spread over devices only those at the edges can."""
MORE = 1.1
"""Least factor between a rank's launches in a step and those that it would have; assumed: a few are at the edges of
steps."""


def devices_at_once(graph: Graph) -> dict[int, int]:
    """How many devices each rank's process drives at once: those with at least half as many kernels as the busiest, if
    it launches for them in turns; else 1."""
    work, out = graph.work, dict[int, int]()
    kernels = (work.frame["kind"] == "kernels").to_numpy() & graph.counted_work
    device = work.frame["device"].fill_null(-1).to_numpy()
    for rank in np.unique(work.rank[kernels]).tolist():
        own = np.flatnonzero(kernels & (work.rank == rank))
        devices, counts = np.unique(device[own], return_counts=True)
        busy = devices[2 * counts >= counts.max()]
        order = own[np.argsort(work.launched[own], kind="stable")]
        order = device[order[np.isin(device[order], busy)]]
        turns = np.count_nonzero(order[1:] != order[:-1])
        out[rank] = len(busy) if turns >= IN_TURNS * len(order) else 1
    return out


def with_process_for_each_device(graph: Graph) -> Graph:
    """A process for each device does what the threads of one rank do in turns, since only one of them can hold the GIL;
    it also loads and copies only its share of the batch."""
    calls, work, number = graph.calls, graph.work, devices_at_once(graph)
    share = np.ones(int(max(calls.rank.max(initial=0), work.rank.max(initial=0))) + 1)
    for rank, devices in number.items():
        share[rank] = 1 / devices
    own, copies = share[calls.rank], of_batches(graph) & (share[work.rank] < 1)
    changed = change_work(graph, copies, duration=work.duration * share[work.rank])
    return change_calls(changed, own < 1, gap=calls.gap * own, least=calls.least * own)


def without_others(graph: Graph) -> Graph:
    """No rank waits for another."""
    alone = np.full(len(graph.work.group), -1)
    return change_work(graph, graph.work.group >= 0, group=alone)


def with_device_of_others(graph: Graph, *, shared: bool = False, by_part: bool = False) -> Graph:
    """In no step do a rank's kernels and copies take longer than the other ranks' in the mean; `shared`: each rank's
    take what all ranks' take in the mean, since what is taken from one rank is given to the others; `by_part`: so not
    in each step, but from one collective of a step to the next. Where the number of a rank's launches in a step would
    change by a factor of at least MORE, so does the time of the calls that launch, and of what the host does before
    each."""
    work, chosen = graph.work, graph.counted_work & ~communication(graph)
    ranks, rank = np.unique(work.rank, return_inverse=True)
    if len(ranks) < 2:
        return graph
    step = _steps_of(graph, work.rank, work.launched)
    part = _parts_of(graph, step) if by_part else np.zeros(len(rank), np.int64)
    shape = (len(ranks), int(step.max()) + 1, int(part.max()) + 1)
    place = np.ravel_multi_index((rank, step, part), shape)
    took = np.bincount(place[chosen], work.duration[chosen], int(np.prod(shape))).reshape(len(ranks), -1)
    changed = change_work(graph, chosen, duration=work.duration * _evened(took, shared).ravel()[place])
    return _with_launches_of_others(changed, chosen, shared)


def _with_launches_of_others(graph: Graph, chosen: Mask, shared: bool) -> Graph:
    """The calls that launch this work, and what the host does before each, scaled as the number of launches is."""
    calls, launching = graph.calls, marked(len(graph.calls.rank), graph.work.call[chosen]) & graph.counted_calls
    ranks, rank = np.unique(calls.rank, return_inverse=True)
    if len(ranks) < 2:
        return graph
    step = _steps_of(graph, calls.rank, calls.start)
    shape = (len(ranks), int(step.max()) + 1)
    place = np.ravel_multi_index((rank, step), shape)
    count = np.bincount(place[launching], minlength=int(np.prod(shape))).reshape(shape)
    left = _evened(count, shared).ravel()[place]
    before = np.maximum(calls.gap - calls.loading_gap, 0)
    gap = calls.gap - np.where(before < PAUSE.value, before, 0) * (1 - left)
    uneven = (left < 1 / MORE) | (left > MORE)
    return change_calls(graph, launching & uneven, gap=gap, least=calls.least * left)


def _steps_of(graph: Graph, rank: Ints, at: Ints) -> Ints:
    """Which step of its rank each moment is in, from 1; 0: before the first."""
    step = np.zeros(len(at), np.int64)
    for number, begins in _begins(graph).items():
        own = rank == number
        step[own] = np.searchsorted(begins, at[own], side="right")
    return step


def _parts_of(graph: Graph, step: Ints) -> Ints:
    """How many collectives were launched before each piece of work in its step."""
    work, part = graph.work, np.zeros(len(step), np.int64)
    for number, begins in _begins(graph).items():
        own = work.rank == number
        launched = np.sort(work.launched[own & (work.group >= 0)])
        before = np.append(0, np.searchsorted(launched, begins, side="right"))
        part[own] = np.searchsorted(launched, work.launched[own], side="right") - before[step[own]]
    return part


def _begins(graph: Graph) -> dict[int, Ints]:
    """When each rank's steps begin on the host: those of its last device, where it has several."""
    return {own["rank"][0]: own["host_start_ns"].to_numpy() for own in graph.windows}


def _evened(amount: npt.NDArray[Any], shared: bool) -> Floats:
    """The share of each rank's amount in each step, or part of one, that is left. Both of shape (ranks, steps)."""
    whole = amount.sum(axis=0)
    wanted = whole / len(amount) if shared else np.minimum(amount, (whole - amount) / (len(amount) - 1))
    return np.asarray(wanted / np.maximum(amount, 1))
