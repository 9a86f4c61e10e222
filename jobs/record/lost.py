"""Records of points whose launcher could not write one: its node died, the scheduler ended it, or it never started."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from jobs.host.facts import SlurmJob
from jobs.record.failures import Reason
from jobs.record.folder import utc_now
from jobs.record.json_files import read_json
from jobs.record.launch_files import Job
from jobs.record.record import NvmlUse, Record, TracerUse


@dataclass(frozen=True)
class Loss:
    """Why a job left no result of its own. again: the same job elsewhere, or later, may well succeed."""

    reason: Reason
    message: str
    again: bool = False

    def named_nodes(self) -> list[str]:
        """Nodes that the message names: Slurm may take minutes to notice that they are gone."""
        return re.findall(r"(?:Node failure on|on node) ([\w.-]*\w)", self.message)


# How Slurm says that a job ended (man squeue, JOB STATE CODES), as a reason of jobs/record/failures.py.
_ENDS: dict[str, tuple[Reason, bool]] = {
    "NODE_FAIL": ("node_failure", True),
    "BOOT_FAIL": ("node_failure", True),
    "PREEMPTED": ("preempted", True),
    "TIMEOUT": ("time_limit", False),
    "DEADLINE": ("time_limit", False),
    "OUT_OF_MEMORY": ("host_out_of_memory", False),
    "CANCELLED": ("cancelled", False),
    "REVOKED": ("cancelled", False),
}
AGAIN: frozenset[Reason] = frozenset({"node_failure", "preempted"})
"""Reasons of a launcher's own record that say nothing about the point."""
DOUBTFUL: frozenset[Reason] = frozenset(
    {"launch_failed", "rank_killed", "rank_exit", "rank_exception", "interrupted", "stalled"}
)
"""Reasons that the death of a node or of the job also looks like, from inside: the scheduler decides."""
SET_ASIDE: frozenset[Reason] = AGAIN | {
    "cancelled",
    "disk_full",
    "interrupted",
    "launch_failed",
    "lost",
}
"""Reasons for which a person may well want the point measured again (`nightsweep retry`)."""


def loss_of_state(state: str, nodes: str) -> Loss | None:
    """What a final state of the scheduler means; None where it says nothing against the job's own result."""
    if state not in _ENDS:
        return None
    reason, again = _ENDS[state]
    where = f" on {nodes}" if nodes and not nodes.startswith("None") else ""
    return Loss(reason, f"Slurm ended the job as {state}{where}", again)


def lost_record(job: Job, loss: Loss, attempt: int, slurm_id: str | None) -> Record:
    """The record of a point that was lost."""
    unmeasured = "the point was not measured"
    point = job.point()
    return Record(
        point_id=job.point_id,
        sweep=job.sweep,
        settings=point.settings(),
        status="cancelled" if loss.reason == "cancelled" else "failed",
        reason=loss.reason,
        message=loss.message,
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
    number = len(list(folder.glob("record.aside-*.json"))) + 1
    path.rename(folder / f"record.aside-{number}.json")
    return record.reason if record is not None else "unreadable"
