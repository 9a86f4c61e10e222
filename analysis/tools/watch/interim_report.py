"""The report of a sweep that still runs, from the points measured so far:

    python -m nightsweep.analysis.tools.watch.interim_report results/SWEEP PAGE SCRATCH

Points whose chunk the workflow has not derived yet are derived here, into SCRATCH, which is kept from page to page and
must be on the disk of PAGE. Nothing is written into results/SWEEP. It runs at the lowest priority and uses one core.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from nightsweep.analysis.ingest.derived import Chunk, Derived, Made, raw_ns, read_made
from nightsweep.analysis.report import beside, records, sweep_page
from nightsweep.analysis.report.interim import Interim
from nightsweep.analysis.report.traces import find_traces
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tools import collect
from nightsweep.analysis.tools.derive import each, make
from nightsweep.analysis.tools.draw import draw
from nightsweep.analysis.tools.watch.report_keeper import EVERY_S
from nightsweep.analysis.tools.watch.state import SweepReader
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.json_files import FormatError, load_json
from nightsweep.jobs.record.raw_files import ARCHIVE
from nightsweep.jobs.sweep import chunks, rounds

OWN = "interim"
"""The chunk of the points that are derived here; those of the workflow have names that end in a number."""
LOWEST_PRIORITY = 19


def write_report(sweep: Path, page: Path, scratch: Path, most: int = chunks.SIZE) -> int:
    """Write the page of the points measured so far.

    Args:
        sweep: results/SWEEP.
        page: HTML file to write.
        scratch: folder of what is derived here.
        most: points to derive at most, so that the first page of a long night does not wait for all of them.

    Returns:
        How many measured points are not in it yet.

    Raises:
        InputError: there is no list of points.
        FormatError: a list of points is being written.
    """
    state = SweepReader(sweep).read(time.time())
    at = datetime.now(UTC)
    listed, *added = (load_json(file, dict) for file in (sweep / "sweep.json", *rounds.files(sweep)))
    ids = list(dict.fromkeys(point["point_id"] for one in (listed, *added) for point in one["points"]))
    absent = derive_rest(sweep, scratch / "derived", ids, most)
    tables, figures, out = scratch / "tables", scratch / "figures", scratch / "page"
    for folder in (tables, figures, out):
        shutil.rmtree(folder, ignore_errors=True)
    tables.mkdir()
    for name, parts in collect.collect(listed, Derived(scratch / "derived"), added):
        collect.write(parts, tables / f"{name}.parquet")
    draw(tables, figures, processes=1)
    interim = Interim(
        **{name: getattr(state, name) for name in ("points", "done", "failed", "running", "left_s")},
        absent=absent,
        at=f"{at:%Y-%m-%d %H:%M} UTC",
        reload_s=EVERY_S,
    )
    found = records.read(sweep / "points")
    logs, folder = records.logs(sweep / "points", found), beside.folder_of(out / page.name)
    going_on = interim if state.left or absent else None
    text = sweep_page.render(
        dataset.load(tables), figures, found, logs, folder, going_on, find_traces(sweep / "points", page)
    )
    out.mkdir(exist_ok=True)
    (out / page.name).write_text(text, encoding="utf-8")
    replace(out / page.name, page)
    return absent


def derive_rest(sweep: Path, derived: Path, ids: Sequence[str], most: int) -> int:
    """Bring `derived` up to date: links to the workflow's chunks, and a chunk of measured points that these lack.
    Returns how many measured points it still lacks."""
    derived.mkdir(exist_ok=True)
    for link in derived.iterdir():
        if link.is_symlink():
            link.unlink()
    theirs: set[tuple[str, int]] = set()
    for folder in sorted(path.parent.absolute() for path in (sweep / "derived").glob("*/made.parquet")):
        if is_whole(folder):
            (derived / folder.name).symlink_to(folder)
            theirs.update(read_made(folder).select("point_id", "raw_ns").iter_rows())
    points, own = sweep / "points", Chunk(derived / OWN)
    kept = set(own.made.select("point_id", "raw_ns").iter_rows())
    rest = {point: at for point in ids if (at := raw_ns(points / point)) and (point, at) not in theirs}
    due = [point for point in rest if (point, rest[point]) not in kept]
    unpacked = {point for point in due[:most] if not (points / point / ARCHIVE).exists()}
    new = make_all(points, due[:most], derived.parent)
    # Of a point that the workflow packed meanwhile, files may have gone while they were read.
    packed = [point for point in due[:most] if point in unpacked and (points / point / ARCHIVE).exists()]
    new = [one for one in new if one.point_id not in packed] + make_all(points, packed, derived.parent)
    own.save([point for point in rest if point not in due[most:]], new)
    return len(due[most:])


def make_all(points: Path, ids: Sequence[str], scratch: Path) -> list[Made]:
    """What is made of these points, without their trace tables: a report needs none."""
    found: list[Made] = []
    with tempfile.TemporaryDirectory(dir=scratch) as work:
        for one in each(points, ids, Path(work), 1, make):
            found.append(one)
            shutil.rmtree(Path(work) / one.point_id, ignore_errors=True)
    return found


def is_whole(chunk: Path) -> bool:
    """Whether all tables of a chunk can be read: the workflow may be at work on it."""
    try:
        read_made(chunk)
        for file in chunk.glob("*.parquet"):
            pl.read_parquet_schema(file)
    except (FormatError, OSError, pl.exceptions.PolarsError):
        return False
    return True


def replace(new: Path, page: Path) -> None:
    """Put a page in its place, with the files beside it first: a reader never sees half of one."""
    folder, target = beside.folder_of(new), beside.folder_of(page)
    if folder.is_dir():
        target.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.replace(target / file.name)
    new.replace(page)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the report of a sweep that still runs.")
    for name in ("sweep", "page", "scratch"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args(argv)
    try:
        if SweepReader(args.sweep).read(time.time()).running:  # maybe on this machine
            os.nice(LOWEST_PRIORITY)
        while write_report(args.sweep, args.page, args.scratch):
            pass
    except (InputError, FormatError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
