"""Calls and work of all ranks as they were measured, and which call launched which work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.replay.graph import Ints

Frames = Mapping[str, pl.DataFrame]
ON_DEVICE = ("kernels", "graphs", "copies", "memsets")
PLACE = ("device", "stream", "start_ns")
"""They tell one piece of work from all others of its rank."""
KEYS = ["rank", *PLACE]
_NUMBERS = ("start_ns", "end_ns", "device", "stream", "thread", "launch_ns", "bytes")
_COLUMNS = dict.fromkeys(_NUMBERS, pl.Int64) | dict.fromkeys(("category", "direction", "source", "target"), pl.String)


@dataclass(frozen=True)
class Measured:
    """`events`: tables of each rank's events. `called`: calls of the threads that launch, by rank and start. `frame`:
    work on the devices, by start; the arrays are its columns. `lane`: a number for each stream of each rank; `call`:
    the place in `called` of what launched it, -1 for none; `launched`: when that began, else the start of
    the work."""

    events: Mapping[int, Frames]
    called: pl.DataFrame
    frame: pl.DataFrame
    rank: Ints
    start: Ints
    end: Ints
    lane: Ints
    call: Ints
    launched: Ints

    @classmethod
    def of(cls, events: Mapping[int, Frames]) -> Measured:
        frame = _work(events)
        called = _calls(events, frame.select("rank", "thread").drop_nulls().unique())
        call = _launching(frame, called)
        rank, start, end, lane = (frame[name].to_numpy() for name in ("rank", "start_ns", "end_ns", "lane"))
        begun = called["start_ns"].to_numpy()
        launched = np.where(call >= 0, begun[call], start) if len(begun) else start
        return cls(events, called, frame, rank, start, end, lane, call, launched)


def _work(events: Mapping[int, Frames]) -> pl.DataFrame:
    found = [
        own[kind].select(
            pl.lit(rank, dtype=pl.Int64).alias("rank"),
            pl.lit(kind).alias("kind"),
            *(pl.col(name).cast(type_) for name, type_ in _COLUMNS.items() if name in own[kind].columns),
        )
        for rank, own in sorted(events.items())
        for kind in ON_DEVICE
    ]
    lane = pl.struct("rank", "device", "stream").rank("dense").cast(pl.Int64) - 1
    return pl.concat(found, how="diagonal").sort("start_ns", "end_ns", "rank").with_columns(lane=lane)


def _calls(events: Mapping[int, Frames], launching: pl.DataFrame) -> pl.DataFrame:
    found = []
    for rank, own in sorted(events.items()):
        threads = launching.filter(pl.col("rank") == rank)["thread"]
        rows = own["runtime"].with_columns(pl.col("thread").cast(pl.Int64))
        rows = rows.filter(pl.col("thread").is_in(threads.implode()), pl.col("start_ns") <= pl.col("end_ns"))
        names = ("start_ns", "end_ns", "thread")
        own_calls = rows.select(pl.lit(rank, dtype=pl.Int64).alias("rank"), pl.col("name").cast(pl.String), *names)
        found.append(own_calls.sort("start_ns", "end_ns"))
    return pl.concat(found)


def _launching(frame: pl.DataFrame, called: pl.DataFrame) -> Ints:
    keys = ["rank", "thread", "start_ns"]
    first = called.with_row_index("call").unique(keys, keep="first").select(*keys, "call")
    wanted = frame.select("rank", "thread", start_ns="launch_ns")
    joined = wanted.join(first, on=keys, how="left", maintain_order="left")
    return joined["call"].cast(pl.Int64).fill_null(-1).to_numpy()


def by_rank(rank: Ints) -> list[Ints]:
    """The places of each rank."""
    return [np.flatnonzero(rank == each) for each in np.unique(rank)]
