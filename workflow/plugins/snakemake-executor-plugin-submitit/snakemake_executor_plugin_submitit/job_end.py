"""How a submitted job ended: from what it left, and from what the scheduler says of it.

The scheduler's word counts where a launcher, from inside a dying job, can only see that its ranks are gone.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit.core.utils import JobPaths, pickle_load

from snakemake_executor_plugin_submitit.hook import Hook, Loss, LossReason
from snakemake_executor_plugin_submitit.journal import Entry
from snakemake_executor_plugin_submitit.query import last_line
from snakemake_executor_plugin_submitit.request import Request
from snakemake_executor_plugin_submitit.scheduler import State

MISSING_S = 120.0
"""A job that the scheduler has not known for so long is lost; shorter gaps are its own delays, or the file system's."""
_RESULT = "_0_result.pkl"

# How Slurm says that a job ended (man squeue, JOB STATE CODES).
_ENDS: dict[str, tuple[LossReason, bool]] = {
    "NODE_FAIL": ("node_failure", True),
    "BOOT_FAIL": ("node_failure", True),
    "PREEMPTED": ("preempted", True),
    "TIMEOUT": ("time_limit", False),
    "DEADLINE": ("time_limit", False),
    "OUT_OF_MEMORY": ("host_out_of_memory", False),
    "CANCELLED": ("cancelled", False),
    "REVOKED": ("cancelled", False),
}


@dataclass
class Track:
    """What the executor knows of one submitted job."""

    key: str
    request: Request
    command: str
    logs: tuple[Path, ...] = ()
    folder: Path = Path()
    name: str = ""
    place: tuple[int, int] = (0, 1)
    losses: int = 0
    left: int = 0
    """Of a job that was sent again for want of time: how much it had not come to."""
    missing_since: float | None = None
    refused: str | None = None
    nodes: str = ""


def list_finished(folders: Iterable[Path]) -> set[str]:
    """Ids of jobs that left submitit's result: one listing for each array's folder."""
    names = [entry.name for folder in folders if folder.is_dir() for entry in os.scandir(folder)]
    return {name.removesuffix(_RESULT) for name in names if name.endswith(_RESULT)}


def is_open(track: Track, job_id: str | None, finished: set[str], states: Mapping[str, State] | None) -> bool:
    """Whether nothing was heard that could be the job's end, so that its own account need not be read."""
    if track.refused or job_id in finished:
        return False
    if states is None or job_id is None:
        return True
    if job_id in states and states[job_id].active:
        track.missing_since, track.nodes = None, states[job_id].nodes
        return True
    return False


def exit_code(folder: Path, job_id: str) -> int:
    """Exit code of the job's command; 1 where submitit could not run it."""
    outcome, value = pickle_load(JobPaths(folder, job_id, 0).result_pickle)
    return int(value) if outcome == "success" else 1


def ended_well(entry: Entry) -> bool:
    """Whether a job of an earlier driver ran to its end, whoever watched."""
    job_id = entry.job_id
    return job_id is not None and job_id in list_finished({entry.folder}) and exit_code(entry.folder, job_id) == 0


def is_wanted_again(entry: Entry, inputs: Iterable[Path] = ()) -> bool:
    """Whether what such a job wrote was removed, or is older than what it is made of: it ended well, so long ago that
    its files would be seen by now."""
    if not ended_well(entry):
        return False
    if entry.is_written():
        made = min(Path(output).stat().st_mtime_ns for output in entry.key.splitlines())
        return any(path.stat().st_mtime_ns > made for path in inputs)
    result: Path = JobPaths(entry.folder, entry.job_id, 0).result_pickle
    with tempfile.TemporaryFile(dir=result.parent) as now:  # this host's clock is another than that of the file's
        return os.fstat(now.fileno()).st_mtime - result.stat().st_mtime > MISSING_S


def loss_of_state(state: str, nodes: str) -> Loss | None:
    """What a final state of the scheduler means; None where it says nothing against the job's own result."""
    if state not in _ENDS:
        return None
    reason, again = _ENDS[state]
    where = f" on {nodes}" if nodes and not nodes.startswith("None") else ""
    return Loss(reason, f"Slurm ended the job as {state}{where}", again)


def judge_end(
    track: Track, job_id: str | None, code: int | None, hook: Hook, job: Any, states: Mapping[str, State] | None
) -> Loss | bool | None:
    """True: the job ended well, or tells itself how it ended. A Loss: it did not. None: that is open.

    code: of the job's command, where it ended; states: what the scheduler said, where it was asked just now.
    """
    if track.refused or job_id is None:
        return Loss("launch_failed", track.refused or "not submitted")
    verdict = hook.verdict(job)
    done = code == 0 and verdict != "missing"
    if done and isinstance(verdict, Loss):
        return verdict
    if done and verdict != "doubtful":
        return True
    if states is None:
        return None
    state = states.get(job_id)
    if state is None:
        return done or _judge_missing(track)
    track.nodes = state.nodes or track.nodes
    if state.active:  # its batch step has ended, and Slurm is not yet done with it
        track.missing_since = None
        return None
    if verdict == "ok":
        return True
    if done:
        return loss_of_state(state.name, state.nodes) or True
    if loss := loss_of_state(state.name, state.nodes):
        return loss
    silent: LossReason = "failed" if verdict is None else "lost" if hook.has_begun(job) else "launch_failed"
    return _judge_silent(track, job_id, code, silent, state)


def _judge_silent(track: Track, job_id: str, code: int | None, reason: LossReason, state: State) -> Loss | None:
    """The scheduler finds nothing wrong with a job that left no result."""
    if code in (None, 0) and state.name == "COMPLETED":
        return _judge_missing(track)
    files = (*track.logs, JobPaths(track.folder, job_id, 0).stdout)
    logs = [file for file in files if file.exists() and file.stat().st_size]
    said = "it left no log"
    if logs:
        lines = logs[0].read_text(errors="replace").splitlines()
        own = "\n".join(line for line in lines if not line.startswith("submitit "))
        said = f"{last_line(own)} ({logs[0]})"
    end = "without a result" if code is None else f"code {code}"
    message = f"the job ended as {state.name}, {end}: {said}"
    return Loss(reason, message, again=reason == "lost")


def _judge_missing(track: Track) -> Loss | None:
    """The scheduler does not know the job, or its result is not to be seen, for now or for good."""
    track.missing_since = track.missing_since or time.monotonic()
    if time.monotonic() - track.missing_since < MISSING_S:
        return None
    return Loss("lost", "the scheduler no longer knows the job, and it left no result", again=True)
