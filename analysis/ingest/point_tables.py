"""From what a launch wrote to tidy tables, one Parquet file each:

python -m analysis.ingest.point_tables POINT_DIR --out DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from analysis.metrics.points import cost, energy, summary
from analysis.metrics.ranks import clock
from analysis.metrics.steps import activities, breakdown, timeline
from analysis.readers import point_files
from analysis.readers.kineto import reader as kineto
from analysis.readers.nsys import reader as nsys
from analysis.tables import column, points
from analysis.tables.events import Trace
from jobs.record.launch_files import RankResult

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
    "failures": ["point_id"],
    "diagnoses": ["point_id", "place"],
    "remedies": ["round", "point_id", "remedied_id"],
}
"""What each table is sorted by."""

_Row = dict[str, Any]
_FROM_TRACE = ("breakdown", "activities", "timeline")
_KINETO, _NSYS = r"trace-r(\d+)\.json(?:\.gz)?", r"trace-r(\d+)(?:\.sqlite|[._](?:parquetdir|pqtdir))"


@dataclass(frozen=True)
class Offsets:
    """What to take out of times (ns), so that all are on the clock of rank 0's host. What is not named agrees."""

    of_host: Mapping[str, int] = field(default_factory=dict)
    of_rank: Mapping[int, int] = field(default_factory=dict)


def ingest(point: Path) -> dict[str, pl.DataFrame]:
    """All tables of a point but OF_SWEEP. A trace that cannot be read leaves its tables empty and says so on stderr."""
    found, record = point_files.read(point), point_files.record_of(point)
    if problem := point_files.problem(point):
        print(problem, file=sys.stderr)
    results = point_files.results(point)
    hosts = {result.rank: result.host for result in results}
    timed = found["steps"].filter(pl.col("phase") == "timed")
    own = {
        "energy": energy.rows(found["gpu_samples"], results, timed) if summary.measured(record) else [],
        "cost": cost.rows(point, record),
        "clocks": clock_rows(point, hosts, results, found["gpu_samples"]),
    }
    try:
        traced, clocks, offsets = from_traces(point / "traced", hosts)
        own["clocks"] += clocks
    except Exception as error:  # whatever a broken trace leads to, the timed look's numbers stand without it
        print(f"{point}: no trace tables: {type(error).__name__}: {error}", file=sys.stderr)
        traced, offsets = {}, Offsets()
    found |= {name: point_files.frame(rows, name) for name, rows in own.items()} | traced
    found["points"] = point_files.points_frame([summary.row(point, found)])
    named = on_one_clock(found, offsets)
    identity = pl.lit(record.point_id)
    return {name: finished(name, f.with_columns(point_id=identity)) for name, f in named.items()} | {
        name: finished(name, None) for name in points.TABLES if name not in named and name not in points.OF_SWEEP
    }


def on_one_clock(found: Mapping[str, pl.DataFrame], offsets: Offsets) -> dict[str, pl.DataFrame]:
    """The tables with every host's times on the clock of rank 0's host."""
    steps = clock.moved(found["steps"], ["start_ns", "end_ns"], pl.col("rank"), offsets.of_rank)
    samples = {
        name: clock.moved(found[name], ["t_ns"], pl.col("host"), offsets.of_host)
        for name in ("host_samples", "gpu_samples", "gpu_events")
    }
    return {**found, "steps": steps, **samples}


def clock_rows(
    point: Path, hosts: Mapping[int, str | None], results: Sequence[RankResult], samples: pl.DataFrame
) -> list[_Row]:
    """Rows of CLOCKS of the timed look. `hosts`: by rank."""
    rows = [clock.utc_against_monotonic(point / "timed", rank) | {"look": "timed"} for rank in hosts]
    rows += clock.of_counters(samples, results)
    return [{**row, "host": hosts.get(row["rank"])} for row in rows]


def from_traces(folder: Path, hosts: Mapping[int, str | None]) -> tuple[dict[str, pl.DataFrame], list[_Row], Offsets]:
    """Of the traced look: its tables, the rows of CLOCKS, and the hosts' offsets. `hosts`: by rank."""
    out: dict[str, list[pl.DataFrame]] = {name: [] for name in _FROM_TRACE}
    clocks, ends = [], {}
    for rank, (reader, path) in sorted(readable(folder).items()):
        events = reader(path).events  # one rank's at a time: a trace can take gigabytes
        against = clock.trace_against_steps(events, folder, rank)
        clocks += [against, clock.utc_against_monotonic(folder, rank)]
        events = clock.shifted(events, against["offset_us"])
        ends[rank] = clock.collectives(events)
        made = (breakdown.rows(events), activities.rows(events), timeline.rows(events))
        for name, frame in zip(_FROM_TRACE, made, strict=True):
            out[name].append(frame.with_columns(rank=pl.lit(rank, dtype=pl.Int64)))
    joined = {name: pl.concat(frames) for name, frames in out.items() if frames}
    if not joined:
        return {}, [], Offsets()
    between = clock.between_ranks(ends)
    rows = [{**row, "look": "traced", "host": hosts.get(row["rank"])} for row in clocks + between]
    of_host = clock.of_hosts(between, {rank: hosts.get(rank) for rank in ends})
    of_rank = {rank: of_host[host] for rank, host in hosts.items() if host is not None and host in of_host}
    bars = clock.moved(joined["timeline"], ["start_ns", "end_ns", "origin_ns"], pl.col("rank"), of_rank)
    return joined | {"timeline": timeline.relative(bars)}, rows, Offsets(of_host, of_rank)


def readable(folder: Path) -> dict[int, tuple[Callable[[Path], Trace], Path]]:
    """Each traced rank's reader and file."""
    found: dict[int, tuple[Callable[[Path], Trace], Path]] = {}
    found |= {rank: (kineto.read, path) for rank, path in point_files.ranked(folder, _KINETO)}
    return found | {rank: (nsys.read, path) for rank, path in point_files.ranked(folder, _NSYS)}


def finished(name: str, frame: pl.DataFrame | None) -> pl.DataFrame:
    """The table as its schema says, sorted."""
    if frame is None:
        return column.empty(points.TABLES[name])
    return column.conform(frame, points.TABLES[name]).sort(KEYS[name], maintain_order=True).collect()


def write(frames: Mapping[str, pl.DataFrame], out: Path) -> None:
    """One Parquet file a table."""
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.write_parquet(out / f"{name}.parquet")


def concatenated(name: str, ids: Sequence[str], derived: Path) -> pl.DataFrame:
    """A table of these points."""
    files = [path for i in sorted(set(ids)) if (path := derived / i / f"{name}.parquet").is_file()]
    if not files:
        return finished(name, None)
    columns = points.TABLES[name]
    return finished(name, pl.concat([column.conform(pl.scan_parquet(f), columns) for f in files]).collect())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the tidy tables of one point.")
    parser.add_argument("point", type=Path, help="folder of the point")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the tables to")
    args = parser.parse_args(argv)
    write(ingest(args.point), args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
