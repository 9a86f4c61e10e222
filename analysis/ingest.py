"""From what a launch wrote to tidy tables, one Parquet file each:

python -m analysis.ingest POINT_DIR --out DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from analysis import tables
from analysis.metrics import activities, breakdown, clock, cost, energy, summary, timeline
from analysis.readers import kineto, nsys, raw

KEYS: dict[str, list[str]] = {
    "points": ["point_id"],
    "steps": ["point_id", "rank", "step"],
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
}
"""What each table is sorted by."""

_FROM_TRACE = ("breakdown", "activities", "timeline")
_KINETO, _NSYS = r"trace-r(\d+)\.json(?:\.gz)?", r"trace-r(\d+)(?:\.sqlite|[._](?:parquetdir|pqtdir))"


def ingest(point: Path) -> dict[str, pl.DataFrame]:
    """All tables of a point. A trace that cannot be read leaves its tables empty and says so on stderr."""
    found = raw.read(point)
    record = raw.record_of(point)
    identity = record["point_id"]
    own = {"energy": energy_rows(point, record, found), "cost": cost.rows(point, record)}
    found |= {name: raw.frame([{**row, "point_id": identity} for row in rows], name) for name, rows in own.items()}
    found["points"] = raw.points_frame([summary.row(point, found)])
    try:
        traced = from_traces(point / "traced", dict(raw.hosts(point)))
    except Exception as error:  # whatever a broken trace leads to, the timed look's numbers stand without it
        print(f"{point}: no trace tables: {type(error).__name__}: {error}", file=sys.stderr)
        traced = {}
    clocks = [raw.frame(clock_rows(point, found["gpu_samples"]), "clocks")]
    traced["clocks"] = pl.concat([*clocks, traced["clocks"]] if "clocks" in traced else clocks)
    named = {name: frame.with_columns(point_id=pl.lit(identity)) for name, frame in traced.items()}
    return {name: finished(name, (found | named).get(name)) for name in tables.TABLES}


def clock_rows(point: Path, samples: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of CLOCKS of the timed look."""
    hosts = dict(raw.hosts(point))
    rows = [clock.utc_against_monotonic(point / "timed", rank) | {"look": "timed"} for rank in hosts]
    rows += clock.of_counters(samples, raw.results(point))
    return [{**row, "host": hosts.get(row["rank"])} for row in rows]


def energy_rows(point: Path, record: dict[str, Any], found: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Rows of ENERGY, where the timed look ran to its end."""
    if not summary.measured(record):
        return []
    timed = found["steps"].filter(pl.col("phase") == "timed")
    window = summary.window(raw.results(point), timed)
    return energy.rows(found["gpu_samples"], found["ranks"], timed, window)


def from_traces(folder: Path, hosts: Mapping[int, str | None]) -> dict[str, pl.DataFrame]:
    """The tables of the traced look, without the point's id; none where there is no trace. `hosts`: by rank."""
    out: dict[str, list[pl.DataFrame]] = {name: [] for name in _FROM_TRACE}
    clocks, ends = [], {}
    for rank, (reader, path) in sorted(readable(folder).items()):
        events = reader(path)  # one rank's at a time: a trace can take gigabytes
        against = clock.trace_against_steps(events, folder, rank)
        clocks += [against, clock.utc_against_monotonic(folder, rank)]
        events = clock.shifted(events, against["offset_us"])
        ends[rank] = clock.collectives(events)
        made = (breakdown.rows(events), activities.rows(events), timeline.rows(events))
        for name, frame in zip(_FROM_TRACE, made, strict=True):
            out[name].append(frame.with_columns(rank=pl.lit(rank, dtype=pl.Int64)))
    joined = {name: pl.concat(frames) for name, frames in out.items() if frames}
    if not joined:
        return {}
    between = clock.between_ranks(ends)
    rows = [{**row, "look": "traced", "host": hosts.get(row["rank"])} for row in clocks + between]
    aligned = timeline.aligned(joined["timeline"], clock.of_hosts(between, {r: hosts.get(r) for r in ends}))
    return joined | {"timeline": timeline.relative(aligned), "clocks": raw.frame(rows, "clocks")}


def readable(folder: Path) -> dict[int, tuple[Callable[[Path], dict[str, pl.DataFrame]], Path]]:
    """Each traced rank's reader and file."""
    found: dict[int, tuple[Callable[[Path], dict[str, pl.DataFrame]], Path]] = {}
    found |= {rank: (kineto.read, path) for rank, path in raw.ranked(folder, _KINETO)}
    return found | {rank: (nsys.read, path) for rank, path in raw.ranked(folder, _NSYS)}


def finished(name: str, frame: pl.DataFrame | None) -> pl.DataFrame:
    """The table as its schema says, sorted."""
    if frame is None:
        return tables.empty(tables.TABLES[name])
    return tables.conform(frame, tables.TABLES[name]).sort(KEYS[name], maintain_order=True).collect()


def write(frames: Mapping[str, pl.DataFrame], out: Path) -> None:
    """One Parquet file a table."""
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.write_parquet(out / f"{name}.parquet")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the tidy tables of one point.")
    parser.add_argument("point", type=Path, help="folder of the point")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the tables to")
    args = parser.parse_args(argv)
    write(ingest(args.point), args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
