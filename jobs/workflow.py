"""What the Snakefile needs of the Python side: the sweep's list of points on disk, and one driver at a time."""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from jobs.look import read_json, write_json
from jobs.sweep import Sweep

_held: list[IO[str]] = []


def hold(folder: Path) -> None:
    """Keep other drivers off these results until this process ends, however it ends. Raises SystemExit with a line
    when one is at work: unlike Snakemake's own lock, this one does not outlive a killed driver."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".driver").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"{folder}: another Nightsweep is at work on these results") from None
    _held.append(lock)


def write_sweep(path: Path, sweep: Sweep) -> None:
    """sweep.json: the name and all points. Left alone when it is right, so that nothing is rebuilt for its date."""
    content = {
        "name": sweep.name,
        "points": [{"point_id": point.id, "settings": point.settings()} for point in sweep.points],
    }
    if not path.exists() or json.loads(path.read_text()) != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)


def summarize(folder: Path, points: Iterable[str]) -> None:
    """The last lines of a run: how the points ended, what failed, where the report is."""
    records = {point: read_json(folder / "points" / point / "record.json") or {} for point in points}
    bad = {point: r for point, r in records.items() if r.get("status") != "ok"}
    print(f"{len(records) - len(bad)} of {len(records)} points ok", file=sys.stderr)
    for point, record in list(bad.items())[:20]:
        print(f"  {point} {record.get('status', 'not_run')}: {record.get('message')}", file=sys.stderr)
    page = folder / "report.html"
    if page.exists():
        print(f"report: {page.resolve()}", file=sys.stderr)
