"""The work of a graph: what each piece waits for, on its own device and on other ranks."""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Ints, Mask, Work
from nightsweep.analysis.diagnosis.replay.measured import KEYS, Measured, by_rank
from nightsweep.analysis.metrics.steps.parts import QUEUED_NS

LAUNCH_NS = 6_000
"""The most that a launch on an idle device is taken to need till its work begins."""
STREAM_NS = 2_000
"""The most that is taken to lie between two pieces of work on a stream that were launched in time."""
OVERLAP_NS = 2_000
"""Clocks may be so far apart: work that waits for other work begins no earlier before its end."""
UNEXPLAINED_NS, BESIDE_NS = 5_000, 20_000
"""Work that begins later than this after all that it is known to wait for also waits for work on another stream, if
some has ended so shortly before."""
_LONG_AGO = -(10**15)


def build_work(m: Measured) -> Work:
    count = len(m.start)
    previous = _previous(m.lane)
    launch, stream = m.start - m.launched, np.where(previous >= 0, m.start - m.end[previous], -_LONG_AGO)
    least_launch, least_stream = np.full(count, LAUNCH_NS), np.zeros(count, np.int64)
    for own in by_rank(m.rank):
        called, followed = own[m.call[own] >= 0], own[previous[own] >= 0]
        if len(called):
            least_launch[own] = min(LAUNCH_NS, int(np.percentile(launch[called], 2)))
        if len(followed):
            least_stream[own] = min(STREAM_NS, max(0, int(np.percentile(stream[followed], 5))))
    waits = _told_to_wait(m)
    ready = np.maximum(m.launched + least_launch, np.where(previous >= 0, m.end[previous] + least_stream, _LONG_AGO))
    others = np.full(count, _LONG_AGO)
    for place, some in waits.items():
        others[place] = m.end[some].max()
    _beside(m, m.start - np.maximum(ready, others), waits, others)
    by_launch = (m.launched + least_launch >= others) & (m.launched + least_launch >= ready)
    by_launch &= (m.call >= 0) | (previous < 0)
    by_stream = ~by_launch & (previous >= 0) & (ready >= others)
    unexplained = np.maximum(0, m.start - np.maximum(ready, others))
    # What else was on the device is on it whenever this work could begin: its part of the lag stays for both reasons.
    occupied = by_launch & (previous >= 0) & (unexplained > QUEUED_NS)
    group, duration = _collectives(m)
    return Work(
        m.rank, m.start, m.end, m.lane, previous, m.call, m.launched, duration,
        np.where(by_launch, launch, np.minimum(least_launch, launch)),
        np.where(by_stream, stream, np.where(occupied, unexplained, np.minimum(least_stream, stream))),
        waits, np.where(by_launch | by_stream, np.minimum(0, m.start - others), m.start - others), group, m.frame,
        unexplained,
    )  # fmt: skip


def _previous(lane: Ints) -> Ints:
    """The work before each on its stream, -1 for none."""
    order = np.argsort(lane, kind="stable")
    out = np.full(len(lane), -1)
    same = lane[order][1:] == lane[order][:-1]
    out[order[1:][same]] = order[:-1][same]
    return out


def _told_to_wait(m: Measured) -> dict[int, list[int]]:
    """Work on other streams, one of each, that work waits for by cudaStreamWaitEvent: what was launched there last
    before the call, if it had ended. The call before a launch on the same thread is for what that launches."""
    waits: dict[int, list[int]] = {}
    rank, thread = m.called["rank"].to_numpy(), m.called["thread"].to_numpy()
    told = np.flatnonzero(m.called["name"].str.contains("StreamWaitEvent").to_numpy())
    launched = np.flatnonzero(m.call >= 0)
    launched = launched[np.argsort(m.call[launched], kind="stable")]
    target: dict[int, int] = {}
    for each, number in set(zip(rank[told].tolist(), thread[told].tolist(), strict=True)):
        own = launched[(rank[m.call[launched]] == each) & (thread[m.call[launched]] == number)]
        asks = told[(rank[told] == each) & (thread[told] == number)]
        place = np.searchsorted(m.call[own], asks)
        target |= {int(own[at]): int(ask) for at, ask in zip(place, asks, strict=True) if at < len(own)}
    if not target:
        return waits
    places, asks = np.fromiter(target.keys(), np.int64), np.fromiter(target.values(), np.int64)
    for lane in np.unique(m.lane[launched]):
        there = launched[m.lane[launched] == lane]
        here = np.flatnonzero((m.rank[places] == m.rank[there[0]]) & (m.lane[places] != lane))
        before = np.searchsorted(m.call[there], asks[here]) - 1
        last = there[np.maximum(before, 0)]
        fits = (before >= 0) & (m.end[last] <= m.start[places[here]] + OVERLAP_NS)
        for place, other in zip(places[here][fits].tolist(), last[fits].tolist(), strict=True):
            waits.setdefault(place, []).append(other)
    return waits


def _beside(m: Measured, late: Ints, waits: dict[int, list[int]], others: Ints) -> None:
    """Add to `waits` and `others` what explains work that is late for no other reason: what ended on another stream
    right before; else what began there last and still runs, beside which it had to find room (with a lag below 0)."""
    for own in by_rank(m.rank):
        ended = own[np.argsort(m.end[own], kind="stable")]
        places = own[late[own] > UNEXPLAINED_NS]
        start = m.start[places]
        at = np.searchsorted(m.end[ended], start, side="right") - 1
        begun = np.searchsorted(m.start[own], start) - 1
        over, running = ended[np.maximum(at, 0)], own[np.maximum(begun, 0)]
        explains = (at >= 0) & (start - m.end[over] < BESIDE_NS) & _is_before(m, over, places)
        other = np.where(explains, over, running)
        explains |= (begun >= 0) & (m.end[running] > start) & _is_before(m, running, places)
        places, other = places[explains], other[explains]
        others[places] = np.maximum(others[places], m.end[other])
        for place, one in zip(places.tolist(), other.tolist(), strict=True):
            waits.setdefault(place, []).append(one)


def _is_before(m: Measured, other: Ints, places: Ints) -> Mask:
    """Whether that work began on another stream before this."""
    return np.asarray((m.lane[other] != m.lane[places]) & (m.start[other] < m.start[places]))


def _collectives(m: Measured) -> tuple[Ints, Ints]:
    """The group of each piece of work (-1 for none), and how long it runs: of a group's, since the last has come."""
    group, duration = np.full(len(m.start), -1), m.end - m.start
    calls = pl.concat([_matched(rank, own["collectives"]) for rank, own in sorted(m.events.items())])
    number = pl.struct("lane", "collective", "sequence").rank("dense").cast(pl.Int64) - 1
    named = calls.with_columns(group=number).select(*KEYS, "group").unique(KEYS, keep="first")
    joined = m.frame.select(KEYS).join(named, on=KEYS, how="left", maintain_order="left")
    found = joined["group"].fill_null(-1).to_numpy()
    inside = np.flatnonzero(found >= 0)
    if len(inside):
        last = np.full(int(found.max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(last, found[inside], m.start[inside])
        since = m.end[inside] - last[found[inside]]
        good = (since > 0) & (np.bincount(found[inside])[found[inside]] > 1)
        group[inside[good]], duration[inside[good]] = found[inside[good]], since[good]
    return group, duration


def _matched(rank: int, collectives: pl.DataFrame) -> pl.DataFrame:
    """Of a rank's collectives those that other ranks have, too."""
    rows = collectives.filter(pl.col("late_rank").is_not_null(), pl.col("matched_ranks") > 1)
    ints = (pl.col(name).cast(pl.Int64) for name in ("device", "stream", "start_ns", "sequence"))
    texts = (pl.col(name).cast(pl.String) for name in ("lane", "collective"))
    return rows.select(pl.lit(rank, dtype=pl.Int64).alias("rank"), *ints, *texts)
