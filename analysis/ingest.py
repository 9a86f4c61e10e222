"""From what a launch wrote to tidy tables, one Parquet file each:

python -m analysis.ingest POINT_DIR --out DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from analysis import tables
from analysis.metrics import activities, breakdown, summary, timeline
from analysis.readers import kineto, nsys, raw

KEYS: dict[str, list[str]] = {
    "points": ["point_id"],
    "steps": ["point_id", "rank", "step"],
    "ranks": ["point_id", "rank"],
    "breakdown": ["point_id", "rank", "step", "part"],
    "activities": ["point_id", "rank", "category", "name"],
    "timeline": ["point_id", "rank", "lane", "start_ns", "end_ns", "name"],
    "host_samples": ["point_id", "look", "host", "t_ns"],
    "gpu_samples": ["point_id", "look", "host", "gpu", "t_ns"],
    "failures": ["point_id"],
}
"""What each table is sorted by."""

_FROM_TRACE = ("breakdown", "activities", "timeline")
_KINETO, _NSYS = r"trace-r(\d+)\.json(?:\.gz)?", r"trace-r(\d+)(?:\.sqlite|[._](?:parquetdir|pqtdir))"


def ingest(point: Path) -> dict[str, pl.DataFrame]:
    """All tables of a point. A trace that cannot be read leaves its tables empty and says so on stderr."""
    found = raw.read(point)
    found["points"] = raw.points_frame([summary.row(point, found)])
    identity = raw.record_of(point)["point_id"]
    try:
        traced = from_traces(point / "traced")
    except Exception as error:  # whatever a broken trace leads to, the timed look's numbers stand without it
        print(f"{point}: no trace tables: {type(error).__name__}: {error}", file=sys.stderr)
        traced = {}
    named = {name: frame.with_columns(point_id=pl.lit(identity)) for name, frame in traced.items()}
    return {name: finished(name, (found | named).get(name)) for name in tables.TABLES}


def from_traces(folder: Path) -> dict[str, pl.DataFrame]:
    """The tables of the traced look, without the point's id; none where there is no trace."""
    out: dict[str, list[pl.DataFrame]] = {name: [] for name in _FROM_TRACE}
    readable = {rank: (kineto.read, path) for rank, path in raw.ranked(folder, _KINETO)}
    readable |= {rank: (nsys.read, path) for rank, path in raw.ranked(folder, _NSYS)}
    for rank, (reader, path) in sorted(readable.items()):
        events = reader(path)  # one rank's at a time: a trace can take gigabytes
        made = (breakdown.rows(events), activities.rows(events), timeline.rows(events))
        for name, frame in zip(_FROM_TRACE, made, strict=True):
            out[name].append(frame.with_columns(rank=pl.lit(rank, dtype=pl.Int64)))
    joined = {name: pl.concat(frames) for name, frames in out.items() if frames}
    return joined | ({"timeline": timeline.relative(joined["timeline"])} if joined else {})


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
