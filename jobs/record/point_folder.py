"""What a point's folder says of the point: its record, and the results of its ranks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec import structs

from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import count_lines, read_json, read_lines
from nightsweep.jobs.record.launch_files import Job, RankProcess, RankResult
from nightsweep.jobs.record.record import Record, RunEvent, RunName, Runs

MOST_EVENTS = 200


def record_of(point: Path) -> Record:
    """record.json; where there is none that can be read, what point.json says, with status not_run."""
    record = read_json(point / "record.json", Record) or Record(status="not_run")
    job = read_json(point / "point.json", Job) or Job(point_id=point.name, settings={})
    return structs.replace(
        record,
        point_id=record.point_id or job.point_id,
        sweep=record.sweep or job.sweep,
        settings=record.settings or job.settings,
    )


def count_attempts(point: Path) -> int:
    """How often the point was started."""
    return count_lines(point / "attempts.jsonl")


def results_of(point: Path, run: str = "timed") -> list[RankResult]:
    """rankR.result.json of a run, by rank."""
    found = ((rank, read_json(path, RankResult)) for rank, path in by_rank(point / run, r"rank(\d+)\.result\.json"))
    return [structs.replace(result, rank=rank) for rank, result in found if result is not None]


def pids_of_ranks(run_folder: RunFolder, host: str) -> set[int]:
    """Process ids of a host's ranks, as their supervisors noted them."""
    found = [read_json(path, RankProcess) for path in run_folder.path.glob("rank*.pid.json")]
    return {rank.pid for rank in found if rank and rank.host == host}


def traced_from(point: Path, runs: Runs) -> int | None:
    """When the traced steps began (UTC, ns), of a start that was timed before: samples in timed/ are the traced run's
    from then on. None where all of them are the timed run's."""
    windows = [result.window for result in results_of(point, "traced")] if runs.traced.same_start else []
    return min((window.start_ns for window in windows if window is not None), default=None)


def events_of(point: Path, runs: Runs) -> list[RunEvent]:
    """What the samplers saw happen to GPUs, in order of time; the first ones where there are very many."""
    names: tuple[RunName, ...] = ("timed", "traced")
    traced_ns = traced_from(point, runs) or sys.maxsize
    found = [
        structs.replace(event, run="traced" if event.t_ns >= traced_ns else name)
        for name in names
        for path in (point / name).glob("events-*.jsonl")
        for event in read_lines(path, RunEvent)
    ]
    return sorted(found, key=lambda event: event.t_ns)[:MOST_EVENTS]


def by_rank(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Files (and folders) whose name is this pattern, with the rank, or number, that its first group gives, in order of
    it."""
    if not folder.is_dir():
        return []
    found = [(re.fullmatch(pattern, path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)
