"""What is derived from the raw data of a sweep's points, in chunks of some hundred (jobs/sweep/chunks.py):

    derived/CHUNK.json             how many points it has, and why some could not be analysed; written last
    derived/CHUNK/TABLE.parquet    a table of all its points
    derived/CHUNK/made.parquet     MADE: a row a point, with its diagnosis
    derived/CHUNK/traces/ID/       the trace tables of a traced point (analysis/tables/traces.py)

A point may be in several chunks, for an edited sweep is divided anew: the youngest row of MADE says which one counts.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analysis.ingest.point_tables import TRACES, as_table, write
from analysis.tables import column, points
from analysis.tables.column import ID, Column

MADE = {
    **ID,
    "raw_ns": Column(pl.Int64, "When its record was written, which is the last of its raw data; 0: there was none."),
    "made_ns": Column(pl.Int64, "When its tables were made (UTC)."),
    "problem": Column(pl.String, "Why it has no tables, or no diagnosis."),
    "diagnosis": Column(pl.String, "As `nightsweep diagnose --json` says it."),
}
OF_POINT = tuple(name for name in points.TABLES if name not in points.SWEEP_TABLES)
"""The tables that a point has."""
FOR_DIAGNOSIS = ("points", "steps", "gpu_samples", "host_samples", "clocks")
"""Those of them that a diagnosis reads (analysis/diagnosis/evidence/sources.py)."""


@dataclass(frozen=True)
class Made:
    """What was made of one point."""

    point_id: str
    raw_ns: int
    made_ns: int
    tables: Mapping[str, pl.DataFrame]
    problem: str | None = None
    diagnosis: str | None = None

    def row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in MADE}


def raw_ns(point: Path) -> int:
    """When a point's record was written; 0 where there is none."""
    try:
        return (point / "record.json").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


class Chunk:
    """One chunk, to be written. `folder`: derived/CHUNK."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = folder / "made.parquet"
        self.made = pl.read_parquet(made) if made.is_file() else column.empty(MADE)

    def due(self, results: Path, ids: Sequence[str]) -> list[str]:
        """Which of these points are to be made: those with other raw data than what is kept was made of, and those of
        which something could not be made."""
        good = self.made.filter(pl.col("problem").is_null())
        kept = dict(good.select("point_id", "raw_ns").iter_rows())
        return [point for point in ids if kept.get(point) != raw_ns(results / "points" / point)]

    def save(self, ids: Collection[str], new: Sequence[Made]) -> None:
        """Keep of what there is the points in `ids`, and add or replace new ones. The rows of MADE come last: a point
        whose tables alone are written when this is killed is made again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stays = (set(ids) & set(self.made["point_id"])) - {one.point_id for one in new}
        for name in OF_POINT:
            self._replace(name, as_table(name, pl.concat([self._rows(name, stays), *(m.tables[name] for m in new)])))
        rows = pl.DataFrame([one.row() for one in new], schema=column.schema(MADE))
        old = self.made.filter(pl.col("point_id").is_in(list(stays)))
        self.made = pl.concat([old, rows]).sort("point_id")
        self._replace("made", self.made)
        for trace in (self.folder / "traces").glob("*"):
            if trace.name not in ids:
                shutil.rmtree(trace)

    def finish(self) -> None:
        """Write CHUNK.json, which says that all is there."""
        bad = dict(self.made.filter(pl.col("problem").is_not_null()).select("point_id", "problem").iter_rows())
        text = json.dumps({"points": self.made.height, "problems": bad}, indent=1) + "\n"
        scratch = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
        scratch.write_text(text)
        scratch.replace(self.folder.with_name(f"{self.folder.name}.json"))

    def _rows(self, name: str, ids: Collection[str]) -> pl.DataFrame:
        return rows_of(self.folder, name, ids).collect()

    def _replace(self, name: str, frame: pl.DataFrame) -> None:
        scratch = self.folder / f".{name}.{os.getpid()}"
        frame.write_parquet(scratch)
        scratch.replace(self.folder / f"{name}.parquet")


def rows_of(chunk: Path, name: str, ids: Collection[str]) -> pl.LazyFrame:
    """The rows of a chunk's table that are of these points."""
    file = chunk / f"{name}.parquet"
    if not ids or not file.is_file():
        return column.empty(points.TABLES[name]).lazy()
    return column.conform(pl.scan_parquet(file), points.TABLES[name]).filter(pl.col("point_id").is_in(sorted(ids)))


def forget(derived: Path, ids: Collection[str]) -> None:
    """Delete what there is of these points, in all chunks."""
    for made in sorted(derived.glob("*/made.parquet")):
        chunk = Chunk(made.parent)
        stay = set(chunk.made["point_id"]) - set(ids)
        if len(stay) < chunk.made.height:
            chunk.save(stay, [])


class Derived:
    """All chunks of a sweep, to be read. `folder`: results/SWEEP/derived."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = [
            pl.scan_parquet(path).with_columns(chunk=pl.lit(path.parent.name))
            for path in sorted(folder.glob("*/made.parquet"))
        ]
        made = pl.concat(found).sort("made_ns").collect() if found else pl.DataFrame(schema={"point_id": pl.String})
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
            traces = self.folder / row["chunk"] / "traces" / point_id
            if traces.is_dir():
                (out / TRACES).symlink_to(traces.resolve())
            yield out
