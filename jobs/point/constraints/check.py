"""What the settings of one point must not be together.

Each check is a small function of a point that gives a `Reason` or None, in the file of its subject; settings without
effect are in a table (effect.py). They look at the point alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from jobs.point.constraints import compute, image, job, llm, measuring, parallel
from jobs.point.constraints.effect import EFFECTS
from jobs.point.constraints.reason import Reason, Source
from jobs.point.point import Point

CHECKS: tuple[Callable[[Point], Reason | None], ...] = (
    *job.CHECKS,
    *parallel.CHECKS,
    *compute.CHECKS,
    *image.CHECKS,
    *llm.CHECKS,
    *measuring.CHECKS,
)


def reasons(point: Point) -> list[Reason]:
    """All that is wrong with a point."""
    found = [reason for check in CHECKS if (reason := check(point)) is not None]
    return found + [reason for effect in EFFECTS for reason in effect.reasons(point)]


def errors(points: Iterable[tuple[Point, Source]]) -> list[str]:
    """What is wrong with the points of a sweep: each place and reason once, with the number of points it holds for."""
    counts = Counter(
        f"{source.locate(reason.settings, point)}: {reason.text}"
        for point, source in points
        for reason in reasons(point)
    )
    return [f"{line} ({n} point{'s' if n > 1 else ''})" for line, n in counts.items()]
