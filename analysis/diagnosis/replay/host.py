"""The calls of a graph: what each follows, what it waits for, and how much of it is waiting for a batch."""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Calls, Ints, Mask, is_batch, is_read, marked, where
from nightsweep.analysis.diagnosis.replay.measured import Measured, by_rank
from nightsweep.analysis.diagnosis.thresholds import PAUSE
from nightsweep.analysis.metrics.steps import loader, parts, selection

WAITS = r"Synchronize$|^cudaMemcpy$|^cuMemcpy(?:HtoD|DtoH)\w*$"
"""Calls that come back when work is done."""
RETURN_NS, RETURN = 60_000, 0.02
"""A call that waited for work returns this long after its end at the latest, or this share of its length; assumed."""
NOTICEABLE_NS = 30_000
"""A copy or an allocation takes some 5 us; one that takes longer may have waited."""
STUCK_NS = 1_000_000
"""A launch that takes longer waits for room in the queue."""
WAIT_NS = 3_000
"""What a call takes that waits for work which is done."""


def build_calls(m: Measured) -> Calls:
    rank, start, end = (m.called[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    name = m.called["name"]
    allocates = name.str.contains(parts.ALLOCATOR).to_numpy()
    synchronizes = name.str.contains(WAITS).to_numpy() & ~allocates
    after, gap = _order(rank, start, end)
    waits_for, lag = _blocking(m, synchronizes, allocates)
    took = end - start
    waited = np.zeros(len(start), bool)
    waited[waits_for >= 0] = m.end[waits_for[waits_for >= 0]] > start[waits_for >= 0]
    loading_gap, loading = _loading(m, synchronizes, after, gap)
    return Calls(
        rank, start, end, name, allocates, synchronizes, after, gap,
        np.where(waited, np.minimum(took, WAIT_NS), took), waits_for, lag, loading_gap, loading,
        _in_framework(m, start, gap), _noted(m, start, end, gap),
    )  # fmt: skip


def _order(rank: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The call that each call follows: of its rank's, the last that had ended; and the time between them."""
    after = np.full(len(start), -1)
    for own in by_rank(rank):
        ended = own[np.argsort(end[own], kind="stable")]
        place = np.searchsorted(end[ended], start[own], side="right") - 1
        ended = np.append(ended, -1)  # at place -1
        late = np.flatnonzero(ended[place] >= own)  # calls without length, at one time
        while len(late):
            place[late] -= 1
            late = late[ended[place[late]] >= own[late]]
        after[own] = ended[place]
    return after, np.where(after >= 0, start - end[after], 0)


def _blocking(m: Measured, synchronizes: Mask, allocates: Mask) -> tuple[Ints, Ints]:
    """The work that each call waits for (-1 for none), and how long after its end the call comes back, ns."""
    rank, start, end = (m.called[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
    waits_for, lag = np.full(len(start), -1), np.zeros(len(start), np.int64)
    # A call that copies from page-locked memory waits for nothing, however long it takes, unless it is made to.
    pinned = where(m.frame, (pl.col("direction") == "HtoD") & (pl.col("source") == "pinned"))
    copies = marked(len(start), m.call[~pinned]) & m.called["name"].str.contains("Memcpy").to_numpy()
    took = end - start
    may = synchronizes | ((took > NOTICEABLE_NS) & (allocates | copies)) | (took > STUCK_NS)
    for there in by_rank(m.rank):
        own = np.flatnonzero(rank == m.rank[there[0]])
        asked = own[may[own]]
        waits_for[asked], lag[asked] = _waited_for(m, asked, there)
    return waits_for, lag


def _waited_for(m: Measured, asked: Ints, there: Ints) -> tuple[Ints, Ints]:
    """What these calls wait for, and the lags, ns: the last of this work to end within the call."""
    start, end = (m.called[name].to_numpy()[asked] for name in ("start_ns", "end_ns"))
    ended = there[np.argsort(m.end[there], kind="stable")]
    place = np.searchsorted(m.end[ended], end, side="right") - 1
    last = ended[np.maximum(place, 0)]
    soon = np.maximum(RETURN_NS, RETURN * (end - start))
    waited = (place >= 0) & (m.end[last] > start) & (end - m.end[last] <= soon)
    return np.where(waited, last, -1), np.where(waited, end - m.end[last], 0)


def _inside(m: Measured, pattern: str, start: Ints, gap: Ints) -> Ints:
    """How much of the time before each call lies in ranges of such names, ns."""
    out = np.zeros(len(start), np.int64)
    rank = m.called["rank"].to_numpy()
    for each, own in m.events.items():
        here = np.flatnonzero(rank == each)
        covered = selection.pass_time(own["nvtx"], pattern)
        out[here] = parts.lengths_inside(covered, start[here] - np.maximum(gap[here], 0), start[here])
    return out


def _in_framework(m: Measured, start: Ints, gap: Ints) -> Mask:
    """Whether what passes before each call is the framework's. Backward passes run in threads of their own: all but
    that which copies batches and runs the optimizer, or, where none does, launches first."""
    rank, thread = (m.called[name].to_numpy() for name in ("rank", "thread"))
    found = 2 * _inside(m, parts.FRAMEWORK, start, gap) > gap
    mains = m.call[(where(m.frame, pl.col("category") == "optimizer") | is_batch(m.frame)) & (m.call >= 0)]
    for own in by_rank(rank):
        threads, counts = np.unique(thread[mains[rank[mains] == rank[own[0]]]], return_counts=True)
        found[own] |= thread[own] != (threads[np.argmax(counts)] if len(threads) else thread[own[0]])
    return found


def _noted(m: Measured, start: Ints, end: Ints, gap: Ints) -> Ints:
    """How many calls and operators a tracer noted for each call: itself, and what began since the one before it."""
    rank, thread = m.called["rank"].to_numpy(), m.called["thread"]
    out = np.ones(len(start), np.int64)
    for each, own in m.events.items():
        here = np.flatnonzero(rank == each)
        launching = pl.col("thread").cast(pl.Int64).is_in(thread.gather(here).unique().implode())
        begun = np.sort(own["operators"].filter(launching)["start_ns"].to_numpy()) if "operators" in own else here[:0]
        since = np.searchsorted(begun, start[here] - np.maximum(gap[here], 0))
        out[here] += np.searchsorted(begun, end[here]) - since
    return out


def _loading(m: Measured, synchronizes: Mask, after: Ints, gap: Ints) -> tuple[Ints, Ints]:
    """Of the time before each call, and of the call itself, what its thread waited for a batch, ns. A loader that
    launches one piece of work after another, as one that draws samples on the device, does not wait.

    Where no range would tell, it is what passes before the copy of a batch since the last launch, outside of ranges of
    other work, but for what usually lies between two calls.
    """
    rank, start, end, thread = (m.called[name].to_numpy() for name in ("rank", "start_ns", "end_ns", "thread"))
    before, inside = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
    if any(parts.marks_loaders(own["nvtx"]) for own in m.events.values()):
        for each, events in m.events.items():
            own = np.flatnonzero(rank == each)
            covered = loader.waits(events, np.unique(thread[own]).tolist())
            before[own] = parts.lengths_inside(covered, start[own] - np.maximum(gap[own], 0), start[own])
            inside[own] = parts.lengths_inside(covered, start[own], end[own])
        works = synchronizes | marked(len(start), m.call)
        inside[works & (end - start < PAUSE.value)] = 0
        before[works & (after >= 0) & works[after] & (gap < PAUSE.value)] = 0
        return before, inside
    launches = marked(len(start), m.call)
    usual = int(np.median(gap[gap >= 0])) if (gap >= 0).any() else 0
    copied = m.call[is_batch(m.frame)]
    working = _inside(m, parts.WORKING, start, gap)
    read = marked(len(start), m.call[is_read(m.frame, parts.LEAST_BATCH_BYTES)])
    for call in np.unique(copied[copied >= 0]).tolist():
        last = call
        while last >= 0 and not (launches[last] and last != call):
            last = after[last]
        if last >= 0 and read[last]:
            continue  # the host works with what it has copied from the device
        while call >= 0:
            before[call] = max(0, gap[call] - working[call] - usual)
            call = after[call]
            if launches[call]:
                break
    return before, inside
