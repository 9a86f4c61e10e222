"""The data folders that a sweep's points name, looked for before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from nightsweep.jobs.point.point import Point

BUILTIN = "builtin"
"""The value of the setting `data` that names no folder."""


def missing_folders(points: Iterable[Point]) -> dict[str, int]:
    """Data folders that do not exist as seen from here, each with the number of points that ask for it."""
    asked = Counter(point.data for point in points if point.data not in (BUILTIN, None))
    return {data: number for data, number in asked.items() if not Path(data).is_dir()}
