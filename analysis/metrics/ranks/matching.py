"""Matches one rank's collectives with another's, also where their captures begin or end at different calls.

All ranks of a communicator call its collectives in one order. So two ranks' lists of kinds and sizes are shifted
against each other until they agree wherever they overlap; where several shifts agree, as with steps that repeat, the
ends of the collectives decide. What stays ambiguous is not matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives that no rank can leave before all have come: they end everywhere at once."""
UNEVEN = ("send_recv", "all_to_all")
"""Of these each rank may have another size."""

_Ints = NDArray[np.int64]

_FAR = 512
"""Shifts that are tried beyond those that begin or end both lists together."""
_ENOUGH = 2000
"""Pairs that are enough for the median distance of two lists' ends."""
_BETTER = 4
"""A shift whose ends lie this many times closer together is the right one, however short."""
_LEAST_NS = 2_000
"""Ends closer than this are all the same: kernels of one collective end within microseconds."""


@dataclass(frozen=True)
class Calls:
    """One rank's collectives on one communicator, in order; arrays of shape (n,).

    `kinds`: a number for each kind; `bytes`: -1 where ranks need not agree on it (`size`); `starts`, `ends`: ns;
    `synchronizing`: whether it is one of SYNCHRONIZING.
    """

    kinds: NDArray[np.uint64]
    bytes: _Ints
    starts: _Ints
    ends: _Ints
    synchronizing: NDArray[np.bool_]

    @classmethod
    def from_frame(cls, frame: pl.DataFrame) -> Calls:
        """`frame`: collective, bytes, start_ns, end_ns, in order."""
        kind, bytes_ = frame["collective"].fill_null(""), frame.select(size().fill_null(-1)).to_series().to_numpy()
        waits = kind.is_in(list(SYNCHRONIZING)).to_numpy()
        return cls(kind.hash().to_numpy(), bytes_, frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), waits)


def size() -> pl.Expr:
    """The bytes on which all ranks of a collective agree; null where they are unknown, or need not be the same."""
    uneven = pl.col("collective").is_in(UNEVEN).fill_null(value=False)
    return pl.when(~uneven).then("bytes")


def shift(first: Calls, other: Calls, same_clock: bool) -> int | None:
    """The s for which other's i-th collective is first's (i + s)-th; None where no s fits, or more than one.

    The lists must agree in kind and, where both know it, size over their overlap, which is half of the shorter one at
    least. With `same_clock` collectives that are matched must also have run at the same time, most of them.
    """
    fits = [(s, *_distance(first, other, s, same_clock)) for s in _shifts(first, other) if _agree(first, other, s)]
    if not fits:
        return None
    closest = max(_LEAST_NS, min(apart for _, apart, _ in fits))
    near = [(length, s) for s, apart, length in fits if apart <= _BETTER * closest]
    longest = max(length for length, _ in near)
    best = [s for length, s in near if length == longest]
    if len(best) > 1 or (same_clock and not _overlap_in_time(first, other, best[0])):
        return None
    return best[0]


def _shifts(first: Calls, other: Calls) -> range:
    n, m = len(first.kinds), len(other.kinds)
    half = -(-min(n, m) // 2)
    low, high = min(0, n - m) - _FAR, max(0, n - m) + _FAR
    # Beyond these less than half of the shorter list overlaps.
    return range(max(low, half - m), min(high, n - half) + 1) if half else range(0)


def _overlap(n: int, m: int, by: int) -> tuple[slice, slice]:
    begin, end = max(0, by), min(n, m + by)
    return slice(begin, end), slice(begin - by, end - by)


def _agree(first: Calls, other: Calls, by: int) -> bool:
    a, b = _overlap(len(first.kinds), len(other.kinds), by)
    # Most shifts disagree early: compare a few first.
    for part in (slice(0, 64), slice(64, None)):
        sizes = first.bytes[a][part], other.bytes[b][part]
        known = (sizes[0] >= 0) & (sizes[1] >= 0)
        if (first.kinds[a][part] != other.kinds[b][part]).any() or (sizes[0] != sizes[1])[known].any():
            return False
    return True


def _distance(first: Calls, other: Calls, by: int, same_clock: bool) -> tuple[float, int]:
    """Median distance of the ends (ns; on different clocks after the best offset), and the number of pairs."""
    a, b = _overlap(len(first.kinds), len(other.kinds), by)
    every = 1 + (a.stop - a.start) // _ENOUGH
    differences = other.ends[b][::every] - first.ends[a][::every]
    middle = 0 if same_clock else _median(differences)
    return float(np.median(np.abs(differences - middle))), a.stop - a.start


def _overlap_in_time(first: Calls, other: Calls, by: int) -> bool:
    a, b = _overlap(len(first.kinds), len(other.kinds), by)
    met = np.maximum(first.starts[a], other.starts[b]) < np.minimum(first.ends[a], other.ends[b])
    must = first.synchronizing[a]
    return bool(met[must].mean() >= 0.5) if must.any() else True


def _median(differences: _Ints) -> int:
    # One of the values, not a mean of two: UTC in ns does not fit a float.
    return int(np.sort(differences)[len(differences) // 2])


def align(frames: Sequence[pl.DataFrame]) -> tuple[list[pl.DataFrame], pl.DataFrame]:
    """Move per-rank frames of `collectives.rank_collectives` to the clock of the first one.

    Returns:
        The frames, and a table with a row for each: rank, events (collectives compared), offset_ns (its clock less the
        first one's: the median difference of ends, as nsys_jax and TraceLens align), residual_ns and residual_max_ns
        (median and largest distance of the differences from it). A rank that shares no collective for certain has
        events 0 and nulls, and is not moved.
    """
    rows, moved = [], []
    for number, frame in enumerate(frames):
        row = _offset_row(_differences(frames[0], frame) if number else np.zeros(len(frame), np.int64))
        rank = frame["rank"].drop_nulls()
        rows.append({"rank": rank[0] if len(rank) else number, **row})
        by = row["offset_ns"] or 0
        moved.append(frame.with_columns(pl.col("launch_ns", "start_ns", "end_ns") - by))
    schema = dict.fromkeys(("rank", "events", "offset_ns", "residual_ns", "residual_max_ns"), pl.Int64)
    return moved, pl.DataFrame(rows, schema=schema)


def _offset_row(differences: _Ints) -> dict[str, int | None]:
    if not len(differences):
        return {"events": 0, "offset_ns": None, "residual_ns": None, "residual_max_ns": None}
    offset = _median(differences)
    away = np.abs(differences - offset)
    return {
        "events": len(differences),
        "offset_ns": offset,
        "residual_ns": int(np.median(away)),
        "residual_max_ns": int(away.max()),
    }


def _differences(first: pl.DataFrame, other: pl.DataFrame) -> _Ints:
    """Differences of the ends of collectives of both that end everywhere at once."""
    found = [np.empty(0, np.int64)]
    theirs = split_by_lane(other)
    for lane, mine in split_by_lane(first).items():
        if lane not in theirs:
            continue
        a, b = Calls.from_frame(mine), Calls.from_frame(theirs[lane])
        by = shift(a, b, same_clock=False)
        if by is not None:
            of_a, of_b = _overlap(len(a.kinds), len(b.kinds), by)
            found.append((b.ends[of_b] - a.ends[of_a])[a.synchronizing[of_a]])
    return np.concatenate(found)


def split_by_lane(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """One rank's collectives by lane, which is what orders them: the communicator.

    Where that is unknown, it is the one communicator of all others on the stream, or else the stream, by its place
    among the rank's NCCL streams. Sends and receives have separate lanes, since a rank makes only its own.
    """
    known = pl.col("communicator").drop_nulls()
    sole = pl.when(known.n_unique() == 1).then(known.first()).over("stream")
    stream = pl.format("stream {}", pl.col("stream").rank("dense") - 1)
    apart = pl.when(pl.col("collective") == "send_recv").then(pl.lit(" send_recv")).otherwise(pl.lit(""))
    named = frame.with_columns(lane=pl.concat_str(pl.coalesce("communicator", sole, stream), apart))
    parts = named.sort("start_ns").partition_by("lane", as_dict=True, maintain_order=True)
    return {str(key[0]): part for key, part in parts.items()}
