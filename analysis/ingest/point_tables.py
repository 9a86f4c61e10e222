"""From what a launch wrote to tidy tables."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.ingest import trace_tables
from nightsweep.analysis.metrics.points import cost, energy, phases, point_row, warm_up
from nightsweep.analysis.metrics.ranks import clock, pool
from nightsweep.analysis.metrics.steps import activities, parts, timeline
from nightsweep.analysis.readers import gpu_log, point_files
from nightsweep.analysis.tables import column, parquet, points, trace_files
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.host.cores import allowed_cores
from nightsweep.jobs.record.phases import starts_of
from nightsweep.jobs.record.point_folder import by_rank, record_of, results_of
from nightsweep.jobs.telemetry.gpu import log

KEYS: dict[str, list[str]] = {
    "points": ["point_id"],
    "steps": ["point_id", "rank", "step"],
    "accuracy": ["point_id", "epoch"],
    "ranks": ["point_id", "rank"],
    "breakdown": ["point_id", "rank", "step", "part"],
    "activities": ["point_id", "rank", "category", "name"],
    "timeline": ["point_id", "rank", "lane", "start_ns", "end_ns", "name"],
    "host_samples": ["point_id", "look", "host", "t_ns"],
    "gpu_samples": ["point_id", "look", "host", "gpu", "uuid", "t_ns"],
    "gpu_events": ["point_id", "look", "t_ns", "host"],
    "energy": ["point_id", "host", "gpu", "uuid"],
    "clocks": ["point_id", "look", "between", "rank"],
    "cost": ["point_id", "condition", "pair"],
    "phases": ["point_id", "attempt", "start_ns", "start", "phase"],
    "failures": ["point_id"],
    "diagnoses": ["point_id", "place"],
    "remedies": ["round", "point_id", "remedied_id"],
    "pairs": ["pair"],
}
"""What each table is sorted by."""

FOR_DIAGNOSIS = ("points", "steps", "gpu_samples", "host_samples", "clocks")
"""The tables that a diagnosis reads (analysis/diagnosis/evidence/sources.py)."""
DRAWN = ("activities", "timeline")
"""What figures and reports are made of alone: the diagnosis of a point asks for none of it."""

_Row = dict[str, Any]
_KINETO, _NSYS = r"trace-r(\d+)\.json(?:\.gz)?", r"trace-r(\d+)(?:\.sqlite|[._](?:parquetdir|pqtdir))"
TRACES = "trace"
"""Folder of a point's trace tables (analysis/tables/traces.py), beside its other tables."""
LOOP_STEPS = "loop_steps"
"""There also the table STEPS of the traced run, as the step loop wrote them down."""
UNREAD = "unread"
"""There also, a line for each thing of a trace that could not be read: the column problem."""
MANY_RANKS = 64
"""The number of ranks whose rows one process makes. Starting another process for fewer is not worth its time."""
_EVENTS = ("kernels", "graphs", "copies", "memsets", "runtime", "nvtx", "operators")


@dataclass(frozen=True)
class Offsets:
    """What to take out of times (ns), so that all are on the clock of rank 0's host. What is not named agrees."""

    of_host: Mapping[str, int] = field(default_factory=dict)
    of_rank: Mapping[int, int] = field(default_factory=dict)


def ingest(point: Path, out: Path, processes: int | None = None, *, drawn: bool = True) -> dict[str, pl.DataFrame]:
    """All tables of a point but OF_SWEEP; its traces are read once, and their tables written to OUT/trace. What of a
    trace cannot be read is left out, with a line on stderr. `processes`: how many may read traces; without it as many
    as there are cores. Without `drawn`, DRAWN are empty, and of the trace tables there are those that a diagnosis
    reads."""
    found, record = point_files.read(point), record_of(point)
    if problem := point_files.problem(point):
        print(problem, file=sys.stderr)
    results = results_of(point)
    hosts = {result.rank: result.host for result in results}
    timed = found["steps"].filter(pl.col("phase") == "timed")
    own = {
        "energy": energy.rows(found["gpu_samples"], results, timed) if point_row.is_measured(record) else [],
        "cost": cost.rows(point, record),
        "clocks": [
            {**row, "host": hosts.get(row["rank"])} for row in clock.counter_rows(found["gpu_samples"], results)
        ],
    }
    found["steps"] = warm_up.mark_settling(found["steps"])  # energy is of the whole window
    traced, clocks, offsets = from_traces(point, out / TRACES, hosts, processes, drawn=drawn)
    own["clocks"] += clocks
    own["phases"] = phases.rows(
        record, starts_of(point), found["steps"], as_table("breakdown", traced.get("breakdown"))
    )
    found |= {name: point_files.frame(rows, name) for name, rows in own.items()} | traced
    found["points"] = point_files.frame([point_row.row(point, found)], "points")
    named = on_one_clock(found, offsets)
    identity = pl.lit(record.point_id)
    return {name: as_table(name, f.with_columns(point_id=identity)) for name, f in named.items()} | {
        name: as_table(name, None) for name in points.TABLES if name not in named and name not in points.SWEEP_TABLES
    }


def on_one_clock(found: Mapping[str, pl.DataFrame], offsets: Offsets) -> dict[str, pl.DataFrame]:
    """The tables with every host's times on the clock of rank 0's host."""
    steps = clock.subtract_offsets(found["steps"], ["start_ns", "end_ns"], pl.col("rank"), offsets.of_rank)
    samples = {
        name: clock.subtract_offsets(found[name], ["t_ns"], pl.col("host"), offsets.of_host)
        for name in ("host_samples", "gpu_samples", "gpu_events")
    }
    return {**found, "steps": steps, **samples}


def from_traces(
    point: Path, out: Path, hosts: Mapping[int, str | None], processes: int | None, *, drawn: bool
) -> tuple[dict[str, pl.DataFrame], list[_Row], Offsets]:
    """Write the trace tables of a point to OUT. Of these: its tables, the rows of CLOCKS, and the hosts' offsets.
    `hosts`: by rank; `drawn`: whether DRAWN are among them."""
    files = readable(point)
    traces = [files[rank] for rank in sorted(files)]
    names = TRACE_TABLES.keys() if drawn else trace_tables.FOR_DIAGNOSIS
    good, problems = trace_tables.write_all(traces, out, processes, of_one_run=True, names=names) if files else ([], [])
    for problem in problems:
        print(f"{point.name}: not in the trace tables: {problem}", file=sys.stderr)
    if files:
        point_id = pl.lit(record_of(point).point_id).alias("point_id")
        unread = pl.DataFrame({"problem": problems}, schema={"problem": pl.String}).with_columns(point_id)
        parquet.write(unread, out / f"{UNREAD}.parquet")
    if not good:
        return {}, [], Offsets()
    ranks = sorted(rank for part in good for rank in part.ranks)
    taken_out = dict(pl.read_parquet(out / "file_clocks.parquet").select("rank", "offset_ns").drop_nulls().iter_rows())
    rows: list[_Row] = []
    ends: dict[int, pl.DataFrame] = {}
    late: dict[int, int] = {}
    # One at a time where they are few: a trace can take gigabytes.
    workers = (processes or allowed_cores()) if len(ranks) > MANY_RANKS else 1
    made = pool.map_in_processes(ranks, functools.partial(rank_rows, out, drawn), workers, MANY_RANKS)
    for rank, one in zip(ranks, made, strict=True):
        against = clock.trace_row(_shift(one["windows"], -taken_out.get(rank, 0)), point / "traced", rank)
        rows.append(against)
        late[rank] = round((against["offset_us"] or 0.0) * 1e3)
        ends[rank] = _shift(one["ends"], late[rank] - taken_out.get(rank, 0))
    between = clock.rank_rows(ends)
    rows = [{**row, "look": "traced", "host": hosts.get(row["rank"])} for row in rows + between]
    of_host = clock.host_offsets(between, {rank: hosts.get(rank) for rank in ends})
    of_rank = {rank: of_host[host] for rank, host in hosts.items() if host is not None and host in of_host}
    home = {rank: late[ranks[0]] if rank in taken_out else late[rank] + of_rank.get(rank, 0) for rank in ranks}
    steps = clock.subtract_offsets(point_files.steps(point, "traced"), ["start_ns", "end_ns"], pl.col("rank"), of_rank)
    parquet.write(steps, out / f"{LOOP_STEPS}.parquet")
    tables = {"breakdown": parts.group_lengths(pl.read_parquet(out / "step_parts.parquet"), "rank", "step")}
    if drawn:
        bars = pl.concat([one["timeline"] for one in made])
        bars = clock.subtract_offsets(bars, ["start_ns", "end_ns", "origin_ns"], pl.col("rank"), home)
        tables |= {"activities": pl.concat([one["activities"] for one in made]), "timeline": timeline.set_zero(bars)}
    return tables, rows, Offsets(of_host, of_rank)


def rank_rows(out: Path, drawn: bool, rank: int) -> dict[str, pl.DataFrame]:
    """Of a rank's trace tables: its windows, the ends of its collectives, and, where they are `drawn`, its rows of
    activities and timeline."""
    events = {kind: trace_files.rank_table(out, kind, rank) for kind in _EVENTS}
    windows = trace_files.rank_table(out, "windows", rank)
    ends = {"windows": windows, "ends": clock.collective_ends(events)}
    if not drawn:
        return ends
    number = pl.lit(rank, dtype=pl.Int64).alias("rank")
    return ends | {
        "activities": activities.rows(events, windows).with_columns(number),
        "timeline": timeline.rows(events, windows).with_columns(number),
    }


def _shift(frame: pl.DataFrame, by: int) -> pl.DataFrame:
    """The frame with an offset (ns) taken out of its times."""
    return frame.with_columns(pl.col(name) - by for name in frame.columns if name.endswith("_ns"))


def readable(point: Path) -> dict[int, Path]:
    """Each traced rank's file, of the traced run, or in the point's folder itself."""
    for folder in (point / "traced", point):
        found = dict(by_rank(folder, _KINETO)) | dict(by_rank(folder, _NSYS))
        if found:
            return found
    return {}


def gpu_log_samples(path: Path) -> pl.DataFrame:
    """The samples of a log of GPUs. Raises ValueError or OSError where it is none."""
    log.header_of(path)
    return gpu_log.read_log(path)


def as_table(name: str, frame: pl.DataFrame | None) -> pl.DataFrame:
    """The table as its schema says, sorted."""
    if frame is None:
        return column.empty(points.TABLES[name])
    return column.conform(frame, points.TABLES[name]).sort(KEYS[name], maintain_order=True).collect()


def write(frames: Mapping[str, pl.DataFrame], out: Path) -> None:
    """One Parquet file a table."""
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        parquet.write(frame, out / f"{name}.parquet")
