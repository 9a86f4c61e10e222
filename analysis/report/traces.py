"""Traces of points to open in Perfetto: which points have one, and what of them is exported already."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from nightsweep.analysis.ingest.point_tables import readable

FOLDER = "perfetto"
"""Beside the report; there ID.json.gz is the trace of a point (`nightsweep export --to perfetto`)."""

NONE: dict[str, Any] = {"points": "", "bytes": {}}
"""Of a page without folders of points."""


def find_traces(points: Path | None, page: Path) -> dict[str, Any]:
    """`points`: the way from the page to the points' folders, for a shell; `bytes`: of the exported file of each point
    that has a trace, 0 where there is none."""
    if points is None:
        return NONE
    known = sorted(point.name for point in points.glob("*") if readable(point))
    files = {point: page.parent / FOLDER / f"{point}.json.gz" for point in known}
    return {
        "points": shlex.quote(os.path.relpath(points, page.parent)),
        "bytes": {point: file.stat().st_size if file.is_file() else 0 for point, file in files.items()},
    }
