"""How a submitted job ended: from what it left, and from what the scheduler says of it.

The scheduler's word counts where a launcher, from inside a dying job, can only see that its ranks are gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from submitit.core.utils import JobPaths, pickle_load

from jobs.record.lost import AGAIN, DOUBTFUL, Loss, loss_of_state
from jobs.record.point_folder import count_attempts
from jobs.record.record import Record
from jobs.slurm.executor.journal import Entry
from jobs.slurm.executor.request import Request
from jobs.slurm.executor.scheduler import State
from jobs.slurm.query import last_line

MISSING_S = 120.0
"""A job that the scheduler has not known for so long is lost; shorter gaps are its own delays, or the file system's."""
_RESULT = "_0_result.pkl"

Found = tuple[Path, Record | None] | None
"""Path and content of the record that a point's job writes; None for a job of another rule."""


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
    """Of a job that was sent again for want of time: how many points it had not come to."""
    missing_since: float | None = None
    refused: str | None = None
    nodes: str = ""


def list_finished(folders: Iterable[Path]) -> set[str]:
    """Ids of jobs that left submitit's result: one listing for each array's folder."""
    names = [entry.name for folder in folders if folder.is_dir() for entry in os.scandir(folder)]
    return {name.removesuffix(_RESULT) for name in names if name.endswith(_RESULT)}


def is_open(track: Track, job_id: str | None, finished: set[str], states: Mapping[str, State] | None) -> bool:
    """Whether nothing was heard that could be the job's end, so that its record need not be read."""
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
    return time.time() - result.stat().st_mtime > MISSING_S


def judge_end(
    track: Track, job_id: str | None, code: int | None, found: Found, states: Mapping[str, State] | None
) -> Loss | bool | None:
    """True: the job ended well, or its record says how. A Loss: it did not. None: that is open.

    code: of the job's command, where it ended; states: what the scheduler said, where it was asked just now.
    """
    if track.refused or job_id is None:
        return Loss("launch_failed", track.refused or "not submitted")
    record = found[1] if found else None
    done = code == 0 and (found is None or record is not None)
    if done and record is not None and record.reason in AGAIN:
        return Loss(record.reason, record.message or "", again=True)
    if done and (record is None or record.reason not in DOUBTFUL):
        return True
    if states is None:
        return None
    state = states.get(job_id)
    if state is None:
        return _judge_missing(track, done)
    track.nodes = state.nodes or track.nodes
    if state.active:  # its batch step has ended, and Slurm is not yet done with it
        track.missing_since = None
        return None
    if record is not None and record.status == "ok":
        return True
    if done:
        return loss_of_state(state.name, state.nodes) or True
    return loss_of_state(state.name, state.nodes) or _judge_unrecorded(track, job_id, code, found, state)


def _judge_unrecorded(track: Track, job_id: str, code: int | None, found: Found, state: State) -> Loss | bool | None:
    """The scheduler finds nothing wrong with a job that left no record."""
    if code in (None, 0) and state.name == "COMPLETED":
        return _judge_missing(track, done=False)
    logs = [
        log for log in (*track.logs, JobPaths(track.folder, job_id, 0).stdout) if log.exists() and log.stat().st_size
    ]
    said = f"{last_line(logs[0].read_text(errors='replace'))} ({logs[0]})" if logs else "it left no log"
    message = f"the job ended as {state.name}, code {code}, without a record: {said}"
    if found and count_attempts(found[0].parent):  # its launcher was killed
        return Loss("lost", message, again=True)
    return Loss("launch_failed", message)


def _judge_missing(track: Track, done: bool) -> Loss | bool | None:
    """The scheduler does not know the job, or its result is not to be seen, for now or for good."""
    if done:
        return True
    track.missing_since = track.missing_since or time.monotonic()
    if time.monotonic() - track.missing_since < MISSING_S:
        return None
    return Loss("lost", "the scheduler no longer knows the job, and it left no result", again=True)
