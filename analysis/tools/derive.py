"""The tables and diagnoses of a chunk of points (analysis/ingest/derived.py), several points at a time:

    python -m nightsweep.analysis.tools.derive results/SWEEP --chunk NAME --points ID... --processes 8

Only points with other raw data than before are read. A point that cannot be analysed gets a row that says why, and does
not keep the others from theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from nightsweep.analysis.diagnosis.point_diagnosis import diagnose_point
from nightsweep.analysis.ingest import point_tables
from nightsweep.analysis.ingest.derived import OF_POINT, Chunk, Made, raw_ns
from nightsweep.analysis.metrics.steps import timeline
from nightsweep.analysis.readers import point_files
from nightsweep.analysis.tables import parquet
from nightsweep.jobs.host.cores import allowed_cores
from nightsweep.jobs.record.failures import is_disk_full
from nightsweep.jobs.record.point_folder import record_of
from nightsweep.jobs.record.raw_files import pack, unpacked
from nightsweep.jobs.sweep.file import one_line

SAVE_S = 60
"""A chunk that is killed has lost no more than this."""
KILLED = "its analysis was killed; out of memory?"


def derive(results: Path, name: str, ids: Sequence[str], processes: int) -> None:
    """Bring a chunk up to date."""
    chunk = Chunk(results / "derived" / name)
    chunk.folder.mkdir(parents=True, exist_ok=True)
    for left in chunk.folder.glob(".work-*"):  # of a run that was killed
        shutil.rmtree(left)
    began_ns = time.time_ns()
    due = chunk.due(results, ids)
    print(f"{name}: {len(due)} of {len(ids)} points to analyse")
    with tempfile.TemporaryDirectory(dir=chunk.folder, prefix=".work-") as scratch:
        new: list[Made] = []
        saved = time.monotonic()
        for one in each(results / "points", due, Path(scratch), processes, make_and_pack):
            if one.problem is not None:
                print(f"{results / 'points' / one.point_id}: {one.problem}", file=sys.stderr)
            new.append(one)
            if time.monotonic() - saved > SAVE_S:
                save(chunk, ids, new, Path(scratch))
                new, saved = [], time.monotonic()
        save(chunk, ids, new, Path(scratch))
    chunk.finish(began_ns)


def each(
    points: Path, ids: Sequence[str], scratch: Path, processes: int, function: Callable[[Path, Path, int], Made]
) -> Iterator[Made]:
    """What is made of each point, as it is done. Where a process is killed, all that were under way are lost with it,
    and made again one at a time, to find the one. `function`: `make` or `make_and_pack`."""
    waiting = list(ids)
    os.environ.setdefault("POLARS_MAX_THREADS", str(max(1, allowed_cores() // processes)))
    # Not forked: Polars' threads do not survive it.
    context = multiprocessing.get_context("forkserver")
    at_once = max(1, min(processes, len(ids)))
    share = max(1, processes // at_once)
    with ProcessPoolExecutor(at_once, context) as pool:
        futures: dict[Future[Made], str] = {}
        with contextlib.suppress(BrokenProcessPool):  # one was killed already: what is left is made below
            for i in ids:
                futures[pool.submit(function, points / i, scratch / i, share)] = i
        for future in as_completed(futures):
            point = futures.pop(future)  # a future holds its tables
            if not isinstance(future.exception(), BrokenProcessPool):
                waiting.remove(point)
                yield future.result()
    for point in waiting:
        with ProcessPoolExecutor(1, context) as pool:
            try:
                yield pool.submit(function, points / point, scratch / point, 1).result()
            except BrokenProcessPool:
                yield failed(points / point, raw_ns(points / point), KILLED)


def make(point: Path, scratch: Path, processes: int) -> Made:
    """The tables and the diagnosis of a point, or why there are none. Its trace tables are left in `scratch`.
    `processes`: how many may read its traces."""
    written_ns = raw_ns(point)
    problem = text = None
    if (whose := record_of(point).point_id) != point.name:
        return failed(point, written_ns, f"no tables: record.json is of point {whose}")
    try:
        with unpacked(point) as folder:
            tables = point_tables.ingest(folder, scratch, processes)
            try:
                point_tables.write({name: tables[name] for name in point_tables.FOR_DIAGNOSIS}, scratch)
                found = diagnose_point(folder, scratch)
                text = json.dumps(found.as_json())
                if found.path:
                    replayed = {lane.rank for lane in found.evidence.lanes}
                    bars = timeline.mark_path(tables["timeline"], found.path.spans, replayed)
                    tables = {**tables, "timeline": point_tables.as_table("timeline", bars)}
            except Exception as error:
                if is_disk_full(error):
                    raise
                lacks = "no diagnosis" if text is None else "a diagnosis, but no path in the timeline"
                problem = f"{lacks}: {one_line(f'{type(error).__name__}: {error}')}"
    except Exception as error:  # whatever broken files lead to
        if is_disk_full(error):
            raise
        return failed(point, written_ns, f"no tables: {one_line(f'{type(error).__name__}: {error}')}")
    return Made(point.name, written_ns, time.time_ns(), tables, problem, text)


def make_and_pack(point: Path, scratch: Path, processes: int) -> Made:
    """As `make`; the raw files of a point of which nothing is missing then become one archive."""
    made = make(point, scratch, processes)
    if made.problem is None:
        pack(point)
    return made


def failed(point: Path, written_ns: int, why: str) -> Made:
    """A point without tables, but for a row of its record."""
    record = record_of(point)
    try:
        row = point_files.point_row(record)
    except Exception:  # its settings may be why there are no tables
        row = {"sweep": record.sweep, "status": record.status, "reason": record.reason, "message": record.message}
    tables = {name: point_tables.as_table(name, None) for name in OF_POINT}
    frame = point_files.frame([{**row, "point_id": point.name, "notes": why}], "points")
    return Made(point.name, written_ns, time.time_ns(), tables | {"points": frame}, why)


def save(chunk: Chunk, ids: Sequence[str], new: Sequence[Made], scratch: Path) -> None:
    """Save what is made; of the new points, nothing is left in `scratch`."""
    chunk.save(ids, new, scratch)
    for one in new:
        shutil.rmtree(scratch / one.point_id, ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nightsweep.analysis.tools.derive", description="Make the tables and diagnoses of some points."
    )
    parser.add_argument("results", type=Path, help="folder of the sweep's results")
    parser.add_argument("--chunk", required=True, help="name of the chunk")
    parser.add_argument("--points", nargs="+", required=True, help="ids of its points")
    parser.add_argument("--processes", type=int, default=1, help="points that are analysed at a time (1)")
    args = parser.parse_args(argv)
    try:
        derive(args.results, args.chunk, args.points, args.processes)
    except parquet.FAULTS as error:
        parser.exit(1, f"{one_line(str(error))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
