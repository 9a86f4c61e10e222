"""In what order points run, which of them run beside each other, and how often each is started.

Points of a pair (`pairs` of a sweep) run in blocks: one allocation, each point once and then once more in the reverse
order (A B B A), so that a host, its GPUs and a drift fall on all of them alike. Pairs that share a point share its
blocks. One point of a block leads it: its job runs all of them.

With a precision, a sweep starts each point `least` times and looks LOOKS times, at most, whether it is known well
enough; where it is not, more starts follow, up to `most`. A look is at an interval that holds although there are others
(CONFIDENCE), so stopping at the first one that is narrow enough is no luck.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.sweep.pairs import Pair

LOOKS = 4
"""After the first starts, and after each of the rounds that may follow."""
CONFIDENCE = 1 - 0.0182
"""Of each of four looks, for 95 % in all, wherever one stops: S. J. Pocock, Biometrika 64 (1977), 191-199; as
intervals: C. Jennison and B. W. Turnbull, J. R. Stat. Soc. B 51 (1989), 305-361."""


@dataclass(frozen=True)
class Precision:
    """How well a pair's ratio, and the time of a point in no pair, is to be known: `half_width`, half of its interval
    as a share of it. A point has `least` starts at first and never more than `most`; in pairs, the next even number."""

    half_width: float
    least: int
    most: int

    @property
    def folder(self) -> str:
        """Where the rounds of this precision are, below a sweep's results: another one has others."""
        return f"repeats/{100 * self.half_width:g}pct-{self.least}-{self.most}"


@dataclass(frozen=True)
class Design:
    """`seed`: of the random order; None: the order of the file. `precision`: None where `repeats` counts the starts."""

    seed: int | None = None
    precision: Precision | None = None

    def draw(self, point_id: str) -> float:
        """A random number for each point, 0 to 1: the larger one runs first. Without a seed all have 0."""
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
        if {one, other} <= known.keys() and shape(known[one]) == shape(known[other]):
            together = [*dict.fromkeys([*joined.get(one, [one]), *joined.get(other, [other])])]
            joined |= dict.fromkeys(together, together)
    unique = {tuple(together) for together in joined.values()}
    return [tuple(known[i] for i in ids) for ids in sorted(unique)]


def shape(point: Point) -> tuple[int, ...]:
    """What a point needs of an allocation: nodes, and tasks and GPUs on each."""
    return point.nodes, point.tasks_per_node, point.gpus_per_node()


def blocks(family: Sequence[Point], starts: int, seed: int | None) -> list[tuple[Point, ...]]:
    """The blocks of a family with this many starts of each point, each in its order; the last one has each point once
    where the number is odd. Without a seed, in the order of the file."""
    made = []
    for first in range(0, starts, 2):
        order = list(family)
        if seed is not None:
            random.Random(f"{seed} {first} {family[0].id}").shuffle(order)
        there = [dataclasses.replace(point, repeat=first) for point in order]
        back = [dataclasses.replace(point, repeat=first + 1) for point in reversed(order)] if first + 1 < starts else []
        made.append((*there, *back))
    return made


def queues(points: Iterable[Point], pairs: Sequence[Pair], design: Design) -> list[tuple[Point, ...]]:
    """The points of each block that may come to run, in its order."""
    points = list(points)
    known, begun = {point.id for point in points}, max((point.repeat for point in points), default=0) + 1
    starts = even(design.precision.most) if design.precision else begun
    every = [block for family in families(points, pair_ids(pairs)) for block in blocks(family, starts, design.seed)]
    # What the first starts leave out, the sweep excludes.
    kept = [tuple(point for point in block if point.repeat >= begun or point.id in known) for block in every]
    return [block for block in kept if block]


def led(blocks: Iterable[Sequence[Point]], has_record: Callable[[str], bool]) -> dict[str, tuple[Point, ...]]:
    """The points that a job runs, by the id of the one that leads them and comes first: the first of its block, or
    batch (batches.py), without a record, for a job runs where its output is not there."""
    found = {}
    for block in blocks:
        leader = next((point for point in block if not has_record(point.id)), block[0])
        found[leader.id] = (leader, *(point for point in block if point is not leader))
    return found


def leaders(queues: Mapping[str, Sequence[Point]]) -> dict[str, str]:
    """Of each point in a block, but for those that lead one, the id of the one that does."""
    return {point.id: leader for leader, block in queues.items() for point in block if point.id != leader}
