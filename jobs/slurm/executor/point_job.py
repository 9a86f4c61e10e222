"""What the executor knows of the rule `point`: its output is a record, the last of those of the points that its job
measures, and lost points get theirs from the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs

from jobs.record import lost
from jobs.record.json_files import read_json
from jobs.record.phases import last_attempt
from jobs.record.raw_files import measured_record
from jobs.record.record import Record, write_record
from jobs.sweep import rounds


def leader_of(job: Any) -> Path | None:
    """Path of the record that this job writes; None for a job of another rule."""
    if job.is_group() or not job.output:
        return None
    path = Path(str(job.output[0]))  # not the rule's name: a workflow that uses this one as a module may give another
    return path if path.match("points/*/record.json") else None


def block_of(job: Any, leader: Path) -> list[Path]:
    """Paths of the records of all points that the job measures, the leader's first. A rule of another workflow names no
    others in its params."""
    folders = map(Path, getattr(job.params, "folders", ()))
    return [leader, *(folder / "record.json" for folder in folders if folder != leader.parent)]


def record_of(job: Any) -> tuple[Path, Record | None] | None:
    """The record that a job of points is judged by: the leader's, and where it is there and ok, the first that is not;
    with its path. None for a job of another rule."""
    leader = leader_of(job)
    if leader is None:
        return None
    if (record := read_json(leader, Record)) is None or record.status != "ok":
        return leader, record
    others = ((path, read_json(path, Record)) for path in block_of(job, leader))
    return next(((path, one) for path, one in others if one is not None and one.status != "ok"), (leader, record))


def unmeasured(job: Any) -> int:
    """How many points of a job that has ended have no record; 0 for a job of another rule."""
    leader = leader_of(job)
    return 0 if leader is None else sum(not path.exists() for path in block_of(job, leader))


def take_back_leader(job: Any) -> None:
    """Remove the leader's record of a job that is sent again for the rest of its points, which brings it back."""
    if (leader := leader_of(job)) is not None:
        leader.unlink(missing_ok=True)


def take_back(job: Any) -> None:
    """Remove the records of a lost job that is sent again: the leader's, which the job brings back, and of the others
    those that may have failed of what ended the job."""
    if (leader := leader_of(job)) is not None:
        for path in block_of(job, leader):
            record = read_json(path, Record)
            if path == leader or record is None or record.reason in lost.DOUBTFUL | lost.AGAIN:
                path.unlink(missing_ok=True)


def write_loss(job: Any, loss: lost.Loss, losses: int, slurm_id: str | None) -> bool:
    """Write the records of the points of a lost job, the leader's last; those that it had measured, or that had failed
    by themselves, have theirs. False where the job is not one of points."""
    leader = leader_of(job)
    if leader is None:
        return False
    for path in reversed(block_of(job, leader)):
        path.parent.mkdir(parents=True, exist_ok=True)
        record = measured_record(path.parent) or (None if path == leader else read_json(path, Record))
        if record is None:
            own = rounds.job_of(path.parents[2], path.parent.name)
            record = lost.lost_record(own, loss, losses + 1, slurm_id)
            record = structs.replace(record, phases=last_attempt(path.parent))
        write_record(path, record)
    return True
