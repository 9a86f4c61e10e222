"""What is derived from the raw data of a sweep's points, in chunks of some hundred (jobs/sweep/chunks.py):

    derived/CHUNK.json             how many points it has, and why some could not be analysed; written last
    derived/CHUNK/TABLE.parquet    a table of all its points
    derived/CHUNK/made.parquet     MADE: a row a point, with its diagnosis
    derived/CHUNK/traces/PART/     the trace tables of some of its points (trace_parts.py)

A point may be in several chunks, for an edited sweep is divided anew: the youngest row of MADE says which one counts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from nightsweep.analysis.ingest import trace_parts
from nightsweep.analysis.ingest.point_tables import FOR_DIAGNOSIS, TRACES, as_table, write
from nightsweep.analysis.tables import column, parquet, points
from nightsweep.analysis.tables.column import ID, Column
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.record.json_files import FormatError
from nightsweep.jobs.record.whole_file import write_text

MADE = {
    **ID,
    "raw_ns": Column(pl.Int64, "When its record was written, which is the last of its raw data; 0: there was none."),
    "made_ns": Column(pl.Int64, "When its tables were made (UTC)."),
    "problem": Column(pl.String, "Why it has no tables or no diagnosis, or not all of them."),
    "part": Column(pl.String, "Folder in CHUNK/traces of its trace tables; null without any."),
    "diagnosis": Column(pl.String, "As `nightsweep diagnose --json` says it."),
}
OF_POINT = tuple(name for name in points.TABLES if name not in points.SWEEP_TABLES)
"""The tables that a point has."""
PART_ROWS = 500_000
"""Of a table of many points that is in memory at a time: of samples 150 MB, and a few times that to sort them."""


@dataclass(frozen=True)
class Made:
    """What was made of one point."""

    point_id: str
    raw_ns: int
    made_ns: int
    tables: Mapping[str, pl.DataFrame]
    problem: str | None = None
    diagnosis: str | None = None
    part: str | None = None

    def row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in MADE}


def raw_ns(point: Path) -> int:
    """When a point's record was written; 0 where there is none."""
    try:
        return (point / "record.json").stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0


class Chunk:
    """One chunk, to be written. `folder`: derived/CHUNK."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.made = read_made(folder)
            for name in OF_POINT if self.made.height else ():
                parquet.require(folder / f"{name}.parquet", "all points of its chunk are made again")
        except FormatError as error:
            print(error, file=sys.stderr)
            self.made = column.empty(MADE)

    def due(self, results: Path, ids: Sequence[str]) -> list[str]:
        """Which of these points are to be made: those with other raw data than what is kept was made of, and those of
        which something could not be made."""
        good = self.made.filter(pl.col("problem").is_null())
        kept = dict(good.select("point_id", "raw_ns").iter_rows())
        return [point for point in ids if kept.get(point) != raw_ns(results / "points" / point)]

    def save(self, ids: Collection[str], new: Sequence[Made], scratch: Path | None = None) -> None:
        """Keep of what there is the points in `ids`, and add or replace new ones. The rows of MADE come last: a point
        whose tables alone are written when this is killed is made again. `scratch`: has the new ones' trace tables, in
        ID/trace."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self._with_traces(new, scratch) if scratch is not None else new
        stays = (set(ids) & set(self.made["point_id"])) - {one.point_id for one in new}
        for name in OF_POINT:
            kept = rows_of(self.folder, name, stays).collect()
            self._replace(name, as_table(name, pl.concat([kept, *(one.tables[name] for one in new)])))
        rows = pl.DataFrame([one.row() for one in new], schema=column.schema(MADE))
        old = self.made.filter(pl.col("point_id").is_in(list(stays)))
        self.made = pl.concat([old, rows]).sort("point_id")
        self._replace("made", self.made)
        trace_parts.remove_unused(self.folder / "traces", self.made["part"].drop_nulls().unique().to_list())

    def _with_traces(self, new: Sequence[Made], scratch: Path) -> list[Made]:
        """The new points with the part that now has their trace tables."""
        folders = {one.point_id: scratch / one.point_id / TRACES for one in new if one.problem is None}
        traced = {point: folder for point, folder in folders.items() if any(folder.glob("*.parquet"))}
        if not traced:
            return list(new)
        traces = self.folder / "traces"
        name = trace_parts.next_name(traces)
        trace_parts.write(traced, traces / name)
        return [dataclasses.replace(one, part=name) if one.point_id in traced else one for one in new]

    def finish(self, since_ns: int) -> None:
        """Write CHUNK.json, which says that all is there that was so at `since_ns`, when reading began: what came later
        is newer than the file, also where nobody waited for this job, and so counts as not read."""
        bad = dict(self.made.filter(pl.col("problem").is_not_null()).select("point_id", "problem").iter_rows())
        text = json.dumps({"points": self.made.height, "problems": bad}, indent=1) + "\n"
        done = self.folder.with_name(f"{self.folder.name}.json")
        write_text(done, text)
        os.utime(done, ns=(since_ns, since_ns))

    def _replace(self, name: str, frame: pl.DataFrame) -> None:
        parquet.write(frame, self.folder / f"{name}.parquet")


def read_made(chunk: Path) -> pl.DataFrame:
    """The table MADE of a chunk. What an older version made is not known, and made again. Raises FormatError."""
    file = chunk / "made.parquet"
    if not file.exists():
        return column.empty(MADE)
    try:
        made = pl.read_parquet(file.read_bytes())  # at once, for it may be replaced meanwhile
    except (OSError, pl.exceptions.PolarsError):
        raise FormatError(f"{file}: cut, or no table; {remedy(chunk)}") from None
    return made if made.schema == column.schema(MADE) else column.empty(MADE)


def remedy(chunk: Path) -> str:
    """What to do where a chunk is damaged."""
    return f"remove {chunk} and {chunk.name}.json, and run the sweep again, which makes them anew"


def rows_of(chunk: Path, name: str, ids: Collection[str]) -> pl.LazyFrame:
    """The rows of a chunk's table that are of these points. Raises FormatError."""
    file = chunk / f"{name}.parquet"
    if not ids:
        return column.empty(points.TABLES[name]).lazy()
    parquet.require(file, remedy(chunk))
    return column.conform(pl.scan_parquet(file), points.TABLES[name]).filter(pl.col("point_id").is_in(sorted(ids)))


def forget(derived: Path, ids: Collection[str]) -> None:
    """Delete what there is of these points, in all chunks."""
    for made in sorted(derived.glob("*/made.parquet")):
        chunk = Chunk(made.parent)
        stay = set(chunk.made["point_id"]) - set(ids)
        if len(stay) < chunk.made.height:
            chunk.save(stay, [])


class Derived:
    """All chunks of a sweep, to be read. `folder`: results/SWEEP/derived. Raises FormatError where one is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for chunk in (path.with_suffix("") for path in sorted(folder.glob("*.json"))):  # which says that all is there
            parquet.require(chunk / "made.parquet", remedy(chunk))
        chunks = sorted(path.parent for path in folder.glob("*/made.parquet"))
        found = [read_made(chunk).with_columns(chunk=pl.lit(chunk.name)) for chunk in chunks]
        made = pl.concat(found).sort("made_ns") if found else column.empty(MADE)
        self.made = {row["point_id"]: row for row in made.iter_rows(named=True)}

    def table(self, name: str, ids: Sequence[str]) -> pl.DataFrame:
        """A table of these points, as far as they are there."""
        by_chunk: dict[str, list[str]] = {}
        for point in set(ids) & self.made.keys():
            by_chunk.setdefault(self.made[point]["chunk"], []).append(point)
        if not by_chunk:
            return as_table(name, None)
        frames = [rows_of(self.folder / chunk, name, own) for chunk, own in sorted(by_chunk.items())]
        return as_table(name, pl.concat(frames).collect())

    def parts(self, name: str, ids: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The same in parts of about PART_ROWS rows, in the order of the table; at least one. Samples of ten thousand
        points are more than many a memory holds."""
        rows = 0
        for chunk in sorted({row["chunk"] for row in self.made.values()}):
            parquet.require(file := self.folder / chunk / f"{name}.parquet", remedy(file.parent))
            rows += pq.read_metadata(file).num_rows
        known = sorted(set(ids) & self.made.keys())
        size = max(1, math.ceil(len(known) / math.ceil(max(1, rows) / PART_ROWS)))
        for start in range(0, max(1, len(known)), size):
            yield self.table(name, known[start : start + size])

    def diagnosis(self, point_id: str) -> dict[str, Any] | None:
        """The diagnosis of a point; None where there is none."""
        text = self.made.get(point_id, {}).get("diagnosis")
        return None if text is None else json.loads(text)

    def causes(self, ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Causes by point, of those that have a diagnosis."""
        found = ((point, self.diagnosis(point)) for point in ids)
        return {point: diagnosis["causes"] for point, diagnosis in found if diagnosis is not None}

    @contextmanager
    def folder_of(self, point_id: str) -> Iterator[Path | None]:
        """A folder with a point's tables, as its diagnosis reads them; None where there are none."""
        row = self.made.get(point_id)
        if row is None or row["problem"] is not None:
            yield None
            return
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch)
            write({name: self.table(name, [point_id]) for name in FOR_DIAGNOSIS}, out)
            if row["part"] is not None:
                part = self.folder / row["chunk"] / "traces" / row["part"]
                for name in sorted({*TRACE_TABLES, *(path.stem for path in part.glob("*.parquet"))}):
                    parquet.require(part / f"{name}.parquet", remedy(self.folder / row["chunk"]))
                trace_parts.extract(part, point_id, out / TRACES)
            yield out
