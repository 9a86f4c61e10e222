"""Where the time went in which a point's GPUs were held: the table PHASES, from the phases of its record.

A record of an earlier version has none. What its times of runs and the steps tell is given, and the rest is `unknown`:
in a timed run everything after the last step, in a traced one everything but the steps that are counted, and all of a
control.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import polars as pl

from nightsweep.analysis.metrics.points import warm_up
from nightsweep.analysis.tables import phases as table
from nightsweep.jobs.record import phases
from nightsweep.jobs.record.folder import utc_ns
from nightsweep.jobs.record.launch_files import Start
from nightsweep.jobs.record.phases import END, Phase, append
from nightsweep.jobs.record.record import Record, Run

_Row = dict[str, Any]


def rows(record: Record, starts: Sequence[Start], steps: pl.DataFrame, breakdown: pl.DataFrame) -> list[_Row]:
    """Rows of PHASES, without the point's id.

    Args:
        record: of the point.
        starts: its attempts, in order.
        steps: its table STEPS, by its ranks' own clocks.
        breakdown: its table BREAKDOWN.
    """
    own: list[Phase] = []
    for phase in record.phases or _of_runs(record, steps):
        append(own, phase)  # which keeps their times in order
    found = [_row(phase, following.start_ns - phase.start_ns) for phase, following in itertools.pairwise(own)]
    if not record.phases:
        found = _with_traced_steps(found, breakdown)
    # The driver, which writes the record of a lost job, counts jobs and not what came of them. A record that is well is
    # of the attempt that it names, which need not be the last (jobs/record/untraced.py).
    well = record.attempt if record.status == "ok" else None
    attempt = well or (starts[-1].attempt if starts else record.attempt)
    found = [row | {"attempt": attempt} for row in found]
    bad = record.status != "ok"
    for row in found:
        row["use"] = _use(row, bad)
    signs = [start.earlier_sign_ns for start in starts[1:]] + [None]
    others = [(start, sign) for start, sign in zip(starts, signs, strict=False) if not own or start.attempt != attempt]
    found += list(itertools.starmap(_other, others))
    for row in found:
        row["gpus"] = 0 if row["use"] == table.NOT_HELD else record.world_size
    return _in_sum(found)


def _row(phase: Phase, duration_ns: int) -> _Row:
    names = ("look", "start", "phase", "reason", "start_ns")
    return {**{name: getattr(phase, name) for name in names}, "duration_ns": duration_ns}


def _use(row: _Row, bad: bool) -> str:
    """What the time of a row was for. `bad`: the point is not ok."""
    use = table.USE_OF.get(row["phase"], "unknown")
    if use in ("lost", table.NOT_HELD):
        return use
    if bad:
        return "failed"
    if row["look"] == "search":
        return "search"
    return "failed" if row["reason"] else use


def _in_sum(found: list[_Row]) -> list[_Row]:
    """One row an attempt, start of ranks and phase, from the first time that it came."""
    made: dict[tuple[Any, ...], _Row] = {}
    for row in found:
        key = tuple(row[name] for name in ("attempt", "start", "phase"))
        first = made.setdefault(key, row)
        if first is not row:
            first["duration_ns"] += row["duration_ns"]
    for row in made.values():
        known = row["duration_ns"] is not None and row["gpus"] is not None
        row["gpu_s"] = row["duration_ns"] * row["gpus"] / 1e9 if known else None
    return list(made.values())


def _other(start: Start, sign_ns: int | None) -> _Row:
    """The row of an attempt that is not the record's. `sign_ns`: its last sign of life, if one was seen."""
    own = phases.lost_phases(start.started_at, sign_ns)
    length = own[1].start_ns - own[0].start_ns if own else None
    began = own[0] if own else Phase(phase="lost", start_ns=utc_ns(start.started_at))
    return _row(began, 0) | {"duration_ns": length, "attempt": start.attempt, "use": "lost"}


def _of_runs(record: Record, steps: pl.DataFrame) -> list[Phase]:
    """What a record without phases tells of them; empty where it does not say when the launch was."""
    if record.started_at is None or record.wall_s is None:
        return []
    found = [Phase(phase="launch", start_ns=utc_ns(record.started_at))]
    made = [(look, run) for look, run in record.runs.named() if run.started_ns is not None and run.ended_ns is not None]
    for number, (look, run) in enumerate(made, 1):
        for name, start_ns in _of_run(look, run, steps):
            append(found, Phase(phase=name, start_ns=start_ns, look=look, start=number, reason=run.reason))
        append(found, Phase(phase="record" if number == len(made) else "idle", start_ns=run.ended_ns or 0))
    append(found, Phase(phase=END, start_ns=utc_ns(record.started_at) + round(record.wall_s * 1e9)))
    return found


def _of_run(look: str, run: Run, steps: pl.DataFrame) -> list[tuple[str, int]]:
    """(phase, start) of a run whose record has no phases. The slowest rank decides."""
    began, ended = run.started_ns or 0, run.ended_ns or 0
    if look != "timed" or steps.is_empty():
        return [("unknown", began)]
    window = warm_up.in_window(steps)
    found = [("start", began)]
    for name, part in (("warmup", steps.filter(pl.col("phase") == "warmup")), ("timed", window)):
        first = part.group_by("rank").agg(pl.col("start_ns").min())["start_ns"].max()
        if isinstance(first, int):
            found.append((name, first))
    last = window["end_ns"].max()
    found.append(("unknown", last if isinstance(last, int) else began))
    return [(name, min(max(at, began), ended)) for name, at in found]


def _with_traced_steps(found: list[_Row], breakdown: pl.DataFrame) -> list[_Row]:
    """The rows, with the counted traced steps of the slowest rank taken out of what is unknown of the run."""
    counted = int(breakdown.group_by("rank").agg(pl.col("duration_ns").sum())["duration_ns"].max() or 0)  # type: ignore[arg-type]
    made = []
    for row in found:
        if counted and row["look"] == "traced" and counted <= row["duration_ns"]:
            made.append(row | {"phase": "traced", "duration_ns": counted, "start_ns": None})
            row["duration_ns"] -= counted
        made.append(row)
    return made
