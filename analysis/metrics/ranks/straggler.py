"""The rank that others waited for, and what it did in that time.

    waits = straggler.waits_by_rank(table)                  # `table` of collectives.match_ranks
    rows = straggler.straggler_rows(events_of_rank_2, table, 2)

Counted is the time in which this rank alone was missing: from the start of the last of the others to its own start, or
until all others had left, as they may where it only receives. Its GPU's work explains this time first; while the GPU
was idle, the thread that launched the collective explains it, up to the launch; the rest, from the launch to the start,
is the launch itself (queued). A backward pass runs in a separate thread, which waits for work until the step loop's
thread gets there: then the range of the step loop's thread explains the time.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.steps import layers, selection
from nightsweep.analysis.metrics.steps.layers import Segments
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import NCCL_KERNEL
from nightsweep.analysis.tables.traces import STRAGGLERS

_SPAN = ("name", "start_ns", "end_ns")
_CALLS = (
    ("sync", r"(?i)synchronize|^cuda?(Stream|Event)Query"),
    (
        "allocator",
        r"(?i)alloc|^cuda?(Mem)?Free|^cuMem(Create|Map|Unmap|Release|Address|SetAccess)|Host(Un)?[Rr]egister",
    ),
    ("launch", r"(?i)launch"),
)


def waits_by_rank(table: pl.DataFrame) -> pl.DataFrame:
    """The table `waited_for`: how long others waited for each rank that came last, in all and in each step.

    late_ns is the wait_ns of the others, summed. A null step stands for the whole table, also outside of steps; there
    the rank that others waited for longest is first.
    """
    others = table.filter(pl.col("rank") != pl.col("late_rank"))
    own = table.filter(pl.col("rank") == pl.col("late_rank"))
    total = _waits(others, own, ["late_rank"]).with_columns(step=pl.lit(None, pl.Int32))
    steps = _waits(others, own, ["late_rank", "step"]).filter(pl.col("step").is_not_null())
    in_order = (total.sort("late_ns", "late_rank", descending=[True, False]), steps.sort("step", "late_rank"))
    names = (pl.col("late_rank").alias("rank"), "step", "late_ns", "collectives")
    return pl.concat([part.select(names) for part in in_order])


def _waits(others: pl.DataFrame, own: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    waits = others.group_by(key).agg(late_ns=pl.col("wait_ns").sum())
    counts = own.group_by(key).agg(collectives=pl.len().cast(pl.Int64))
    found = waits.join(counts, on=key, how="left", nulls_equal=True).with_columns(pl.col("collectives").fill_null(0))
    return found.select(*key, "late_ns", "collectives")


def straggler_rows(events: selection.Events, table: pl.DataFrame, rank: int) -> pl.DataFrame:
    """What this rank did while it alone was missing: rows of STRAGGLERS, the longest of a step first.

    Args:
        events: its trace, on the clock of `table`.
        table: of `collectives.match_ranks`.
        rank: the late rank.
    """
    own = (pl.col("rank") == rank) & (pl.col("late_rank") == rank)
    until = pl.min_horizontal("start_ns", "others_end_ns")
    late = table.with_columns(until_ns=until).filter(own, pl.col("until_ns") > pl.col("others_start_ns"))
    parts = [_device_rows(events, part) for part in late.partition_by("process", "device", maintain_order=True)]
    found = pl.concat([column.empty(STRAGGLERS), *parts])
    summed = found.group_by("rank", "step", "instead", "name").agg(pl.col("duration_ns").sum())
    whole = summed.with_columns(late_ns=pl.col("duration_ns").sum().over("step"))
    in_order = ["step", "duration_ns", "instead", "name"]
    return column.conform(whole, STRAGGLERS).sort(in_order, descending=[False, True, False, False]).collect()


def _device_rows(events: selection.Events, late: pl.DataFrame) -> pl.DataFrame:
    spans = intervals.union(late.select("others_start_ns", "until_ns").to_numpy())
    work = layers.overlay(_gpu_layers(events, late), spans)
    firsts = [events[kind]["start_ns"].min() for kind in ("kernels", "copies", "memsets", "runtime")]
    since = min(int(first) for first in firsts if isinstance(first, int))  # when the trace begins
    parts = []
    for part in late.partition_by("thread", maintain_order=True):
        doing = layers.overlay(_thread_layers(events, part), spans)
        parts += _split(part, since, work, doing.without(work.spans))
    return pl.concat([column.empty(STRAGGLERS), *parts])


def _split(late: pl.DataFrame, since: int, work: Segments, doing: Segments) -> list[pl.DataFrame]:
    """Rows of STRAGGLERS of the collectives of a thread; of each they add up to the time in which the rank was missing.
    `doing`: what the thread did where the GPU did no `work`."""
    first, end = (late[name].to_numpy() for name in ("others_start_ns", "until_ns"))
    start = np.clip(since, first, end)
    launched = late["launch_ns"].is_not_null().to_numpy()
    launch = np.clip(late["launch_ns"].fill_null(0).to_numpy(), start, end)
    idle = [at - intervals.length_before(work.spans, at) for at in (start, launch, end)]
    plain = {
        "unrecorded": start - first,
        "unknown": np.where(launched, 0, idle[2] - idle[0]),
        "queued": np.where(launched, idle[2] - idle[1], 0),
        "nothing": np.where(launched, idle[1] - idle[0], 0),
    }
    found = [work.during(start, end), doing.during(start, np.where(launched, launch, start))]
    np.subtract.at(plain["nothing"], found[1][0], found[1][2])
    rows = [(np.arange(len(first)), [(label, None)] * len(first), length) for label, length in plain.items()]
    rows += [
        (of, [segments.labels[number] for number in place.tolist()], length)
        for segments, (of, place, length) in zip((work, doing), found, strict=True)
    ]
    return [
        late.select("rank", "step")[of]
        .with_columns(
            late_ns=pl.lit(None, pl.Int64),
            instead=pl.Series([label for label, _ in labels], dtype=pl.String),
            name=pl.Series([name for _, name in labels], dtype=pl.String),
            duration_ns=pl.Series(length, dtype=pl.Int64),
        )
        .filter(pl.col("duration_ns") > 0)
        for of, labels, length in rows
        if len(of)
    ]


def _gpu_layers(events: selection.Events, late: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """What the GPU did, by category, the first that counts first."""
    here = pl.col("process").eq_missing(late["process"][0]) & pl.col("device").eq_missing(late["device"][0])
    nccl = pl.col("name").str.contains(NCCL_KERNEL).fill_null(False)
    kernels = events["kernels"].filter(here)
    copies = events["copies"].filter(here).with_columns(name=pl.col("direction"))
    moved = pl.concat([copies.select(_SPAN), events["memsets"].filter(here).select(_SPAN)])
    return [
        ("compute", kernels.filter(~nccl).select(_SPAN)),
        ("copy", moved),
        ("communication", kernels.filter(nccl).select(_SPAN)),
    ]


def _thread_layers(events: selection.Events, late: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """What the launching thread did, by category, the first that counts first."""
    thread = late["thread"][0]
    if thread is None:
        return []
    inside, here = pl.col("process") == late["process"][0], pl.col("thread") == thread
    calls = events["runtime"].filter(inside, here)
    found = []
    for category, pattern in _CALLS:
        one = pl.col("name").str.contains(pattern).fill_null(False)
        found.append((category, calls.filter(one).select(_SPAN)))
        calls = calls.filter(~one)
    ranges = events["nvtx"].filter(inside).with_columns(pl.col("name").cast(pl.String))
    own, others = ranges.filter(here), ranges.filter(~here)
    return [*found, ("call", calls.select(_SPAN)), ("range", own.select(_SPAN)), ("elsewhere", others.select(_SPAN))]
