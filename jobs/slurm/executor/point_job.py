"""What the executor knows of the rule `point`: its output is a record, and a lost point gets one from the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jobs.record import lost
from jobs.record.json_files import read_json
from jobs.record.record import Record, write_record
from jobs.sweep import rounds


def record_of(job: Any) -> tuple[Path, Record | None] | None:
    """Path and content of the record that this job writes; None for a job of another rule."""
    if job.is_group() or not job.output:
        return None
    path = Path(str(job.output[0]))  # not the rule's name: a workflow that uses this one as a module may give another
    return (path, read_json(path, Record)) if path.match("points/*/record.json") else None


def write_loss(job: Any, loss: lost.Loss, losses: int, slurm_id: str | None) -> bool:
    """The record of a lost point; False where the job is not one."""
    found = record_of(job)
    if found is None:
        return False
    path = found[0]
    own = rounds.job_of(path.parents[2], path.parent.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_record(path, lost.lost_record(own, loss, losses + 1, slurm_id))
    return True
