"""Pairs of points that differ in a switch alone: what a technique does, with it and without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nightsweep.jobs.point.point import Point, applicable, complete
from nightsweep.jobs.sweep import code

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """One entry of a sweep's `pairs`.

    Attributes:
        name: of the technique.
        against: what it is used against.
        base: settings of both points.
        without, having: the switch's settings in the point without the technique, and in the one with it.
        not_shown: why there are no points; None where there are.
    """

    name: str
    against: tuple[str, ...]
    base: Settings
    without: Settings
    having: Settings
    not_shown: str | None = None

    def points(self) -> tuple[Point, Point]:
        """Without it, with it."""
        return _point({**self.base, **self.without}), _point({**self.base, **self.having})


def select_settings(settings: Settings) -> dict[str, Any]:
    """Those of the point's workload: a base may hold others', too. Scripts have any names."""
    workload = settings["workload"]
    return {name: settings[name] for name in settings if workload == "command" or name in applicable(workload)}


def _point(settings: Settings) -> Point:
    return code.with_code(complete(select_settings(settings)))


def pairs(content: Mapping[str, Any]) -> tuple[Pair, ...]:
    """The pairs of a checked sweep file."""
    base, bases = content.get("base", {}), content.get("bases", {})
    return tuple(
        Pair(
            name,
            tuple(entry.get("against", ())),
            {**base, **bases.get(entry.get("base"), {}), **entry.get("both", {})},
            entry.get("without", {}),
            entry.get("with", {}),
            entry.get("not_shown"),
        )
        for name, entry in content.get("pairs", {}).items()
    )


def errors(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with the pairs of a file whose shape is right, a line each."""
    return [line for name, entry in content.get("pairs", {}).items() for line in _errors(name, entry, content)]


def _errors(name: str, entry: Mapping[str, Any], content: Mapping[str, Any]) -> Iterable[str]:
    bases, path = content.get("bases", {}), f"pairs.{name}"
    if "base" in entry and entry["base"] not in bases:
        there = f"there are {', '.join(bases)}" if bases else "the file has no bases"
        yield f"{path}.base: {entry['base']!r} is none of the bases ({there})"
    if "not_shown" in entry:
        return
    if not entry.get("without") and not entry.get("with"):
        yield f"{path}: has no switch; 'without' or 'with' is expected"
    for setting in entry.get("both", {}).keys() & {*entry.get("without", {}), *entry.get("with", {})}:
        yield f"{path}.both.{setting}: is the switch's, too"
    if "without" in entry and entry.get("without") == entry.get("with"):
        yield f"{path}.with: is the same as 'without'"
