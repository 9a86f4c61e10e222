"""What the settings of one point must not be together.

Each check is a small function of a point that gives a `Reason` or None, beside the settings of its subject
(jobs/point/settings); where a setting has an effect is said by the setting itself (`needs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jobs.point.point import FIELDS, Point, defaults
from jobs.point.reason import Reason, Source
from jobs.point.settings import compute, image, job, llm, measuring, parallel

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
    return [reason for check in CHECKS if (reason := check(point)) is not None] + list(vain(point))


def vain(point: Point) -> Iterator[Reason]:
    """Settings without effect, where they differ from their default: only then would they make a second point that runs
    the same job."""
    known = defaults(point.workload)
    for name, field in FIELDS.items():
        value = getattr(point, name)
        if value is None or value == known.get(name):
            continue
        for need in field.metadata["needs"]:
            found = getattr(point, need.of)
            if not need.met_by(found):
                yield Reason((name, need.of), f"{name} {_text(value)} has no effect: {need.of} is {_text(found)}")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def errors(points: Iterable[tuple[Point, Source]]) -> list[str]:
    """What is wrong with the points of a sweep: each place and reason once, with the number of points it holds for."""
    counts = Counter(
        f"{source.locate(reason.settings, point)}: {reason.text}"
        for point, source in points
        for reason in reasons(point)
    )
    return [f"{line} ({n} point{'s' if n > 1 else ''})" for line, n in counts.items()]
