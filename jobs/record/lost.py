"""Records of points whose launcher could not write one: its node died, the scheduler ended it, or it never started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.point.point import complete
from jobs.record.folder import RECORD_SCHEMA, read_json, utc_now, write_json


@dataclass(frozen=True)
class Loss:
    """Why a job left no result of its own. again: the same job elsewhere, or later, may well succeed."""

    reason: str
    message: str
    again: bool = False


# How Slurm says that a job ended (man squeue, JOB STATE CODES), as a reason of analysis.tables.points.REASONS.
_ENDS = {
    "NODE_FAIL": ("node_failure", True),
    "BOOT_FAIL": ("node_failure", True),
    "PREEMPTED": ("preempted", True),
    "TIMEOUT": ("time_limit", False),
    "DEADLINE": ("time_limit", False),
    "OUT_OF_MEMORY": ("host_out_of_memory", False),
    "CANCELLED": ("cancelled", False),
    "REVOKED": ("cancelled", False),
}
AGAIN = frozenset({"node_failure", "preempted"})
"""Reasons of a launcher's own record that say nothing about the point."""
DOUBTFUL = frozenset({"launch_failed", "rank_killed", "rank_exit", "rank_exception", "interrupted", "stalled"})
"""Reasons that the death of a node or of the job also looks like, from inside: the scheduler decides."""
SET_ASIDE = AGAIN | {"cancelled", "interrupted", "launch_failed", "lost"}
"""Reasons for which a person may well want the point measured again (`nightsweep retry`)."""


def of_state(state: str, nodes: str) -> Loss | None:
    """What a final state of the scheduler means; None where it says nothing against the job's own result."""
    if state not in _ENDS:
        return None
    reason, again = _ENDS[state]
    where = f" on {nodes}" if nodes and not nodes.startswith("None") else ""
    return Loss(reason, f"Slurm ended the job as {state}{where}", again)


def write(path: Path, job: dict[str, Any], loss: Loss, attempt: int, slurm_id: str | None) -> None:
    """record.json of a point that was lost; see docs/formats.md."""
    point = complete(job["settings"])
    status = {"cancelled": "cancelled", "launch_failed": "not_run"}.get(loss.reason, "failed")
    look = {"status": "skipped", "reason": None, "message": None, "started_ns": None, "ended_ns": None, "wall_s": None}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path,
        {
            "schema": RECORD_SCHEMA,
            "point_id": job["point_id"],
            "sweep": job["sweep"],
            "settings": point.settings(),
            "status": status,
            "reason": loss.reason,
            "message": loss.message,
            "attempt": attempt,
            "ended_at": utc_now(),
            "failure": None,
            "looks": {"timed": look, "traced": look, "control": look},
            "tracer": {"used": None, "reason": "the point was not measured"},
            "nvml": {"available": False, "reason": "the point was not measured"},
            "world_size": point.world_size,
            "events": [],
            "hosts": [],
            "slurm": {"job_id": slurm_id},
        },
    )


def set_aside(folder: Path) -> str | None:
    """Make a lost point unmeasured again by renaming its record; its reason, or None where the record stays."""
    path = folder / "record.json"
    record = read_json(path)
    if record is None or record.get("status") == "ok" or record.get("reason") not in SET_ASIDE:
        return None
    number = len(list(folder.glob("record.aside-*.json"))) + 1
    path.rename(folder / f"record.aside-{number}.json")
    return str(record["reason"])
