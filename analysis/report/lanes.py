"""The timelines of points' own pages: lanes of events in so few numbers that 1,000 of them fit into a page."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from analysis.figures import style, timeline

BYTES = 2_000_000
"""Of all timelines in a page."""
_SIZES = ((1000, 8), (1000, 2), (500, 2), (500, 1), (250, 1))
"""(units of the width, ranks) that are tried, until a point is within its share of BYTES; the last one is taken."""


def point_lanes(events: pl.DataFrame) -> dict[str, Any]:
    """By point: {"end_ms", "units", "ranks": in all, "steps": where they start, "lanes": rows of (rank, lane, what,
    [gap, length, gap, length, ...])}, in units of the width."""
    own = events.sort("point_id", "rank", "start_ns").partition_by("point_id", as_dict=True, maintain_order=True)
    most = BYTES // max(1, len(own))
    return {str(key[0]): _clip(part, most) for key, part in own.items()}


def _clip(events: pl.DataFrame, most: int) -> dict[str, Any]:
    for units, ranks in _SIZES:
        encoded = _lanes(events, units, ranks)
        if len(json.dumps(encoded, separators=(",", ":"))) <= most:
            break
    return encoded


def _lanes(events: pl.DataFrame, units: int, most_ranks: int) -> dict[str, Any]:
    end_ns = int(events["end_ns"].max() or 1)  # type: ignore[arg-type]
    ranks = events["rank"].unique().sort().to_list()
    what = pl.when(pl.col("lane") == "range").then(pl.col("name").str.extract(f"^({'|'.join(style.RANGE_COLOURS)})"))
    known = events.filter(pl.col("rank").is_in(ranks[:most_ranks])).with_columns(what=what.otherwise("lane"))
    parts = known.drop_nulls("what").partition_by("rank", "lane", "what", as_dict=True, maintain_order=True)
    order = {lane: place for place, lane in enumerate(timeline.LANES)}
    steps = events.group_by("step").agg(pl.col("start_ns").min())["start_ns"].sort()
    return {
        "end_ms": float(f"{end_ns / 1e6:.7g}"),
        "units": units,
        "ranks": len(ranks),
        "steps": [round(start * units / end_ns) for start in steps],
        "lanes": [
            [*key, spans(part, units / end_ns)]
            for key, part in sorted(parts.items(), key=lambda item: (item[0][0], order[str(item[0][1])]))
        ],
    }


def spans(events: pl.DataFrame, scale: float) -> list[int]:
    """[gap, length, gap, length, ...] of events in order, in units; what is closer than a unit is one, and nothing is
    shorter than one."""
    encoded: list[int] = []
    at = 0
    for start_ns, end_ns in events.sort("start_ns").select("start_ns", "end_ns").iter_rows():
        start, end = int(start_ns * scale), max(int(start_ns * scale) + 1, round(end_ns * scale))
        if encoded and start <= at:
            encoded[-1] += max(0, end - at)
            at = max(at, end)
        else:
            encoded += [start - at, end - start]
            at = end
    return encoded
