"""Which points one job runs, one after the other: blocks of pairs (design.py), and as many more points as take about as
long as the profile's `batch_min` says. A start in a job that runs already takes seconds, not half a minute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.sweep import estimate
from nightsweep.jobs.sweep.design import Design, queues, shape
from nightsweep.jobs.sweep.pairs import Pair

SLOWER = 3
"""Estimates are right to a factor of a few."""


def forked_s(point: Point) -> float:
    """Seconds of a point whose ranks are forked."""
    return estimate.wall_s(point, estimate.FORKED_START_S)


def batches(
    points: Iterable[Point],
    pairs: Sequence[Pair],
    design: Design,
    batch_min: float = 0.0,
    seconds: Callable[[Point], float] = forked_s,
) -> list[tuple[Point, ...]]:
    """The points of each job that runs several, in its order. Blocks, and points in none, are joined in the order in
    which they would run, where they need the same allocation and take no longer than `batch_min` minutes together; a
    block is never divided. Blocks that a round of repeats may add are not known to run, and join nothing. 0: blocks
    alone."""
    points = list(points)
    blocks = queues(points, pairs, design)
    if batch_min <= 0:
        return blocks
    in_blocks = {point.id for block in blocks for point in block}
    begun = max((point.repeat for point in points), default=0)
    later = [block for block in blocks if any(point.repeat > begun for point in block)]
    now = [block for block in blocks if all(point.repeat <= begun for point in block)]
    units = [*now, *((point,) for point in points if point.id not in in_blocks)]
    units.sort(key=lambda unit: -design.draw(unit[0].id))
    made: list[list[Point]] = []
    open_: dict[tuple[int, ...], int] = {}
    lengths: list[float] = []
    for unit in units:
        length, place = sum(map(seconds, unit)), open_.get(shape(unit[0]))
        if place is None or lengths[place] + length > 60 * batch_min:
            place = open_[shape(unit[0])] = len(made)
            made.append([])
            lengths.append(0.0)
        made[place] += unit
        lengths[place] += length
    return [*(tuple(batch) for batch in made if len(batch) > 1), *later]


def whole_minutes(value: object) -> int:
    """`batch_min` as a profile gives it. Raises ValueError."""
    if not str(value).isdecimal():
        raise ValueError(f"batch_min: {value!r}: expected whole minutes, such as 15, or 0 for a point a job")
    return int(str(value))


def minutes(batch: Sequence[Point], timeout_min: int, batch_min: float = 0.0) -> int:
    """Wall time of a job that runs these points: each may take as long as it may. In a batch, where few will, one of
    them, and all together SLOWER times as long as is expected; the job hands back what it does not come to."""
    most = timeout_min * len(batch)
    return most if batch_min <= 0 else min(most, timeout_min + math.ceil(SLOWER * batch_min))
