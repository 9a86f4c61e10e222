"""What if: a graph changed as a remedy would change the run. Each change takes a graph and gives one, so that several
can be made one after the other; only steps that count are changed.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from nightsweep.analysis.diagnosis.replay import masks
from nightsweep.analysis.diagnosis.replay.edit import change_calls, change_work
from nightsweep.analysis.diagnosis.replay.graph import Floats, Graph, Mask, is_read, marked
from nightsweep.analysis.diagnosis.replay.masks import communication, of_batches, synchronizing, text, waits_for_batches
from nightsweep.analysis.diagnosis.replay.pauses import freeing_ns, pausing, working
from nightsweep.analysis.diagnosis.thresholds import PAUSE
from nightsweep.analysis.metrics.steps.parts import LARGE_BYTES, QUEUED_NS

CACHED_NS = 1_000
"""What asking PyTorch's cache for memory takes in place of the driver."""
ASYNCHRONOUS_NS = 10_000
"""What the call of a copy takes that the host need not wait for."""


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


def without_other_work(graph: Graph) -> Graph:
    """The script does no other work between calls, as far as pauses show it, and copies nothing large from the device
    for it."""
    read = is_read(graph.work.frame, LARGE_BYTES)
    copying = marked(len(graph.calls.start), graph.work.call[read])
    copying |= (graph.calls.after >= 0) & graph.calls.synchronizes & copying[graph.calls.after]
    changed = change_work(graph, read, duration=0)
    changed = change_calls(changed, copying, waits_for=-1, least=np.minimum(graph.calls.least, ASYNCHRONOUS_NS))
    return change_calls(changed, working(graph), gap=graph.calls.loading_gap + freeing_ns(graph))


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
    return change_calls(changed, where & ~calls.allocates, least=np.minimum(calls.least, calls.loading))


def without_waits(graph: Graph) -> Graph:
    """The host does not wait for its device, except for room in the queue, for memory and for copies of batches: calls
    that wait are not made, nor those that copy what it waits for."""
    return _without_waiting(graph, synchronizing(graph))


def _without_waiting(graph: Graph, waiting: Mask) -> Graph:
    before = marked(len(waiting), graph.calls.after[waiting])
    copying = before & graph.calls.name.str.contains("Memcpy").to_numpy()
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
    return _launched_free(_without_waiting(graph, waiting), between)


def without_offload(graph: Graph) -> Graph:
    """Weights and states live on the device: no large copies to or from the host, no waits for them, and no pauses in
    which the host computes the optimizer's step."""
    either = text(graph, "direction", "HtoD") | text(graph, "direction", "DtoH")
    large = either & (graph.work.frame["bytes"].fill_null(0) >= LARGE_BYTES).to_numpy()
    changed = without_work(_unwaited(graph, large), large)
    return change_calls(changed, pausing(graph), gap=changed.calls.loading_gap)


def without_allocations(graph: Graph) -> Graph:
    """Memory is there: no call of the driver's allocator, and none of its waits."""
    least = np.minimum(graph.calls.least, CACHED_NS)
    return change_calls(graph, graph.calls.allocates, waits_for=-1, least=least)


def with_pinned_batches(graph: Graph, bytes_per_s: float, *, stalls: bool = False) -> Graph:
    """Batches are copied from page-locked memory at this rate, and the host neither waits for that nor frees
    their memory. `stalls`: a thread of the loader frees it, and holds the host up as long."""
    copies = of_batches(graph, "pageable")
    gap = graph.calls.gap - (0 if stalls else freeing_ns(graph))
    size = graph.work.frame["bytes"].fill_null(0).to_numpy()
    fast = np.minimum(graph.work.duration, size * 1e9 / bytes_per_s)
    return change_calls(_unwaited(change_work(graph, copies, duration=fast), copies), True, gap=gap)


def with_batches_ahead(graph: Graph) -> Graph:
    """Batches are copied on a stream of their own while the step before computes: nothing waits for them. What the link
    allows is for the caller to see (`copying_ns`)."""
    copies = of_batches(graph)
    return _unwaited(change_work(graph, copies, duration=0), copies)


def copying_ns(graph: Graph, rank: int | None = None) -> float:
    """Time of the copies of batches of a device, ns a step, of this rank, or in the mean."""
    of_rank = True if rank is None else graph.work.rank == rank
    chosen = of_batches(graph) & graph.counted_work & of_rank
    return float(graph.work.duration[chosen].sum()) / graph.device_steps(rank)


def _unwaited(graph: Graph, copies: Mask) -> Graph:
    waiting = waits_for_batches(graph, copies)
    return change_calls(graph, waiting, waits_for=-1, least=np.minimum(graph.calls.least, ASYNCHRONOUS_NS))


def with_messages(graph: Graph, factor: Floats, kept: Floats) -> Graph:
    """Each piece of work takes `factor` of its time, and `kept` of it is launched: so much is left of its launch, or of
    that of all that one call launches, and of what the host did for it since the launch before."""
    work, calls = graph.work, graph.calls
    launched = work.call >= 0
    left, share = np.zeros(len(calls.start)), np.ones(len(calls.start))
    np.maximum.at(left, work.call[launched], kept[launched])
    call, launch = masks.leading_up(graph)
    np.minimum.at(share, call, left[launch])
    changed = change_work(graph, factor != 1, duration=work.duration * factor)
    return change_calls(changed, share < 1, gap=calls.gap * share, least=calls.least * share)


def without_communication(graph: Graph) -> Graph:
    """Nothing is sent, nor launched to be; ranks still wait for each other."""
    return without_work(graph, communication(graph))


def without_work(graph: Graph, gone: Mask) -> Graph:
    """This work is not done, and not launched."""
    left = np.where(gone, 0.0, 1.0)
    return with_messages(graph, left, left)
