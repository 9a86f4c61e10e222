"""Traces of points to open in Perfetto: which points have one, and what of them is exported already."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from nightsweep.analysis.ingest.point_tables import readable

FOLDER = "perfetto"
"""Beside the report; there ID.json.gz is the trace of a point (`nightsweep export --to perfetto`)."""

PLAIN = re.compile(r"[\w.-]+").fullmatch
"""Of a folder's name: it stands in a command that a reader pastes into a shell."""
NONE: dict[str, Any] = {"points": "", "bytes": {}}
"""Of a page without folders of points."""


def find_traces(points: Path | None, page: Path) -> dict[str, Any]:
    """`points`: the way from the page to the points' folders, for a shell; `bytes`: of the exported file of each point
    that has a trace, 0 where there is none."""
    known = sorted(point.name for point in points.glob("*") if PLAIN(point.name) and readable(point)) if points else []
    if points is None or not known:
        return NONE
    files = {point: page.parent / FOLDER / f"{point}.json.gz" for point in known}
    return {
        "points": shlex.quote(os.path.relpath(points, page.parent)),
        "bytes": {point: file.stat().st_size if file.is_file() else 0 for point, file in files.items()},
    }
