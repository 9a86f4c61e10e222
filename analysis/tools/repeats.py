"""How well the pairs of a sweep are known; and one round of repeats: which points are to be started again, since they
are not yet known as well as the sweep's design asks for (jobs/sweep/rounds.py has the format).

    python -m analysis.tools.repeats results/SWEEP --round 1

A pair is known by its ratio, a point in no pair by its time. Points of one family get as many further blocks as the
pair of it that needs most, by how much the blocks so far differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analysis.ingest.point_tables import concatenate
from analysis.sweep import dataset
from analysis.sweep.interval import CONFIDENCE as ONE_LOOK
from analysis.sweep.precision import Estimate, mean, needed, ratio
from analysis.sweep.starts import Starts
from jobs.point.point import Point, complete
from jobs.record.json_files import write_json
from jobs.sweep import rounds
from jobs.sweep.design import CONFIDENCE, Precision, even, families

Times = Mapping[str, Mapping[int, float]]
"""Mean steps, ms, of the ok starts of points, by the id of the first repeat and by repeat."""


@dataclass(frozen=True)
class Look:
    """What is known of a pair (its name) or of a point in none (its id) after so many starts of a point."""

    what: str
    starts: int
    half_width: float | None
    enough: bool


def plan_round(results: Path, number: int) -> dict[str, Any]:
    """The content of a round's file."""
    sweep = json.loads((results / "sweep.json").read_text())
    earlier = [json.loads(rounds.file(results, "repeats", n).read_text()) for n in range(1, number)]
    listed = [complete(point["settings"]) for one in (sweep, *earlier) for point in one["points"]]
    points, steps = (concatenate(name, [p.id for p in listed], results / "derived") for name in ("points", "steps"))
    design = Precision(**sweep["precision"])
    new, looks = due(listed, _pairs(sweep), design, starts_of(listed, points, steps))
    return {
        "name": sweep["name"],
        "alert": sweep["alert"],
        "round": number,
        "points": [{"point_id": point.id, "settings": point.settings()} for point in new],
        "looks": [dataclasses.asdict(look) for look in looks],
    }


def _pairs(sweep: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [(pair["name"], pair["without"], pair["with"]) for pair in sweep.get("pairs", ())]


def pair_rows(
    sweep: Mapping[str, Any], settings: Iterable[Mapping[str, Any]], points: pl.DataFrame, steps: pl.DataFrame
) -> list[dict[str, Any]]:
    """Rows of the table `pairs`. `settings`: of all points of the sweep."""
    if not (pairs := _pairs(sweep)):
        return []
    starts = starts_of([complete(dict(own)) for own in settings], points, steps)
    wanted = sweep.get("precision", {}).get("half_width")
    rows = []
    for name, without, having in pairs:
        sides = starts.get(without, {}), starts.get(having, {})
        known = ratio(*sides, CONFIDENCE if wanted else ONE_LOOK)
        if known is None:
            continue
        low, high = known.interval if known.number > 1 else (None, None)
        rows.append(
            {
                "pair": name,
                "point_id": without,
                "having_id": having,
                "starts": len(sides[0].keys() & sides[1].keys()),
                "blocks": known.number,
                **{
                    f"{side}_ms": time.value
                    for side, own in zip(("without", "having"), sides, strict=True)
                    if (time := mean([*own.values()]))
                },
                "ratio": known.value,
                "ratio_low": low,
                "ratio_high": high,
                "confidence": known.confidence,
                "half_width": known.half_width if known.number > 1 else None,
                "wanted": wanted,
            }
        )
    return rows


def starts_of(listed: Sequence[Point], points: pl.DataFrame, steps: pl.DataFrame) -> Times:
    """The starts that are ok, of these points."""
    known = dict(dataset.undisturbed(Starts.of(points, steps).frame).select("point_id", "ms").iter_rows())
    found: dict[str, dict[int, float]] = {}
    for point in listed:
        if point.id in known:
            found.setdefault(_first(point).id, {})[point.repeat] = known[point.id]
    return found


def _first(point: Point) -> Point:
    return dataclasses.replace(point, repeat=0)


def due(
    listed: Sequence[Point], pairs: Sequence[tuple[str, str, str]], design: Precision, starts: Times
) -> tuple[list[Point], list[Look]]:
    """The points to start next, and what is known so far. `listed`: all points so far; `pairs`: name and the ids of
    both points' first repeats."""
    first = {_first(point).id: _first(point) for point in listed}
    so_far = {i: 1 + max(p.repeat for p in listed if _first(p).id == i) for i in first}
    new: list[Point] = []
    looks: list[Look] = []
    joined = families(first.values(), [(one, other) for _, one, other in pairs])
    together = {point.id for family in joined for point in family}
    for family in joined:
        ids = {point.id for point in family}
        own = {name: (a, b) for name, a, b in pairs if {a, b} <= ids}
        found = {name: ratio(starts.get(a, {}), starts.get(b, {}), CONFIDENCE) for name, (a, b) in own.items()}
        begun, most = so_far[family[0].id], even(design.most)
        looks += [_look(name, begun, one, design) for name, one in found.items()]
        blocks = max((_further(one, begun // 2, most // 2, design) for one in found.values()), default=0)
        new += _again(family, begun, begun + 2 * blocks)
    for point in (point for i, point in first.items() if i not in together):
        known = mean([*starts.get(point.id, {}).values()], CONFIDENCE)
        looks.append(_look(point.id, so_far[point.id], known, design))
        further = _further(known, so_far[point.id], design.most, design)
        new += _again([point], so_far[point.id], so_far[point.id] + further)
    return new, looks


def _again(family: Sequence[Point], begin: int, end: int) -> list[Point]:
    return [dataclasses.replace(point, repeat=number) for number in range(begin, end) for point in family]


def _look(what: str, starts: int, known: Estimate | None, design: Precision) -> Look:
    half = known.half_width if known is not None else math.inf
    return Look(what, starts, half if math.isfinite(half) else None, half <= design.half_width)


def _further(known: Estimate | None, begun: int, most: int, design: Precision) -> int:
    """How many blocks, or starts, are to follow those that were begun. What never ran well is not tried again."""
    if known is None or known.half_width <= design.half_width or begun >= most:
        return 0
    if known.number < 2:
        return 1
    return min(max(needed(known.sd, design.half_width, most, CONFIDENCE) - known.number, 1), most - begun)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis.tools.repeats", description="Plan a round of repeats.")
    parser.add_argument("results", type=Path, help="folder of the sweep's results")
    parser.add_argument("--round", type=int, required=True, help="number of the round, from 1")
    args = parser.parse_args(argv)
    made = plan_round(args.results, args.round)
    path = rounds.file(args.results, "repeats", args.round)
    path.parent.mkdir(exist_ok=True)
    write_json(path, made)
    known = sum(look["enough"] for look in made["looks"])
    print(f"round {args.round}: {known} of {len(made['looks'])} known well enough, {len(made['points'])} starts follow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
