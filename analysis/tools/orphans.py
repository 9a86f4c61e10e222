"""`nightsweep orphans CONFIG`: points under results/SWEEP that an edited sweep file no longer has."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from nightsweep.analysis.ingest.derived import forget
from nightsweep.jobs.sweep import rounds
from nightsweep.jobs.sweep.driver import take_lock
from nightsweep.jobs.sweep.file import read
from nightsweep.jobs.sweep.sweep import load

POINT_ID = re.compile(r"[0-9a-f]{12}")
PLACES = ("points/{}", "logs/points/{}.log", "logs/points/{}.led.log")
"""What a point alone has under results/SWEEP; its rows are in the tables of a chunk."""


def find_orphans(config: Path, results: Path) -> list[str]:
    """Ids of the points under results/SWEEP that neither the file, nor any preset of it, nor a round has.
    Raises SweepError, and FormatError where the file of a round cannot be read."""
    sweeps = [load(config, preset) for preset in (None, *read(config).get("presets", {}))]
    precisions = {sweep.design.precision.folder for sweep in sweeps if sweep.design.precision}
    known = set(rounds.added_ids(results, rounds.REMEDIES, *sorted(precisions)))
    known |= {point.id for sweep in sweeps for point in sweep.points}
    folders = (results / "points").glob("*")
    return sorted(path.name for path in folders if POINT_ID.fullmatch(path.name) and path.name not in known)


def remove_points(results: Path, ids: Sequence[str]) -> None:
    """Delete what these points have under results/SWEEP. Raises InputError while a run is under way there."""
    with take_lock(results):
        for path in (results / place.format(point) for point in ids for place in PLACES):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        forget(results / "derived", ids)
