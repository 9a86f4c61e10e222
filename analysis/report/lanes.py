"""The timelines of points' own pages: bars of each rank's lanes with their names, in so few numbers that those of 1,000
points fit into a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from analysis.figures import style, timeline

BYTES = 2_000_000
"""Of all timelines in a page, without the names."""
_SIZES = ((200_000, 8), (20_000, 8), (4000, 8), (1000, 8), (1000, 2), (500, 2), (500, 1), (250, 1))
"""(units of the window, ranks) that are tried, until a point is within its share of BYTES; the last one is taken."""

BAR_BYTES = 13
"""Of a bar: three numbers of some four digits, with commas."""

Place = Callable[[str], int]


def point_lanes(events: pl.DataFrame, place: Place) -> dict[str, Any]:
    """By point: `unit_ns`; `ranks`: in all; `end`; `steps`: where they start; `lanes`: rows of (rank, lane, [gap,
    length, name, gap, length, name, ...]), in units. `place`: of a text in the page."""
    own = (
        timeline.bars(events)
        .sort("point_id", "rank", "start_ns")
        .partition_by("point_id", as_dict=True, maintain_order=True)
    )
    most = BYTES // max(1, len(own))
    return {str(key[0]): _clip(part, most, place) for key, part in own.items()}


def _clip(events: pl.DataFrame, most: int, place: Place) -> dict[str, Any]:
    for units, ranks in _SIZES:
        encoded = _lanes(events, units, ranks)
        if sum(len(lane[-1]) for lane in encoded["lanes"]) * BAR_BYTES <= most:
            break
    for lane in encoded["lanes"]:
        lane[-1] = [number for gap, length, name in lane[-1] for number in (gap, length, place(name))]
    return encoded


def _lanes(events: pl.DataFrame, units: int, most_ranks: int) -> dict[str, Any]:
    unit_ns = max(1, int(events["end_ns"].max() or 1) // units)  # type: ignore[arg-type]
    ranks = events["rank"].unique().sort().to_list()
    phase = pl.col("name").str.extract(f"^({'|'.join(style.RANGE_COLOURS)})")
    named = events.with_columns(name=pl.when(pl.col("lane") == "range").then(phase).otherwise("name"))
    known = named.filter(pl.col("rank").is_in(ranks[:most_ranks])).drop_nulls("name")  # others span the phases
    parts = known.partition_by("rank", "lane", as_dict=True, maintain_order=True)
    order = {lane: place for place, lane in enumerate(timeline.LANES)}
    return {
        "unit_ns": unit_ns,
        "ranks": len(ranks),
        "end": int(events["end_ns"].max() or 1) // unit_ns,  # type: ignore[arg-type]
        "steps": (events.group_by("step").agg(pl.col("start_ns").min())["start_ns"].sort() // unit_ns).to_list(),
        "lanes": [
            [*key, spans(part, unit_ns)]
            for key, part in sorted(parts.items(), key=lambda item: (item[0][0], order[str(item[0][1])]))
        ],
    }


def spans(events: pl.DataFrame, unit_ns: int) -> list[tuple[int, int, str]]:
    """(gap, length, name) of events in order, in units: nothing is shorter than one, what lies within the one before is
    left out, and what begins in it begins at its end."""
    encoded: list[tuple[int, int, str]] = []
    at = 0
    for start_ns, end_ns, name in (
        events.sort("start_ns", "end_ns", descending=[False, True]).select("start_ns", "end_ns", "name").iter_rows()
    ):
        start = max(at, start_ns // unit_ns)
        end = max(end_ns // unit_ns, start_ns // unit_ns + 1)
        if end > start:
            encoded.append((start - at, end - start, name))
            at = end
    return encoded
