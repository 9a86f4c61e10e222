"""What a page of many points leaves to a folder beside it: the rows of the table of points, and the data of their own
pages and of the figures. It is a script, for a page that is opened from a file may load no other file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightsweep.jobs.record.whole_file import write_text

MOST = 1000
"""The largest number of points that the page itself holds, and the number of rows that its table shows at a time."""
SCRIPT = "points.js"


def folder_of(page: Path) -> Path:
    """The folder beside a page: report_files for report.html."""
    return page.with_name(f"{page.stem}_files")


def write(folder: Path, table: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Write the file; the table (`point_table`) without its rows.

    Args:
        folder: where it goes; the page lies beside it.
        data: JSON of the points (`point_pages`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = json.dumps([[row["id"], row["status"], *row["cells"]] for row in table["rows"]], separators=(",", ":"))
    write_text(folder / SCRIPT, f'"use strict";\nconst BESIDE = {{rows: {rows},\ndata: {data}}};\n')
    return {**table, "rows": []}
