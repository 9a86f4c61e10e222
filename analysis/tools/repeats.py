"""One round of repeats of a sweep: which points are to be started again, since they are not yet known as well as the
sweep's precision asks for (jobs/sweep/rounds.py has the format). The last round only looks.

    python -m nightsweep.analysis.tools.repeats results/SWEEP --round 1

A pair is known by its ratio, a point in no pair by its time. Points of one family get as many further blocks as the
pair of it that needs most, by how much the blocks so far differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightsweep.analysis.ingest.derived import Derived
from nightsweep.analysis.sweep.pair_rows import Times, beside, first_repeat, pairs_of, quiet, starts_of
from nightsweep.analysis.sweep.precision import Estimate, mean, needed
from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.sweep import rounds
from nightsweep.jobs.sweep.design import CONFIDENCE, LOOKS, Precision, even, families


@dataclass(frozen=True)
class Look:
    """What is known of a pair (its name) or of a point in none (its id). `starts`: of either point, so far."""

    what: str
    starts: int
    half_width: float | None
    enough: bool


def plan_round(results: Path, number: int) -> tuple[Precision, dict[str, Any]]:
    """The precision that the round is of, and the content of its file."""
    sweep = json.loads((results / "sweep.json").read_text())
    precision = Precision(**sweep["precision"])
    earlier = rounds.files(results, precision.folder)[: number - 1]
    lists = [sweep, *(json.loads(path.read_text()) for path in earlier)]
    listed = [complete(point["settings"]) for one in lists for point in one["points"]]
    derived = Derived(results / "derived")
    points, steps = (derived.table(name, [p.id for p in listed]) for name in ("points", "steps"))
    new, looks = due(listed, pairs_of(sweep), precision, starts_of(listed, points, steps))
    return precision, {
        "name": sweep["name"],
        "alert": sweep["alert"],
        "points": [{"point_id": p.id, "settings": p.settings()} for p in new if number < LOOKS],
        "looks": [dataclasses.asdict(look) for look in looks],
    }


def due(
    listed: Sequence[Point], pairs: Sequence[tuple[str, str, str]], design: Precision, starts: Times
) -> tuple[list[Point], list[Look]]:
    """The points to start next, and what is known so far. `listed`: all points so far; `pairs`: name and the ids of
    both points' first repeats."""
    first: dict[str, Point] = {}
    so_far: Counter[str] = Counter()
    for point in listed:
        one = first_repeat(point)
        first[one.id], so_far[one.id] = one, max(so_far[one.id], 1 + point.repeat)
    new: list[Point] = []
    looks: list[Look] = []
    joined = families(first.values(), [(one, other) for _, one, other in pairs])
    together = {point.id for family in joined for point in family}
    for family in joined:
        ids = {point.id for point in family}
        own = {name: (a, b) for name, a, b in pairs if {a, b} <= ids}
        found = {name: beside(starts, a, b, CONFIDENCE) for name, (a, b) in own.items()}
        begun, most = so_far[family[0].id], even(design.most)
        looks += [_look(name, begun, one, design) for name, one in found.items()]
        # What never ran well is not tried again.
        running = [one for name, one in found.items() if {*own[name]} <= starts.keys()]
        blocks = max((_further(one, begun // 2, most // 2, design) for one in running), default=0)
        new += _again(family, begun, begun + 2 * blocks)
    for point in (point for i, point in first.items() if i not in together):
        known = mean([start.ms for start in quiet(starts, point.id).values()], CONFIDENCE)
        looks.append(_look(point.id, so_far[point.id], known, design))
        further = _further(known, so_far[point.id], design.most, design) if point.id in starts else 0
        new += _again([point], so_far[point.id], so_far[point.id] + further)
    return new, looks


def _again(family: Sequence[Point], begin: int, end: int) -> list[Point]:
    return [dataclasses.replace(point, repeat=number) for number in range(begin, end) for point in family]


def _look(what: str, starts: int, known: Estimate | None, design: Precision) -> Look:
    half = known.half_width if known is not None else math.inf
    return Look(what, starts, half if math.isfinite(half) else None, half <= design.half_width)


def _further(known: Estimate | None, begun: int, most: int, design: Precision) -> int:
    """How many blocks, or starts, are to follow those that were begun; one where those tell nothing."""
    if begun >= most or (known is not None and known.half_width <= design.half_width):
        return 0
    if known is None or known.noise is None:
        return 1
    return min(max(needed(known.noise.sd, design.half_width, most, CONFIDENCE) - known.number, 1), most - begun)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.tools.repeats", description="Plan a round of repeats."
    )
    parser.add_argument("results", type=Path, help="folder of the sweep's results")
    parser.add_argument("--round", type=int, required=True, help="number of the round, from 1")
    args = parser.parse_args(argv)
    precision, made = plan_round(args.results, args.round)
    rounds.write(args.results, precision.folder, args.round, made)
    known = sum(look["enough"] for look in made["looks"])
    print(f"round {args.round}: {known} of {len(made['looks'])} known well enough, {len(made['points'])} starts follow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
