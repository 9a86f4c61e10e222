"""In what order points run, which of them run beside each other, and how often each is started.

Points of a pair (`pairs` of a sweep) run in blocks: one allocation, each point once and then once more in the reverse
order (A B B A), so that a host, its GPUs and a drift fall on all of them alike. Pairs that share a point share its
blocks. The first point of a block leads it: its job runs all of them.

With a precision, a sweep starts each point `least` times and looks LOOKS times, at most, whether it is known well
enough; where it is not, more starts follow, up to `most`. A look is at an interval that holds although there are others
(CONFIDENCE), so stopping at the first one that is narrow enough is no luck.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobs.point.point import Point
from jobs.sweep.pairs import Pair

LOOKS = 4
"""After the first starts, and after each of the rounds that may follow."""
CONFIDENCE = 1 - 0.0182
"""Of each of four looks, for 95 % in all, wherever one stops: S. J. Pocock, Biometrika 64 (1977), 191-199; as
intervals: C. Jennison and B. W. Turnbull, J. R. Stat. Soc. B 51 (1989), 305-361."""


@dataclass(frozen=True)
class Precision:
    """How well a pair's ratio, and the time of a point in no pair, is to be known: `half_width`, half of its interval
    as a share of it, with so many starts a point at `least` and at `most`."""

    half_width: float
    least: int
    most: int


@dataclass(frozen=True)
class Design:
    """`seed`: of the random order; None: the order of the file. `precision`: None where `repeats` counts the starts."""

    seed: int | None = None
    precision: Precision | None = None

    def priority(self, point_id: str) -> float:
        """Of a job, 0 to 1: the larger one runs first."""
        return 0.0 if self.seed is None else random.Random(f"{self.seed} {point_id}").random()


def even(number: int) -> int:
    """The next even number: a block has two starts of each point."""
    return number + number % 2


def pair_ids(pairs: Iterable[Pair]) -> list[tuple[str, str]]:
    """The first repeats of both points of each pair that has points."""
    return [(one.id, other.id) for one, other in (pair.points() for pair in pairs if pair.not_shown is None)]


def families(points: Iterable[Point], pairs: Iterable[tuple[str, str]]) -> list[tuple[Point, ...]]:
    """Points, of the first repeat, that run in the same blocks: those that pairs (of ids) join. Points of different
    numbers of nodes or GPUs do not fit one allocation, and so are in none together."""
    known = {point.id: point for point in points if point.repeat == 0}
    joined: dict[str, list[str]] = {}
    for one, other in pairs:
        if {one, other} <= known.keys() and _shape(known[one]) == _shape(known[other]):
            together = [*dict.fromkeys([*joined.get(one, [one]), *joined.get(other, [other])])]
            joined |= dict.fromkeys(together, together)
    unique = {tuple(together) for together in joined.values()}
    return [tuple(known[i] for i in ids) for ids in sorted(unique)]


def _shape(point: Point) -> tuple[int, ...]:
    return point.nodes, point.tasks_per_node, point.gpus_per_node()


def blocks(family: Sequence[Point], starts: int, seed: int | None) -> list[tuple[Point, ...]]:
    """The blocks of a family whose points are started so often, each in its order; the last one has each point once
    where the number is odd."""
    made = []
    for first in range(0, starts, 2):
        order = list(family)
        random.Random(f"{seed} {first} {family[0].id}").shuffle(order)
        there = [dataclasses.replace(point, repeat=first) for point in order]
        back = [dataclasses.replace(point, repeat=first + 1) for point in reversed(order)] if first + 1 < starts else []
        made.append((*there, *back))
    return made


def queues(points: Iterable[Point], pairs: Sequence[Pair], design: Design) -> dict[str, tuple[Point, ...]]:
    """The points of each block that may come to run, by the id of the one that leads it."""
    points = list(points)
    starts = max((point.repeat for point in points), default=0) + 1
    most = even(design.precision.most) if design.precision else starts
    found = [block for family in families(points, pair_ids(pairs)) for block in blocks(family, most, design.seed)]
    return {block[0].id: block for block in found}


def leaders(queues: Mapping[str, Sequence[Point]]) -> dict[str, str]:
    """Of each point in a block, but for those that lead one, the id of the one that does."""
    return {point.id: leader for leader, block in queues.items() for point in block if point.id != leader}
