"""Why a point cannot be, and where in the sweep's file that was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point


@dataclass(frozen=True)
class Reason:
    """Why a point cannot be: the settings at fault, the likeliest culprit first, and a text."""

    settings: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Source:
    """Where a point comes from: the part of the file (axes, or one include), its choices, and paths in the file."""

    choices: dict[str, list[Any]]
    paths: dict[str, str]
    listed: frozenset[str]

    def locate(self, names: tuple[str, ...], point: Point) -> str:
        """The path of the one value at fault; the values that vary where it takes several."""
        varying = [n for n in names if len(self.choices.get(n, ())) > 1]
        if len(varying) > 1:
            return f"point({', '.join(f'{n}={point.value(n)}' for n in varying)})"
        given = varying or [n for n in names if n in self.choices] or [n for n in names if n in self.paths]
        name = (given or list(names))[0]
        index = f"[{self.choices[name].index(point.value(name))}]" if name in self.listed else ""
        return self.paths.get(name, name) + index
