"""The timelines of points' own pages: bars of each rank's lanes with their names, in so few numbers that those of 1,000
points fit into a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from nightsweep.analysis.figures import style, timeline

LANES = ("range", "call", *timeline.LANES[1:])
COLOURS = {"call": style.SKY, **style.LANE_COLOURS, **style.RANGE_COLOURS}
BYTES = 2_000_000
"""Of all timelines in a page, without the names."""
_SIZES = ((200_000, 8), (20_000, 8), (4000, 8), (1000, 8), (1000, 2), (500, 2), (500, 1), (250, 1), (100, 1))
"""(units of the window, ranks) that are tried, until a point is within its share of what is left of BYTES; the last one
is taken."""

BAR_BYTES = 13
"""Of a bar: three numbers of some four digits, with commas."""
MOST_MERGED = 8
"""Merging is assumed to leave at least one bar in eight: a size that needs fewer is not tried."""

Place = Callable[[str], int]


def point_lanes(events: pl.DataFrame, place: Place) -> dict[str, Any]:
    """By point: `unit_ns`; `ranks`: in all; `end`; `steps`: where they start; `lanes`: rows of (rank, lane, [gap,
    length, name, gap, length, name, ...]), in units; of what is on the path ~name; `path`: whether that is known.
    `place`: of a text in the page."""
    own = (
        short_names(events)
        .sort("point_id", "rank", "start_ns")
        .partition_by("point_id", as_dict=True, maintain_order=True)
    )
    found, left = {}, BYTES
    # Those of few bars first: what they need not is left to the others.
    for n, (key, part) in enumerate(sorted(own.items(), key=lambda item: item[1].height)):
        found[str(key[0])] = encoded = _clip(part, left // (len(own) - n), place)
        left -= sum(len(lane[-1]) for lane in encoded["lanes"]) // 3 * BAR_BYTES
    return found


def short_names(events: pl.DataFrame) -> pl.DataFrame:
    """Bars with names of kernels without what only a compiler needs: the type of what is returned, of a constant, and
    of the parameters. The table has them whole."""
    short = pl.col("name").str.replace_all(r"^void |<unnamed>::|\(anonymous namespace\)::", "")
    short = short.str.replace_all(r"([<,] ?)\((?:unsigned )?(?:int|long|bool)\)", "${1}")
    return events.with_columns(name=short.str.replace(r"(\S)\([^()]*(?:\([^()]*\)[^()]*)*\)$", "${1}"))


def _clip(events: pl.DataFrame, most: int, place: Place) -> dict[str, Any]:
    for units, ranks in _SIZES:
        unit_ns = max(1, int(events["end_ns"].max() or 1) // units)  # type: ignore[arg-type]
        if (units, ranks) != _SIZES[-1] and _starts(events, unit_ns, ranks) * BAR_BYTES > MOST_MERGED * most:
            continue
        encoded = _lanes(events, unit_ns, ranks)
        if sum(len(lane[-1]) for lane in encoded["lanes"]) * BAR_BYTES <= most:
            break
    for lane in encoded["lanes"]:
        lane[-1] = [
            number
            for gap, length, name, on in lane[-1]
            for number in (gap, length, ~place(name) if on else place(name))
        ]
    return encoded


def _starts(events: pl.DataFrame, unit_ns: int, most_ranks: int) -> int:
    """In how many units some bar starts, of all lanes together: as many bars as these there are at most."""
    first = pl.col("rank").rank("dense") <= most_ranks
    return events.filter(first).select("rank", "lane", pl.col("start_ns") // unit_ns).n_unique()


def _lanes(events: pl.DataFrame, unit_ns: int, most_ranks: int) -> dict[str, Any]:
    ranks = events["rank"].unique().sort().to_list()
    phase = pl.col("name").str.extract(f"^({'|'.join(style.RANGE_COLOURS)})")
    named = events.with_columns(name=pl.when(pl.col("lane") == "range").then(phase).otherwise("name"))
    known = named.filter(pl.col("rank").is_in(ranks[:most_ranks])).drop_nulls("name")  # others span the phases
    parts = known.partition_by("rank", "lane", as_dict=True, maintain_order=True)
    order = {lane: place for place, lane in enumerate(LANES)}
    return {
        "unit_ns": unit_ns,
        "ranks": len(ranks),
        "path": _path(events),
        "end": int(events["end_ns"].max() or 1) // unit_ns,  # type: ignore[arg-type]
        "steps": (events.group_by("step").agg(pl.col("start_ns").min())["start_ns"].sort() // unit_ns).to_list(),
        "lanes": [
            [*key, spans(part, unit_ns)]
            for key, part in sorted(parts.items(), key=lambda item: (item[0][0], order[str(item[0][1])]))
        ],
    }


def _path(events: pl.DataFrame) -> list[tuple[int, str, int]]:
    """Rank, lane and percent of the path, of lanes that have 1 % of it, the most first; empty where it is not known."""
    took = (pl.col("end_ns") - pl.col("start_ns")).sum()
    sums = events.filter("on_path").group_by("rank", "lane").agg(took.alias("percent"))
    shares = sums.with_columns((pl.col("percent") * 100 / pl.col("percent").sum()).round().cast(pl.Int64))
    return shares.filter(pl.col("percent") >= 1).sort("percent", "rank", "lane", descending=[True, False, False]).rows()


def spans(events: pl.DataFrame, unit_ns: int) -> list[tuple[int, int, str, bool]]:
    """(gap, length, name, whether it is on the path) of events in order, in units. What begins within the one before
    begins at its end; what is then no longer than a unit and touches it is part of it, and the longest stands for
    both."""
    encoded: list[tuple[int, int, str, bool]] = []
    at = longest = 0
    ordered = events.sort("start_ns", "end_ns", "name", descending=[False, True, False])
    for start_ns, end_ns, name, on in ordered.select("start_ns", "end_ns", "name", "on_path").iter_rows():
        start = max(at, start_ns // unit_ns)
        end = max(end_ns // unit_ns, start_ns // unit_ns + 1)
        if encoded and start == at and end - start <= 1:
            gap, length, *known = encoded[-1]
            longer = end_ns - start_ns > longest
            encoded[-1] = (gap, max(at, end) - at + length, *((name, bool(on)) if longer else known))
            longest = max(longest, end_ns - start_ns)
        else:
            encoded.append((start - at, end - start, name, bool(on)))
            longest = end_ns - start_ns
        at = max(at, end)
    return encoded
