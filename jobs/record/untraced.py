"""A point that was timed well, and whose traced run died of what says nothing about it: a later attempt may have both
runs. Until one does, those of the earlier one are kept beside them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from nightsweep.jobs.record.folder import KEPT
from nightsweep.jobs.record.json_files import read_json, write_json
from nightsweep.jobs.record.lost import AGAIN
from nightsweep.jobs.record.raw_files import MEASURED, clear, runs_of
from nightsweep.jobs.record.record import Record


def lacks_trace(record: Record) -> bool:
    """Whether it is of such an attempt."""
    return record.status == "ok" and record.runs.traced.reason in AGAIN


def lasts(before: Record | None, record: Record) -> bool:
    """Whether the trace of an attempt was lost like that of the one before, so that a third would not have it either.
    A preemption ends its job; only a complaint of srun's may last."""
    return before is not None and before.runs.traced.reason == record.runs.traced.reason == "node_failure"


def kept(point: Path) -> Record | None:
    """The record of the attempt that is kept; None where there is none."""
    return read_json(point / KEPT / MEASURED, Record)


def keep(point: Path, record: Record) -> None:
    """Move the runs of an attempt out of the way of the next one, and write its record last: it says that all are
    there."""
    drop(point)
    (point / KEPT).mkdir()
    for run in runs_of(point):
        run.rename(point / KEPT / run.name)
    write_json(point / KEPT / MEASURED, record)


def put_back(point: Path) -> Record | None:
    """Make the kept attempt the point's result, in place of what a later one left; its record, None where none is
    kept."""
    if (record := kept(point)) is None:
        return None
    clear(point)
    for run in runs_of(point / KEPT):
        run.rename(point / run.name)
    write_json(point / MEASURED, record)
    drop(point)
    return record


def drop(point: Path) -> None:
    """Remove what is kept, if anything is."""
    shutil.rmtree(point / KEPT, ignore_errors=True)
