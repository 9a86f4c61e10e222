"""The tables of an Nsight Systems export, from SQLite or a folder of Parquet files, by column name.

The schema moves from version to version, added columns may stand anywhere, and a table without rows may be missing: a
column that is not there reads as null, and a table that is not there is told apart from an empty one.

SQLite hands over one cell at a time, which is what a large export costs: so large tables are read in parts by several
threads, and numbers share cells (nsys_cells.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.readers.nsys_cells import (
    Bits,
    Cell,
    Field,
    Text,
    beyond,
    completed,
    in_polars,
    in_sql,
    name_of,
    packed,
    readable,
    unpacked,
)

PART_ROWS = 250_000
BATCH_ROWS = 65_536


Make = Callable[[pl.DataFrame], pl.DataFrame]


class Source(Protocol):
    """An open export. `columns`: those of each table; `problems`: what could not be read, a line each."""

    columns: dict[str, set[str]]
    problems: list[str]

    def load(self, table: str, fields: Sequence[Field], each: Make | None = None) -> pl.DataFrame:
        """These columns of a table, in the table's order; no rows where there is no table. `each`: what to make of them
        part by part, as they are read, so that a large table is never there in both forms."""

    def rows(self, table: str, names: Sequence[str], column: str, values: Sequence[int]) -> pl.DataFrame:
        """Columns of the few rows in which one column has one of these values; null where there is no such column."""


class Parquet:
    """A folder with one Parquet file a table (`nsys export --type=parquetdir`)."""

    def __init__(self, path: Path) -> None:
        self.files = {f.stem: f for f in sorted(path.glob("*.parquet"))}
        self.columns: dict[str, set[str]] = {}
        self.problems: list[str] = []
        for table, file in self.files.items():
            try:
                self.columns[table] = set(pl.read_parquet_schema(file))
            except (pl.exceptions.PolarsError, OSError) as error:
                self.problems.append(f"{file.name}: cannot be read: {first_line(error)}")

    def load(self, table: str, fields: Sequence[Field], each: Make | None = None) -> pl.DataFrame:
        have = readable(fields, self.columns.get(table, ()))
        frame = pl.DataFrame()
        if have:
            try:
                frame = pl.scan_parquet(self.files[table]).select(map(in_polars, have)).collect()
            except (pl.exceptions.PolarsError, OSError) as error:
                self.problems.append(f"{table}: cannot be read: {first_line(error)}")
        whole = completed(frame, fields)
        if each is None:
            return whole
        del frame
        return pl.concat([each(part) for part in whole.iter_slices(PART_ROWS)] or [each(whole)], rechunk=True)

    def rows(self, table: str, names: Sequence[str], column: str, values: Sequence[int]) -> pl.DataFrame:
        have = [name for name in names if name in self.columns[table]]
        told = pq.read_table(self.files[table], columns=have, filters=[(column, "in", list(values))])
        if "binaryData" in have:  # nsys 2025.3 calls it text, which it is not
            place = have.index("binaryData")
            told = told.set_column(place, "binaryData", told.column(place).cast(pa.binary()))
        found: pl.DataFrame = pl.from_arrow(told)  # type: ignore[assignment]
        return found.with_columns(pl.lit(None).alias(name) for name in names if name not in have).select(names)


class SQLite:
    """An SQLite export. Raises adbc.Error where it is none."""

    def __init__(self, path: Path) -> None:
        # Nobody writes to an export, and beside one that belongs to somebody else no lock file could be made.
        self.uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self.columns: dict[str, set[str]] = {}
        self.problems: list[str] = []
        self.cut = False
        sql = "SELECT m.name AS t, c.name AS c FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        try:
            listed = self.query(sql, ["t", "c"])
        except adbc.Error as error:
            self.cut = True
            listed = self.query(sql, ["t", "c"])
            self.problems.append(f"the file is damaged or cut short ({first_line(error)})")
        for table, column in listed.iter_rows():
            self.columns.setdefault(table, set()).add(column)

    def query(self, sql: str, texts: Sequence[str] = ()) -> pl.DataFrame:
        """One statement on a connection of its own, for connections cannot be shared by threads. `texts`: columns of
        text, which come as distinct values and places in them."""
        # Not through ADBC's dbapi module: that imports pyarrow.dataset, and this pandas, a third of a second.
        with (
            adbc_driver_sqlite.connect(self.uri) as database,
            adbc.AdbcConnection(database) as connection,
            adbc.AdbcStatement(connection) as statement,
        ):
            if self.cut:  # without this SQLite reads nothing of a file that is shorter than it says
                statement.set_sql_query("PRAGMA writable_schema = ON")
                statement.execute_update()
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            table = pa.RecordBatchReader.from_stream(stream).read_all()
        for name in texts:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table.column(place).dictionary_encode())
        frame: pl.DataFrame = pl.from_arrow(table)  # type: ignore[assignment]
        return frame

    def load(self, table: str, fields: Sequence[Field], each: Make | None = None) -> pl.DataFrame:
        have = readable(fields, self.columns.get(table, ()))
        if not have:
            frame = completed(pl.DataFrame(), fields)
            return each(frame) if each else frame
        if each:
            too_large: set[str] = set()

            def made(part: pl.DataFrame) -> pl.DataFrame:
                too_large.update(beyond(part, have))
                return each(completed(part, fields))

            frame = self._cells(table, packed(have), made)
            if too_large:
                wide = [replace(f, bits=64) if isinstance(f, Bits) and f.name in too_large else f for f in have]
                frame = self._cells(table, packed(wide), lambda part: each(completed(part, fields)))
            return frame
        frame = self._cells(table, packed(have))
        for name in beyond(frame, have):
            field = next(each for each in have if name_of(each) == name)
            whole: list[Cell] = [(f'{in_sql(field)} AS "c0"', [name])]
            frame = frame.with_columns(self._cells(table, whole)[name])
        return completed(frame, fields)

    def _cells(self, table: str, cells: Sequence[Cell], each: Make | None = None) -> pl.DataFrame:
        """What is in these cells of all rows, or what `each` makes of it, several parts at a time."""
        texts = [f"c{i}" for i, (_, group) in enumerate(cells) if isinstance(group[0], Text)]
        select = f'SELECT {", ".join(sql for sql, _ in cells)} FROM "{table}"'

        def part(where: str) -> pl.DataFrame | str:
            try:
                found = unpacked(self.query(select + where, texts), cells)
                return each(found) if each else found
            except adbc.Error as error:
                return first_line(error)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(part, self._parts(table)))
        broken = [each for each in parts if isinstance(each, str)]
        if broken:
            self.problems.append(f"{table}: {len(broken)} of {len(parts)} parts cannot be read: {broken[0]}")
        frames = [each for each in parts if isinstance(each, pl.DataFrame)]
        return pl.concat(frames, rechunk=True) if frames else pl.DataFrame()

    def rows(self, table: str, names: Sequence[str], column: str, values: Sequence[int]) -> pl.DataFrame:
        have = [name for name in names if name in self.columns[table]]
        empty = {"text": "''", "binaryData": "x''"}  # see _sql
        cells = [f'coalesce("{n}", {empty[n]}) AS "{n}"' if n in empty else f'"{n}"' for n in have]
        places = ", ".join(str(int(value)) for value in values)
        try:
            found = self.query(f'SELECT {", ".join(cells)} FROM "{table}" WHERE "{column}" IN ({places})')
        except adbc.Error as error:
            self.problems.append(f"{table}: rows by {column} cannot be read: {first_line(error)}")
            found = pl.DataFrame(schema=list(have))
        return found.with_columns(pl.lit(None).alias(name) for name in names if name not in have).select(names)

    def _parts(self, table: str) -> list[str]:
        """Conditions that part the table's rows; one that is always true for a small table, or where rows have no
        number."""
        try:
            first, last = self.query(f'SELECT min(rowid), max(rowid) FROM "{table}"').row(0)
        except adbc.Error:
            return [""]
        if not isinstance(first, int) or last - first < PART_ROWS:
            return [""]
        return [f" WHERE rowid BETWEEN {low} AND {low + PART_ROWS - 1}" for low in range(first, last + 1, PART_ROWS)]


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def open_source(path: Path) -> Source:
    """The export at a path. Raises ValueError with a line that says what is wrong."""
    if path.is_dir():
        return Parquet(path)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        return SQLite(path)
    except adbc.Error as error:
        raise ValueError(f"{path}: not an Nsight Systems export: {first_line(error)}") from error
