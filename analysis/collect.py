"""From the tables of a sweep's points to tables of the sweep:

    python -m analysis.collect SWEEP_JSON --derived DIR --out DIR

A point without tables has its row too: status not_run, with its settings.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from analysis import tables
from analysis.ingest import finished, write
from analysis.readers import raw


def collect(sweep: Mapping[str, Any], derived: Path) -> dict[str, pl.DataFrame]:
    """All tables of a sweep ({"name", "points": [{"point_id", "settings"}]})."""
    ids = [point["point_id"] for point in sweep["points"]]
    frames = {name: _concatenated(name, ids, derived) for name in tables.TABLES}
    have = set(frames["points"]["point_id"])
    absent = [_not_run(point) for point in sweep["points"] if point["point_id"] not in have]
    points = pl.concat([frames["points"], raw.points_frame(absent)])
    # A point is the same in any sweep, so its record may name another one.
    points = points.with_columns(sweep=pl.lit(sweep["name"], dtype=pl.String))
    return frames | {"points": finished("points", points)}


def _concatenated(name: str, ids: list[str], derived: Path) -> pl.DataFrame:
    files = [path for i in sorted(set(ids)) if (path := derived / i / f"{name}.parquet").is_file()]
    if not files:
        return finished(name, None)
    columns = tables.TABLES[name]
    return finished(name, pl.concat([tables.conform(pl.scan_parquet(f), columns) for f in files]).collect())


def _not_run(point: Mapping[str, Any]) -> dict[str, Any]:
    state = {"point_id": point["point_id"], "status": "not_run", "reason": "no_record"}
    return raw.point_row({"settings": point.get("settings"), **state})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the tidy tables of a sweep.")
    parser.add_argument("sweep", type=Path, help="JSON file of the sweep's name and points")
    parser.add_argument("--derived", type=Path, required=True, help="folder of the points' tables")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the tables to")
    args = parser.parse_args(argv)
    write(collect(json.loads(args.sweep.read_text()), args.derived), args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
