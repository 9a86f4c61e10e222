"""Pauses of the launching thread: it does other work, frees a batch, or waits while another thread frees one."""

from __future__ import annotations

import numpy as np

from nightsweep.analysis.diagnosis.replay.edit import change_calls
from nightsweep.analysis.diagnosis.replay.graph import Floats, Graph, Mask, marked
from nightsweep.analysis.diagnosis.replay.masks import of_batches, text
from nightsweep.analysis.diagnosis.thresholds import PAUSE

RELEASE_BYTES_PER_S = (10e9, 3e9)
"""Fastest and slowest rate of freeing pages of 4 KiB, assumed: tests/bench/batch_release.py has 3.6 to 5.6e9."""
MANY = 30
COMPUTING_NS = 500_000
"""An operator that launches takes some 10 us, and a tracer as much; of many, one that has to wait for a core changes
the mean little. Assumed: a sparse Adagrad on the CPU has 199 of 2 ms (tests/labelled, table_knowledge)."""


def pausing(graph: Graph) -> Mask:
    """Calls before which the launching threads do other work than dispatch and loading."""
    return np.asarray(graph.calls.gap - graph.calls.loading_gap >= PAUSE.value)


def working(graph: Graph) -> Mask:
    """Calls before which the script does other work: pauses that are not in the middle of a pass or of the
    optimizer, unless many operators take so long there, in the mean, that they compute on the CPU."""
    calls = graph.calls
    operators, gap = calls.noted - 1, calls.gap - calls.loading_gap
    computing = (operators >= MANY) & (gap >= COMPUTING_NS * operators)
    return pausing(graph) & (~calls.framework | computing) & ~releasing(graph)


def releasing(graph: Graph) -> Mask:
    """Calls before which the launching thread stalls for as long as freeing the shared memory of a pinned batch takes:
    a thread of PyTorch's DataLoader frees it and holds the GIL meanwhile (34 to 54 ms at 192 MB on two cores,
    tests/bench/batch_release.py)."""
    calls, out = graph.calls, np.zeros(len(graph.calls.start), bool)
    pause = calls.gap - calls.loading_gap
    for rank, own in _pinned_bytes(graph).items():
        least, most = _release_ns(own)
        alike = (pause >= least) & (pause <= most)
        out |= alike & pausing(graph) & graph.counted_calls & (calls.rank == rank)
    return out


def freeing_ns(graph: Graph) -> Floats:
    """Of these pauses (calls,), the time to free the pageable memory of a batch that the host has copied since the last
    launch: at most as long as the copy, which touched each page, too. Page-locked batches are freed by a thread of the
    loader."""
    calls, work = graph.calls, graph.work
    copies = of_batches(graph, "pageable") & (work.call >= 0)
    copying, out = np.zeros(len(calls.start)), np.zeros(len(calls.start))
    np.add.at(copying, work.call[copies], work.duration[copies])
    launches = marked(len(calls.start), work.call[~text(graph, "direction", "HtoD")])
    for call in np.flatnonzero(working(graph) & copies.any()).tolist():
        before, most = calls.after[call], 0.0
        while before >= 0 and not launches[before]:
            most += copying[before]
            before = calls.after[before]
        out[call] = min(calls.gap[call] - calls.loading_gap[call], most)
    return out


def without_release(graph: Graph) -> Graph:
    """No thread of the loader holds the GIL while it frees batches."""
    return change_calls(graph, releasing(graph), gap=graph.calls.loading_gap)


def release_ns(graph: Graph) -> tuple[float, float] | None:
    """How long freeing the largest pinned batch may hold the launching thread up, ns; None where nothing does."""
    return max(map(_release_ns, _pinned_bytes(graph).values()), default=None)


def _release_ns(size: Floats) -> tuple[float, float]:
    fastest, slowest = RELEASE_BYTES_PER_S
    return float(size.max() * 1e9 / fastest), float(size.max() * 1e9 / slowest)


def _pinned_bytes(graph: Graph) -> dict[int, Floats]:
    """Sizes of the copies of pinned batches that a loader's thread frees and holds the GIL meanwhile, by rank."""
    copies = of_batches(graph, "pinned") & graph.counted_work & graph.loader_holds_gil
    size = graph.work.frame["bytes"].fill_null(0).to_numpy()
    return {rank: size[copies & (graph.work.rank == rank)] for rank in np.unique(graph.work.rank[copies]).tolist()}
