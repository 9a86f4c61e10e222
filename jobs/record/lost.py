"""Records of points whose launcher could not write one: its node died, the scheduler ended it, or it never started."""

from __future__ import annotations

from pathlib import Path

from nightsweep.jobs.host.facts import SlurmJob
from nightsweep.jobs.record.failures import Reason
from nightsweep.jobs.record.folder import utc_now
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.launch_files import Job
from nightsweep.jobs.record.point_folder import by_rank
from nightsweep.jobs.record.record import NvmlUse, Record, TracerUse

AGAIN: frozenset[Reason] = frozenset({"node_failure", "preempted"})
"""Reasons of a launcher's own record that say nothing about the point."""
DOUBTFUL: frozenset[Reason] = frozenset(
    {"launch_failed", "rank_killed", "rank_exit", "rank_exception", "interrupted", "stalled"}
)
"""Reasons that the death of a node or of the job also looks like, from inside: the scheduler decides."""
SET_ASIDE: frozenset[Reason] = AGAIN | {"cancelled", "disk_full", "interrupted", "launch_failed", "lost"}
"""Reasons for which a person may well want the point measured again (`nightsweep retry`)."""


def lost_record(job: Job, reason: Reason, message: str, attempt: int, slurm_id: str | None) -> Record:
    """The record of a point that was lost."""
    unmeasured = "the point was not measured"
    point = job.point()
    return Record(
        point_id=job.point_id,
        sweep=job.sweep,
        settings=point.settings(),
        status="cancelled" if reason == "cancelled" else "failed",
        reason=reason,
        message=message,
        attempt=attempt,
        ended_at=utc_now(),
        tracer=TracerUse(reason=unmeasured),
        nvml=NvmlUse(reason=unmeasured),
        world_size=point.world_size,
        slurm=SlurmJob(job_id=slurm_id),
    )


def set_aside(folder: Path) -> str | None:
    """Make a lost point unmeasured again by renaming its record; why (a reason, or `unreadable`), or None where the
    record stays, or there is none."""
    path = folder / "record.json"
    record = read_json(path, Record)
    if not path.exists() or (record is not None and (record.status == "ok" or record.reason not in SET_ASIDE)):
        return None
    earlier = [number for number, _ in by_rank(folder, r"record\.aside-(\d+)\.json")]
    path.rename(folder / f"record.aside-{max(earlier, default=0) + 1}.json")
    return record.reason if record is not None else "unreadable"
