"""What the settings of one point must not be together.

Each check is a function of a point that yields a `Reason` for each conflict, beside the settings of its subject
(jobs/point/settings); where a setting has an effect is said by the setting itself (`needs`).
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nightsweep.jobs.point import template
from nightsweep.jobs.point.point import FIELDS, Point, applicable, defaults
from nightsweep.jobs.point.reason import Reason, Source
from nightsweep.jobs.point.settings import command, compute, image, job, llm, measuring, parallel
from nightsweep.jobs.point.template import as_text

Check = Callable[[Point], Iterator[Reason]]

BUILT_IN: tuple[Check, ...] = (*job.CHECKS, *parallel.CHECKS, *compute.CHECKS, *image.CHECKS, *llm.CHECKS)


def reasons(point: Point) -> list[Reason]:
    """All that is wrong with a point."""
    own = command.CHECKS if point.workload == "command" else BUILT_IN
    return [reason for check in (*own, *measuring.CHECKS, unknown, vain) for reason in check(point)]


def unknown(point: Point) -> Iterator[Reason]:
    """Axes of the user's that nothing reads: they are slips of the pen, or settings of another workload."""
    try:
        read = set().union(*(template.fields(point.value(name) or "") for name in template.TEMPLATES))
    except template.TemplateError:
        return  # which is told as such
    for name, _ in point.variables:
        if name in read or name.startswith((template.ENVIRONMENT, template.CONFIG)):
            continue
        close = difflib.get_close_matches(name, applicable("command"), 1)
        kind = "no setting of workload command" if name in FIELDS else "unknown setting"
        hint = f"did you mean {close[0]!r}?" if close else f"the command has no {{{name}}}"
        yield Reason((name,), f"{kind} ({hint})")


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
                yield Reason((name, need.of), f"{name} {as_text(value)} has no effect: {need.of} is {as_text(found)}")


def errors(points: Iterable[tuple[Point, Source]]) -> list[str]:
    """What is wrong with the points of a sweep: each place and reason once, with the number of points it holds for."""
    counts = Counter(
        f"{source.locate(reason.settings, point)}: {reason.text}"
        for point, source in points
        for reason in reasons(point)
    )
    return [f"{line} ({n} point{'s' if n > 1 else ''})" for line, n in counts.items()]
