"""From the tables of a sweep's points to tables of the sweep:

    python -m nightsweep.analysis.tools.collect SWEEP_JSON [--rounds ROUND_JSON ...] --derived DIR --out DIR

A point without tables has its row too: status not_run, with its settings.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from nightsweep.analysis.diagnosis.remedies import rows as remedies
from nightsweep.analysis.ingest.derived import OF_POINT, Derived
from nightsweep.analysis.ingest.point_tables import as_table
from nightsweep.analysis.readers import point_files
from nightsweep.analysis.sweep import pair_rows
from nightsweep.analysis.tables import parquet
from nightsweep.jobs.record.json_files import load_json
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.record.whole_file import whole_file
from nightsweep.jobs.sweep.file import one_line
from nightsweep.jobs.sweep.rounds import PointList

USED = ("points", "steps")
"""Tables of points that those of the sweep are computed from."""


def collect(
    sweep: Mapping[str, Any], derived: Derived, rounds: Sequence[Mapping[str, Any]] = ()
) -> Iterator[tuple[str, Iterable[pl.DataFrame]]]:
    """All tables of a sweep ({"name", "points": [{"point_id", "settings"}]}), and of the points that its rounds
    add (jobs/sweep/rounds.py), one after the other, each in parts whose rows follow one another."""
    listed = {point["point_id"]: (point, None) for point in sweep["points"]}
    for one in rounds:
        for point in one["points"]:
            listed.setdefault(point["point_id"], (point, one["round"] if "trials" in one else None))
    ids = list(listed)
    frames = {name: derived.table(name, ids) for name in USED}
    have = set(frames["points"]["point_id"])
    absent = [_not_run(point) for point, _ in listed.values() if point["point_id"] not in have]
    points = pl.concat([frames["points"], point_files.frame(absent, "points")])
    # A point is the same in any sweep, so its record may name another one.
    points = points.with_columns(
        sweep=pl.lit(sweep["name"], dtype=pl.String),
        round=pl.col("point_id").replace_strict(
            {i: number for i, (_, number) in listed.items()}, return_dtype=pl.Int64
        ),
    )
    steps = frames["steps"]
    own = (point["settings"] for point, number in listed.values() if number is None)
    rows = {
        "diagnoses": remedies.diagnoses(points, steps, derived.causes(ids)),
        "remedies": remedies.trials(points, steps, rounds),
        "pairs": pair_rows.rows(sweep, own, points, steps),
    }
    yield "points", [as_table("points", points)]
    yield from ((name, [as_table(name, point_files.frame(made, name))]) for name, made in rows.items())
    yield "steps", [frames.pop("steps")]
    yield from ((name, derived.parts(name, ids)) for name in OF_POINT if name not in USED)


def _not_run(point: Mapping[str, Any]) -> dict[str, Any]:
    record = Record(point_id=point["point_id"], settings=point.get("settings") or {}, status="not_run")
    return point_files.point_row(record)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the tidy tables of a sweep.")
    parser.add_argument("sweep", type=Path, help="JSON file of the sweep's name and points")
    parser.add_argument("--derived", type=Path, required=True, help="folder of the points' tables and diagnoses")
    parser.add_argument("--rounds", type=Path, nargs="*", default=[], help="JSON files of its rounds")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the tables to")
    args = parser.parse_args(argv)
    try:
        sweep, *rounds = map(read_list, (args.sweep, *args.rounds))
        args.out.mkdir(parents=True, exist_ok=True)
        for name, parts in collect(sweep, Derived(args.derived), rounds):
            with whole_file(args.out / f"{name}.parquet") as scratch:
                write(parts, scratch)
    except parquet.FAULTS as error:
        parser.exit(1, f"{one_line(str(error))}\n")
    return 0


def write(parts: Iterable[pl.DataFrame], file: Path) -> None:
    """Write a table of one part or more."""
    frames = iter(parts)
    first = next(frames)
    second = next(frames, None)
    if second is None:
        parquet.write(first, file)
        return
    with pq.ParquetWriter(file, first.to_arrow().schema, compression="zstd") as sink:
        for frame in itertools.chain([first, second], frames):
            sink.write_table(frame.to_arrow())


def read_list(path: Path) -> dict[str, Any]:
    """sweep.json, or the file of a round. Raises FormatError."""
    load_json(path, PointList)
    return load_json(path, dict[str, Any])


if __name__ == "__main__":
    sys.exit(main())
