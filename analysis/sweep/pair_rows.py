"""Starts of points by repeat, the ratios of pairs from them, and the rows of the table `pairs`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from nightsweep.analysis.sweep.interval import CONFIDENCE as ONE_LOOK
from nightsweep.analysis.sweep.precision import Estimate, mean, ratio
from nightsweep.analysis.sweep.starts import Starts
from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.sweep.design import CONFIDENCE, families


class Start(NamedTuple):
    """`ms`: mean step; `host`, and of which day; `disturbed`: whether it is known to be."""

    ms: float
    host: str
    disturbed: bool = False


Times = Mapping[str, Mapping[int, Start]]
"""The ok starts of points, by the id of the first repeat and by repeat."""


def starts_of(listed: Iterable[Point], points: pl.DataFrame, steps: pl.DataFrame) -> Times:
    """The starts of these points, from the tables points and steps."""
    frame = Starts.of(points, steps).frame.with_columns(pl.col("disturbed").fill_null(False))
    known = {i: Start(*own) for i, *own in frame.select("point_id", "ms", "host", "disturbed").iter_rows()}
    found: dict[str, dict[int, Start]] = {}
    for point in listed:
        if point.id in known:
            found.setdefault(first_repeat(point).id, {})[point.repeat] = known[point.id]
    return found


def first_repeat(point: Point) -> Point:
    return dataclasses.replace(point, repeat=0)


def quiet(times: Times, point_id: str) -> dict[int, Start]:
    """The starts of a point that nothing disturbed: those that estimates rest on."""
    return {repeat: start for repeat, start in times.get(point_id, {}).items() if not start.disturbed}


def beside(times: Times, without: str, having: str, confidence: float) -> Estimate | None:
    """The ratio of a pair that runs in blocks. A repeat whose two starts are of different hosts or days does not count:
    a block that was interrupted goes on elsewhere."""
    one, other = quiet(times, without), quiet(times, having)
    same = [repeat for repeat in one.keys() & other.keys() if one[repeat].host == other[repeat].host]
    return ratio({n: one[n].ms for n in same}, {n: other[n].ms for n in same}, confidence)


def apart(times: Times, without: str, having: str, confidence: float) -> Estimate | None:
    """The ratio of a pair whose points need different allocations: of starts of equal number, in twos."""
    one, other = ({n: start.ms for n, start in quiet(times, i).items()} for i in (without, having))
    return ratio(one, other, confidence)


def pairs_of(sweep: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name and first repeats of both points of each pair, of sweep.json."""
    return [(pair["name"], pair["without"], pair["with"]) for pair in sweep.get("pairs", ())]


def rows(
    sweep: Mapping[str, Any], settings: Iterable[Mapping[str, Any]], points: pl.DataFrame, steps: pl.DataFrame
) -> list[dict[str, Any]]:
    """Rows of the table `pairs`. `sweep`: sweep.json; `settings`: of all points of the sweep."""
    if not (pairs := pairs_of(sweep)):
        return []
    listed = [complete(dict(own)) for own in settings]
    times, wanted = starts_of(listed, points, steps), sweep.get("precision", {}).get("half_width")
    joined = [{point.id for point in one} for one in families(listed, [(a, b) for _, a, b in pairs])]
    found = []
    for name, *ids in pairs:
        together = any({*ids} <= family for family in joined)
        known = (beside if together else apart)(times, ids[0], ids[1], CONFIDENCE if wanted else ONE_LOOK)
        if known is not None:
            found.append(_row(name, ids, times, known) | {"wanted": wanted if together else None})
    return found


def _row(name: str, ids: Sequence[str], times: Times, known: Estimate) -> dict[str, Any]:
    sides = [quiet(times, i) for i in ids]
    means = [mean([start.ms for start in side.values()]) for side in sides]
    low, high = known.interval if known.noise else (None, None)
    return {
        "pair": name,
        "point_id": ids[0],
        "having_id": ids[1],
        "starts": len(sides[0].keys() & sides[1].keys()),
        "blocks": known.number,
        "without_ms": means[0] and means[0].value,
        "having_ms": means[1] and means[1].value,
        "ratio": known.value,
        "ratio_low": low,
        "ratio_high": high,
        "confidence": known.confidence,
        "half_width": known.half_width if known.noise else None,
    }
