"""Where the time of a launch goes: one list of phases, each of which lasts until the next one begins.

A rank appends its own to rankR.phases.jsonl (jobs/record/heartbeat.py), so that those of one that was killed are known,
too. The launcher makes one list of them, in which the slowest rank decides: a phase begins when the last rank has come
to it. Its own phases lie around those of the starts of ranks, so that the whole list covers the time that the GPUs were
held, without gaps and without overlaps.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

from msgspec import Struct, structs

from nightsweep.jobs.record.failures import Reason
from nightsweep.jobs.record.folder import KEPT, RunFolder, utc_ns
from nightsweep.jobs.record.json_files import read_json, read_lines
from nightsweep.jobs.record.launch_files import RankExit, Start

PHASES = {
    "queue": "From the submission of the Slurm job to its allocation. No GPU is held.",
    "job_start": "From the allocation of the Slurm job to the launcher's process; of the first point of a job.",
    "launch": "The launcher, before it starts ranks; of a later point of one process, from the end of the one before.",
    "start": "From the start of the ranks' processes until they say where they are; of a script, until its first step.",
    "import": "Ranks import PyTorch and what they need of it.",
    "process_group": "Ranks choose their devices and meet (torch.distributed.init_process_group).",
    "data": "The data set is prepared.",
    "model": "Model, loader and strategy are built, with the libraries that are imported only then.",
    "compile": "torch.compile compiles, wherever it does.",
    "warmup": "Steps of the warm-up, and what follows them until all ranks begin the next block of steps together.",
    "timed": "The timed steps.",
    "tracing": "The tracer starts, stops and exports.",
    "traced": "The traced steps.",
    "control": "Steps of the control, which says what measuring costs.",
    "epochs": "Epochs after the timed steps, with their evaluation.",
    "results": "Ranks read the losses and write their results.",
    "flops": "Floating-point operations are counted, or read where they have been counted before.",
    "rest": "A script's own end, where the point lets it run on.",
    "teardown": "Ranks end, until the launcher has seen all of them end.",
    "idle": "Between two starts of ranks: GPUs are held and nothing runs on them.",
    "record": "After the last start of ranks: the record is made.",
    "lost": "All of an attempt whose result was not kept, up to its last sign of life.",
    "unknown": "What a record without phases does not tell.",
}
"""All phases, in the order in which they come."""
END = "end"
"""Closes the list: what is before it lasts until then."""


class RankPhase(Struct, frozen=True, kw_only=True):
    """A line of rankR.phases.jsonl: a phase of a rank, written by itself as it begins. The last one lasts until the
    rank's process ends."""

    phase: str
    """Its name (see Phases of a launch); in a record, `end` closes the list."""
    start_ns: int
    """UTC, ns. It lasts until the next one begins."""


class Phase(RankPhase, frozen=True, kw_only=True):
    """A phase of a launch, in its record."""

    look: str | None = None
    """Folder of the start of ranks that it is part of: timed, traced, cost-* or search; null of the launcher's own."""
    start: int | None = None
    """Number of this start of ranks in the launch, from 1; null of the launcher's own."""
    reason: Reason | None = None
    """Why this start of ranks failed."""


def append(phases: list[Phase], phase: Phase) -> None:
    """Add a phase, not before the one that is last: clocks of hosts differ, and may be set back."""
    earliest = phases[-1].start_ns if phases else phase.start_ns
    phases.append(structs.replace(phase, start_ns=max(earliest, phase.start_ns)))


def append_start(
    phases: list[Phase], run_folder: RunFolder, began_ns: int, ended_ns: int, exported_ns: int, reason: Reason | None
) -> None:
    """Add the phases of one start of ranks, and `idle` after it.

    Args:
        phases: of the launch so far.
        run_folder: where the ranks left theirs.
        began_ns: when their start was begun, UTC ns.
        ended_ns: when all of them had ended.
        exported_ns: when their traces had been exported; ended_ns where there was nothing to export.
        reason: why the start failed; None for a good one.
    """
    number = 1 + max((phase.start or 0 for phase in phases), default=0)
    found = [("start", began_ns), *((name, min(at, ended_ns)) for name, at in slowest_ranks(run_folder))]
    if exported_ns > ended_ns:
        found.append(("tracing", ended_ns))
    for name, start_ns in found:
        append(phases, Phase(phase=name, start_ns=start_ns, look=run_folder.kind, start=number, reason=reason))
    append(phases, Phase(phase="idle", start_ns=exported_ns))


def slowest_ranks(run_folder: RunFolder) -> list[tuple[str, int]]:
    """The phases of the ranks of one start and when the last rank came to each (UTC ns), in order of time. A phase that
    comes several times is as many phases; the end of a rank's process begins its `teardown`, if it did not itself."""
    latest: dict[tuple[str, int], int] = {}
    for path in sorted(run_folder.path.glob("rank*.phases.jsonl")):
        marks = [(line.phase, line.start_ns) for line in read_lines(path, RankPhase)]
        if ended := read_json(path.with_name(path.name.replace("phases.jsonl", "exit.json")), RankExit):
            marks.append(("teardown", ended.ended_ns))
        times = Counter[str]()
        for name, start_ns in marks:
            times[name] += 1
            latest[name, times[name]] = max(latest.get((name, times[name]), 0), start_ns)
    ordered = sorted(((name, at) for (name, _), at in latest.items()), key=lambda mark: mark[1])
    return [mark for place, mark in enumerate(ordered) if place == 0 or mark[0] != ordered[place - 1][0]]


def last_sign_ns(point: Path) -> int | None:
    """When something was last written into a run's folder of this point, UTC ns; None where there is none. Ranks and
    samplers write several times a second."""
    times = []
    for pattern in ("timed*/*", "traced*/*", "cost-*/*", "search*/*"):
        for file in (*point.glob(pattern), *point.glob(f"{KEPT}/{pattern}")):
            with contextlib.suppress(OSError):  # ranks that outlive a lost node still replace their files
                times.append(file.stat().st_mtime_ns)
    return max(times, default=None)


def starts_of(point: Path) -> list[Start]:
    """The lines of attempts.jsonl, in order."""
    return read_lines(point / "attempts.jsonl", Start)


def lost_phases(started_at: str, last_sign: int | None) -> list[Phase]:
    """The phases of an attempt that left no record; none where it gave no sign of life after its start.

    Args:
        started_at: ISO 8601.
        last_sign: its last sign of life, UTC ns, or that of an earlier attempt; None for none.
    """
    started_ns = utc_ns(started_at)
    if last_sign is None or last_sign < started_ns:
        return []
    return [Phase(phase="lost", start_ns=started_ns), Phase(phase=END, start_ns=last_sign)]


def last_attempt(point: Path) -> list[Phase]:
    """The phases of the point's last attempt, which left no record."""
    starts = starts_of(point)
    return lost_phases(starts[-1].started_at, last_sign_ns(point)) if starts else []
