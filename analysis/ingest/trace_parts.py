"""The trace tables of a chunk's points, in parts: a part holds those of all points that were saved at once.

    derived/CHUNK/traces/PART/TABLE.parquet        rows of its points (analysis/tables/traces.py), and their point_id

A part never changes. A point that is made again is in another part, which its row of MADE names; a part is deleted with
the last point that it counts for. Files are thus some 32 a part, not a point.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from nightsweep.analysis.tables import parquet, trace_files
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.host import cache

_ROWS = 200_000
"""Rows that are held of a table while it is copied."""


def write(folders: Mapping[str, Path], part: Path) -> None:
    """Copy the tables of these points (`folders`, by id) to a part, which is there once all of it is."""
    scratch = cache.scratch(part)
    scratch.mkdir(parents=True)
    names = sorted({path.name for folder in folders.values() for path in folder.glob("*.parquet")})
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: _copy(name, folders, scratch), names))
    scratch.replace(part)


def _copy(name: str, folders: Mapping[str, Path], out: Path) -> None:
    file = trace_files.File(out / name)
    for point, folder in sorted(folders.items()):
        if (folder / name).is_file():
            own = pl.lit(point).alias("point_id")
            file.append(pl.read_parquet(folder / name, n_rows=0).with_columns(own))  # its columns, if there are no rows
            for rows in pq.ParquetFile(folder / name).iter_batches(_ROWS):
                file.append(pl.DataFrame(rows).with_columns(own))
    file.close(keep=True)


def scan(part: Path, name: str, point_id: str) -> pl.LazyFrame:
    """A table of a point, lazily: only the columns and row groups that are asked for are read."""
    return pl.scan_parquet(part / f"{name}.parquet").filter(pl.col("point_id") == point_id)


def extract(part: Path, point_id: str, out: Path) -> None:
    """Write a point's tables as they were before they came to the part."""
    out.mkdir(parents=True)
    for path in sorted(part.glob("*.parquet")):
        rows = scan(part, path.stem, point_id).collect()
        if path.stem in TRACE_TABLES:
            trace_files.write({path.stem: rows.drop("point_id")}, out)
        else:  # what a point adds to them
            parquet.write(rows, out / path.name)


def remove_unused(folder: Path, used: Collection[str]) -> None:
    """Delete the parts in a folder that are not named, and what a kill left of others."""
    for part in folder.glob("*") if folder.is_dir() else ():
        if part.name not in used:
            shutil.rmtree(part)


def next_name(folder: Path) -> str:
    """A name for a new part in a folder."""
    return f"{max((int(path.name) for path in folder.glob('[0-9]*')), default=-1) + 1:04d}"
