"""Which change of settings mends a cause: the first of a rule's proposals that changes the point and that it can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from nightsweep.jobs.point import check as constraints
from nightsweep.jobs.point.point import Point, applicable

Change = Mapping[str, Any]
SCRIPT = "command"
"""The workload that a script is."""


def choose(point: Point | None, *proposals: Change) -> dict[str, Any]:
    """The settings to change; empty where none of the proposals can be. Without a point the trace is of somebody's
    script: then it is the first that a script can be run with, for nothing more is known of it."""
    settings = applicable(point.workload if point else SCRIPT)
    for proposal in proposals:
        change = {name: value for name, value in proposal.items() if point is None or getattr(point, name) != value}
        if change and proposal.keys() <= set(settings) and (point is None or is_possible(point, change)):
            return change
    return {}


def is_possible(point: Point, change: Change) -> bool:
    """Whether a point with this change has nothing wrong with it that it has not now."""
    before = {reason.text for reason in constraints.reasons(point)}
    return not {r.text for r in constraints.reasons(dataclasses.replace(point, **change))} - before


def larger_batch(point: Point | None, times: int) -> list[Change]:
    """The proposal of a batch so many times as large."""
    if point is None or point.workload == SCRIPT or times <= 1:
        return []
    return [{"micro_batch": point.micro_batch * times}]
