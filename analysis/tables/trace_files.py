"""Parquet files of trace tables, one a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from nightsweep.analysis.tables import parquet
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.host import cache
from nightsweep.jobs.host.cores import allowed_cores
from nightsweep.jobs.record.json_files import FormatError

SLICE_ROWS = 1_000_000
"""Rows converted to Arrow at a time."""
FOUND_BY = ("point_id", "rank")
"""Columns by which rows are looked for."""
GROUP_ROWS = 50_000
"""Rows of small ranks are gathered into row groups of this size, for each group has a cost of its own. Larger groups
would have more rows read to find those of one rank."""


def require(folder: Path, names: Iterable[str]) -> None:
    """Raise FormatError unless these tables are there as they are written now."""
    for name in sorted(set(names)):
        file, written = folder / f"{name}.parquet", "`nightsweep ingest` of this version writes"
        parquet.require(file, f"expected Parquet, as {written} it")
        if lacking := [column for column in TRACE_TABLES[name] if column not in pl.read_parquet_schema(file)]:
            raise FormatError(f"{file}: has no {' and no '.join(lacking)}; expected the columns that {written}")


class Writer:
    """Writes OUT/NAME.parquet for each table, to which frames are added rank by rank:

        with Writer(out) as writer:
            for frames in engine.analyse(path, name):
                writer.add(frames)

    Frames are written while the next ones are made, and only one set waits. Files get their names at the end, and only
    if there was no error.
    """

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out = out
        self._files: dict[str, File] = {}
        self._pool = ThreadPoolExecutor(allowed_cores())
        self._writing: list[Future[None]] = []

    def add(self, frames: dict[str, pl.DataFrame]) -> None:
        """Append these frames to their tables, which have the same columns each time.

        They are taken out of `frames`, so that each one's memory is free once it is written.
        """
        self._wait()
        for name in sorted(frames, key=lambda name: -frames[name].height):
            file = self._files.setdefault(name, File(self.out / f"{name}.parquet"))
            self._writing.append(self._pool.submit(file.append, frames.pop(name)))

    def _wait(self) -> None:
        for future in self._writing:
            future.result()
        self._writing.clear()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with self._pool:
            if kind is None:
                self._wait()
        for file in self._files.values():
            file.close(keep=kind is None)


class File:
    """One table's file, written piece by piece.

    Times and ids of calls grow little from row to row, so they are stored as differences; text is stored as a
    dictionary. Without Arrow's schema in the file, categorical columns are read back as text.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scratch = cache.scratch(path)
        self.writer: pq.ParquetWriter | None = None
        self.waiting: list[pa.Table] = []

    def append(self, frame: pl.DataFrame) -> None:
        """Add rows, a slice at a time: what is converted at once is held twice."""
        for rows in frame.iter_slices(SLICE_ROWS) if frame.height else [frame]:
            table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
            if self.writer is None:
                self.writer = self._open(frame, table.schema)
            self.waiting.append(table.cast(self.writer.schema))
            if sum(len(part) for part in self.waiting) >= GROUP_ROWS:
                self._write()

    def _write(self) -> None:
        if self.writer is not None and self.waiting:
            self.writer.write_table(pa.concat_tables(self.waiting))
            self.waiting.clear()

    def _open(self, frame: pl.DataFrame, schema: pa.Schema) -> pq.ParquetWriter:
        grow = [n for n, kind in frame.schema.items() if kind == pl.Int64 and (n.endswith("_ns") or n == "correlation")]
        return pq.ParquetWriter(
            self.scratch,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in frame.columns if name not in grow],
            column_encoding=dict.fromkeys(grow, "DELTA_BINARY_PACKED"),
            write_statistics=[name for name in FOUND_BY if name in frame.columns] or False,
            store_schema=False,
        )

    def close(self, keep: bool) -> None:
        """End the file; without `keep` it is removed."""
        if self.writer is not None:
            if keep:
                self._write()
            self.writer.close()
            if keep:
                self.scratch.replace(self.path)
            else:
                self.scratch.unlink()


def write(frames: Mapping[str, pl.DataFrame], out: Path) -> None:
    """Write OUT/NAME.parquet for each table."""
    with Writer(out) as files:
        files.add(dict(frames))


def rank_table(folder: Path, name: str, rank: int) -> pl.DataFrame:
    """The rows of a table that are a rank's."""
    return pl.scan_parquet(folder / f"{name}.parquet").filter(pl.col("rank") == rank).collect()
