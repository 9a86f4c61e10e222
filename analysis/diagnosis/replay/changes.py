"""What if: a graph changed as a remedy would change the run. Each change takes a graph and gives one, so that several
can be made one after the other; only steps that count are changed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Graph, Mask, is_batch, is_read
from nightsweep.analysis.diagnosis.thresholds import PAUSE
from nightsweep.analysis.metrics.steps.parts import LARGE_BYTES, QUEUED_NS

Floats = npt.NDArray[np.float64]

ASYNCHRONOUS_NS = 10_000
"""What the call of a copy takes that the host need not wait for."""
RELEASE_BYTES_PER_S = (10e9, 3e9)
"""Fastest and slowest rate of freeing pages of 4 KiB, assumed: tests/bench/batch_release.py has 3.6 to 5.6e9."""
CACHED_NS = 1_000
"""What asking PyTorch's cache for memory takes in place of the driver."""


def compose(*made: Callable[[Graph], Graph]) -> Callable[[Graph], Graph]:
    """The changes one after the other."""
    return lambda graph: functools.reduce(lambda changed, change: change(changed), made, graph)


def change_calls(graph: Graph, where: Mask | bool, **columns: npt.ArrayLike) -> Graph:
    """The graph with other columns of these calls; the graph itself where there are none."""
    chosen = where & graph.counted_calls
    if not chosen.any():
        return graph
    return dataclasses.replace(graph, calls=_replaced(graph.calls, chosen, columns))


def change_work(graph: Graph, where: Mask, **columns: npt.ArrayLike) -> Graph:
    """The graph with other columns of this work; the graph itself where there is none."""
    chosen = where & graph.counted_work
    if not chosen.any():
        return graph
    return dataclasses.replace(graph, work=_replaced(graph.work, chosen, columns))


def _replaced(table: Any, chosen: Mask, columns: dict[str, npt.ArrayLike]) -> Any:
    new = {name: np.where(chosen, values, getattr(table, name)).astype(np.int64) for name, values in columns.items()}
    return dataclasses.replace(table, **new)


def only_on(before: Graph, after: Graph, rank: int) -> Graph:
    """`before`, with calls and work of this rank as in `after`."""
    return dataclasses.replace(
        before,
        calls=_merged(before.calls, after.calls, before.calls.rank == rank),
        work=_merged(before.work, after.work, before.work.rank == rank),
    )


def _merged(before: Any, after: Any, chosen: Mask) -> Any:
    names = [
        field.name
        for field in dataclasses.fields(before)
        if getattr(before, field.name) is not getattr(after, field.name)
    ]
    return dataclasses.replace(before, **{n: np.where(chosen, getattr(after, n), getattr(before, n)) for n in names})


def without_tracer(graph: Graph, each_ns: float) -> Graph:
    """As if the tracer did not add so much to each call and operator that it noted; of a call's own it takes some in
    the call and some after it. All steps are changed."""
    calls = graph.calls
    in_call = np.minimum(each_ns, np.maximum(0, calls.least - CACHED_NS))
    after = np.minimum(each_ns * calls.noted - in_call, np.maximum(0, calls.gap - calls.loading_gap) * 0.8)
    least, gap = (calls.least - in_call).astype(np.int64), (calls.gap - after).astype(np.int64)
    return dataclasses.replace(graph, calls=dataclasses.replace(calls, least=least, gap=gap))


def without_loading(graph: Graph) -> Graph:
    """Batches are there when the loop asks for them."""
    calls = graph.calls
    gap = calls.gap - np.minimum(calls.loading_gap, np.maximum(calls.gap, 0))
    return change_calls(graph, True, gap=gap, least=np.maximum(0, calls.least - calls.loading))


def pausing(graph: Graph) -> Mask:
    """Calls before which the launching threads do other work than dispatch and loading."""
    return np.asarray(graph.calls.gap - graph.calls.loading_gap >= PAUSE.value)


def without_other_work(graph: Graph) -> Graph:
    """The script does no other work between calls, as far as pauses show it, and copies nothing large from the device
    for it."""
    read = is_read(graph.work.frame, LARGE_BYTES)
    copying = np.zeros(len(graph.calls.start), bool)
    copying[graph.work.call[read & (graph.work.call >= 0)]] = True
    copying |= (graph.calls.after >= 0) & graph.calls.synchronizes & copying[graph.calls.after]
    changed = change_work(graph, read, duration=0)
    changed = change_calls(changed, copying, waits_for=-1, least=np.minimum(graph.calls.least, ASYNCHRONOUS_NS))
    return change_calls(changed, working(graph), gap=graph.calls.loading_gap + freeing_ns(graph))


def working(graph: Graph) -> Mask:
    """Calls before which the script does work of its own: pauses that are not in the middle of a pass."""
    return pausing(graph) & ~graph.calls.framework & ~releasing(graph)


def freeing_ns(graph: Graph) -> Floats:
    """Of these pauses (calls,), the time to free the pageable memory of a batch that the host has copied since the last
    launch: at most as long as the copy, which touched each page, too. Page-locked batches are freed by a thread of the
    loader."""
    calls, work = graph.calls, graph.work
    copies = of_batches(graph, "pageable") & (work.call >= 0)
    copying, launches, out = np.zeros(len(calls.start)), np.zeros(len(calls.start), bool), np.zeros(len(calls.start))
    np.add.at(copying, work.call[copies], work.duration[copies])
    launches[work.call[(work.call >= 0) & ~_text(graph, "direction", "HtoD")]] = True
    for call in np.flatnonzero(working(graph) & copies.any()).tolist():
        before, most = calls.after[call], 0.0
        while before >= 0 and not launches[before]:
            most += copying[before]
            before = calls.after[before]
        out[call] = min(calls.gap[call] - calls.loading_gap[call], most)
    return out


def without_launches(graph: Graph) -> Graph:
    """Launches cost as little as in a captured CUDA graph, and all begins as soon as it can; nor is the thread that
    launches held up in the middle of a pass."""
    work = graph.work
    launched = work.unexplained <= QUEUED_NS  # else something else was on the device
    return change_work(_launched_free(graph, True), launched, launch_lag=np.minimum(work.launch_lag, CACHED_NS))


def _launched_free(graph: Graph, where: Mask | bool) -> Graph:
    """These calls, and what the host does before them, take no time, but for its own work, loading and allocations."""
    calls = graph.calls
    changed = change_calls(graph, where & ~working(graph), gap=np.minimum(calls.gap, calls.loading_gap))
    launching = where & (calls.least < PAUSE.value) & ~calls.allocates
    return change_calls(changed, launching, least=np.minimum(calls.least, calls.loading))


def releasing(graph: Graph) -> Mask:
    """Calls before which the launching thread stalls for as long as freeing the shared memory of a pinned batch takes:
    a thread of PyTorch's DataLoader frees it and holds the GIL meanwhile (34 to 54 ms at 192 MB on two cores,
    tests/bench/batch_release.py). None of a rank with more such pauses than batches, for they are something else."""
    calls, out = graph.calls, np.zeros(len(graph.calls.start), bool)
    pause = calls.gap - calls.loading_gap
    for rank, own in _pinned_bytes(graph).items():
        least, most = _release_ns(own)
        alike = (pause >= least) & (pause <= most)
        found = alike & pausing(graph) & graph.counted_calls & (calls.rank == rank)
        if found.sum() <= (own > own.max() / 2).sum():
            out |= found
    return out


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


def without_release(graph: Graph) -> Graph:
    """No thread of the loader holds the GIL while it frees batches."""
    return change_calls(graph, releasing(graph), gap=graph.calls.loading_gap)


def of_batches(graph: Graph, source: str | None = None) -> Mask:
    """Work that copies batches to a device, from this kind of memory."""
    chosen = is_batch(graph.work.frame)
    return chosen if source is None else chosen & _text(graph, "source", source)


def _text(graph: Graph, column: str, value: str) -> Mask:
    return graph.work.frame.select((pl.col(column) == value).fill_null(False)).to_series().to_numpy()


def waits_for_batches(graph: Graph, copies: Mask) -> Mask:
    """Calls that make these copies, and those right after them that wait for them, as `tensor.to(device)` does."""
    out = np.zeros(len(graph.calls.start), bool)
    made = graph.work.call[copies]
    out[made[made >= 0]] = True
    follows = (graph.calls.after >= 0) & graph.calls.synchronizes & (graph.calls.waits_for >= 0)
    return out | (follows & out[graph.calls.after])


def without_waits(graph: Graph) -> Graph:
    """The host does not wait for its device, except for room in the queue, for memory and for copies of batches: calls
    that wait are not made, nor those that copy what it waits for."""
    waiting = synchronizing(graph)
    copying = np.zeros(len(waiting), bool)
    before = graph.calls.after[waiting]
    before = before[before >= 0]
    copying[before[graph.calls.name.gather(before).str.contains("Memcpy").to_numpy()]] = True
    copying &= ~waits_for_batches(graph, of_batches(graph))
    gone = waiting | copying
    return _launched_free(change_calls(graph, gone, waits_for=-1), gone)


def without_close_waits(graph: Graph) -> Graph:
    """Nor, beside `without_waits`, do launches cost anything between waits that come so close that the host never gets
    ahead by a pause: what it reads decides what it launches next, and no CUDA graph holds both."""
    calls, waiting = graph.calls, synchronizing(graph)
    between = np.zeros(len(waiting), bool)
    for rank in np.unique(calls.rank):
        own = np.flatnonzero(calls.rank == rank)
        apart = np.diff(np.cumsum((calls.gap + calls.least)[own])[waiting[own]])
        close = np.append(apart < PAUSE.value, False)  # after the last wait, and so before the first
        between[own] = close[np.cumsum(waiting[own]) - 1]
    return _launched_free(without_waits(graph), between)


def synchronizing(graph: Graph) -> Mask:
    """Calls that wait for the device in the middle of the step's work: by themselves, or for numbers that they copy."""
    reads = np.zeros(len(graph.calls.start), bool)
    numbers = graph.work.call[
        _text(graph, "direction", "DtoH") | (_text(graph, "direction", "HtoD") & ~of_batches(graph))
    ]
    reads[numbers[numbers >= 0]] = True
    waits = graph.calls.waits_for >= 0
    return waits & (graph.calls.synchronizes | reads) & ~waits_for_batches(graph, of_batches(graph))


def without_offload(graph: Graph) -> Graph:
    """Weights and states live on the device: no large copies to or from the host, no waits for them, and no pauses in
    which the host computes the optimizer's step."""
    either = _text(graph, "direction", "HtoD") | _text(graph, "direction", "DtoH")
    large = either & (graph.work.frame["bytes"].fill_null(0) >= LARGE_BYTES).to_numpy()
    changed = without_work(_unwaited(graph, large), large)
    return change_calls(changed, pausing(graph), gap=changed.calls.loading_gap)


def without_allocations(graph: Graph) -> Graph:
    """Memory is there: no call of the driver's allocator, and none of its waits."""
    least = np.minimum(graph.calls.least, CACHED_NS)
    return change_calls(graph, graph.calls.allocates, waits_for=-1, least=least)


def with_pinned_batches(graph: Graph, bytes_per_s: float) -> Graph:
    """Batches are copied from page-locked memory at this rate, and the host neither waits for that nor frees
    their memory."""
    copies = of_batches(graph, "pageable")
    gap = graph.calls.gap - freeing_ns(graph)
    size = graph.work.frame["bytes"].fill_null(0).to_numpy()
    fast = np.minimum(graph.work.duration, size * 1e9 / bytes_per_s)
    return change_calls(_unwaited(change_work(graph, copies, duration=fast), copies), True, gap=gap)


def with_batches_ahead(graph: Graph) -> Graph:
    """Batches are copied on a stream of their own while the step before computes: nothing waits for them. What the link
    allows is for the caller to see (`copying_ns`)."""
    copies = of_batches(graph)
    return _unwaited(change_work(graph, copies, duration=0), copies)


def copying_ns(graph: Graph) -> float:
    """Time of the copies of batches of a device, ns a step."""
    return float(graph.work.duration[of_batches(graph) & graph.counted_work].sum()) / graph.steps


def _unwaited(graph: Graph, copies: Mask) -> Graph:
    waiting = waits_for_batches(graph, copies)
    return change_calls(graph, waiting, waits_for=-1, least=np.minimum(graph.calls.least, ASYNCHRONOUS_NS))


def communication(graph: Graph) -> Mask:
    return _text(graph, "category", "communication")


def with_messages(graph: Graph, factor: Floats, kept: Floats) -> Graph:
    """Each piece of work takes `factor` of its time, and `kept` of it is launched: so much is left of its launch, or of
    that of all that one call launches, and of what the host did for it since the launch before."""
    work, calls = graph.work, graph.calls
    launched = work.call >= 0
    launches, left = np.zeros(len(calls.start), bool), np.zeros(len(calls.start))
    launches[work.call[launched]] = True
    np.maximum.at(left, work.call[launched], kept[launched])
    share = np.ones(len(calls.start))
    for launch in np.flatnonzero(launches & (left < 1)).tolist():
        call = launch
        while True:
            share[call] = min(share[call], left[launch])
            call = calls.after[call]
            if call < 0 or launches[call]:
                break
    changed = change_work(graph, factor != 1, duration=work.duration * factor)
    return change_calls(changed, share < 1, gap=calls.gap * share, least=calls.least * share)


def without_communication(graph: Graph) -> Graph:
    """Nothing is sent, nor launched to be; ranks still wait for each other."""
    return without_work(graph, communication(graph))


def without_work(graph: Graph, gone: Mask) -> Graph:
    """This work is not done, and not launched."""
    left = np.where(gone, 0.0, 1.0)
    return with_messages(graph, left, left)
