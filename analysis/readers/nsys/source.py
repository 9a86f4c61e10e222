"""The tables of an Nsight Systems export, from SQLite or a folder of Parquet files, by column name.

The schema moves from version to version, added columns may stand anywhere, and a table without rows may be missing: a
column that is not there reads as null, and a table that is not there is told apart from an empty one.

Of an SQLite file the tables of events are read from its pages (sqlite_pages.py), several parts at the same time; what
is not as exports are, or damaged, is read through SQLite, which takes more than twice as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.readers.nsys.fields import Field, Text, columns_of, completed, readable, values
from analysis.readers.nsys.sqlite_pages import Ints, Pages, Unusual

PART_ROWS = 250_000
PART_BYTES = 16 << 20
"""Of a table, what one thread makes events of at a time: rows that SQLite gives, pages of the file."""
MOST_PARTS = 1000
"""Statements for one table at most: row ids may lie far apart, up to 2**63."""
BATCH_ROWS = 65_536

Make = Callable[[pl.DataFrame], pl.DataFrame]
In = TypeVar("In")
Out = TypeVar("Out")


class Source(Protocol):
    """An open export. `columns`: those of each table; `problems`: what could not be read, a line each."""

    columns: dict[str, set[str]]
    problems: list[str]

    def load(self, table: str, fields: Sequence[Field], each: Make | None = None) -> pl.DataFrame:
        """These columns of a table, in the table's order; no rows where there is no table. `each`: what to make of them
        part by part, as they are read, so that a large table is never there in both forms. It may be called by several
        threads, and again with rows that it has had."""

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
        whole = completed(pl.DataFrame(), fields)
        if have:
            try:
                whole = pl.scan_parquet(self.files[table]).select(values(fields, self.columns[table])).collect()
            except (pl.exceptions.PolarsError, OSError) as error:
                self.problems.append(f"{table}: cannot be read: {first_line(error)}")
        if each is None:
            return whole
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
        wal = path.with_name(f"{path.name}-wal")
        logged = wal.is_file() and wal.stat().st_size > 0  # rows that only SQLite finds
        # Nobody writes to an export, and beside one that belongs to somebody else no lock file could be made.
        self.uri = f"{path.absolute().as_uri()}?mode=ro" + ("" if logged else "&immutable=1")
        self.columns: dict[str, set[str]] = {}
        self.stored: dict[str, tuple[int, list[str]]] = {}
        self.problems: list[str] = []
        self.cut = False
        sql = """SELECT m.name AS t, m.rootpage AS root, c.name AS c, c.pk OR c.hidden AS own
            FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE m.type = 'table' ORDER BY m.name, c.cid"""
        try:
            listed = self.query(sql, ["t", "c"])
        except adbc.Error as error:
            self.cut = True
            listed = self.query(sql, ["t", "c"])
            self.problems.append(f"the file is damaged or cut short ({first_line(error)})")
        for (table, root), of in listed.group_by("t", "root", maintain_order=True):
            self.columns[table] = set(of["c"])
            if not of["own"].max():  # a key or a computed column may have no place among the stored
                self.stored[table] = root, of["c"].to_list()
        try:
            self.pages = None if self.cut or logged else Pages(path)
        except Unusual:
            self.pages = None

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

        def made(part: pl.DataFrame) -> pl.DataFrame:
            frame = completed(part, fields)
            return each(frame) if each else frame

        if not have:
            return made(pl.DataFrame())
        texts = {name: isinstance(field, Text) for field in have for name in columns_of(field)}
        try:
            frames = self._from_pages(table, texts, made)
        except (Unusual, OSError):
            frames = self._by_sql(table, texts, made)
        return pl.concat(frames) if frames else made(pl.DataFrame())

    def _from_pages(self, table: str, texts: Mapping[str, bool], each: Make) -> list[pl.DataFrame]:
        """What `each` makes of these columns, part by part; whether they are text. Raises Unusual and OSError."""
        pages = self.pages
        if pages is None or table not in self.stored:
            raise Unusual("a table that only SQLite reads")
        root, names = self.stored[table]
        places = {names.index(name): name for name in texts}
        wanted = {place: texts[name] for place, name in places.items()}

        def part(leaves: Ints) -> pl.DataFrame:
            found = pages.columns(leaves, wanted)
            return each(pl.DataFrame([column.alias(places[place]) for place, column in found.items()]))

        leaves = pages.leaves(root)
        step = PART_BYTES // pages.size
        return _side_by_side(part, [leaves[first : first + step] for first in range(0, len(leaves), step)])

    def _by_sql(self, table: str, texts: Mapping[str, bool], each: Make) -> list[pl.DataFrame]:
        """The same through SQLite, without the parts that cannot be read; they are told as a problem."""
        told = [name for name, text in texts.items() if text]
        # The driver takes a column's type from its first rows, and takes null for a number. So text has a letter before
        # it, and null is no text at all.
        marked = {name: f"""coalesce('t' || "{name}", '') AS "{name}\"""" for name in told}
        cells = [marked.get(name, f'"{name}"') for name in texts]

        def part(where: str) -> pl.DataFrame | str:
            try:
                found = self.query(f'SELECT {", ".join(cells)} FROM "{table}"{where}', told)
            except adbc.Error as error:
                return first_line(error)
            return each(found.with_columns(_text(pl.col(name)) for name in told))

        parts = _side_by_side(part, self._parts(table))
        broken = [each for each in parts if isinstance(each, str)]
        if broken:
            self.problems.append(f"{table}: {len(broken)} of {len(parts)} parts cannot be read: {broken[0]}")
        return [each for each in parts if isinstance(each, pl.DataFrame)]

    def rows(self, table: str, names: Sequence[str], column: str, values: Sequence[int]) -> pl.DataFrame:
        have = [name for name in names if name in self.columns[table]]
        empty = {"text": "''", "binaryData": "x''"}  # as in _by_sql
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
        step = max(PART_ROWS, (last - first) // MOST_PARTS + 1)
        return [f" WHERE rowid BETWEEN {low} AND {min(low + step - 1, last)}" for low in range(first, last + 1, step)]


def _text(told: pl.Expr) -> pl.Expr:
    text = told.cast(pl.String)
    return pl.when(text != "").then(text.str.slice(1)).cast(pl.Categorical()).name.keep()


def _side_by_side(work: Callable[[In], Out], parts: Sequence[In]) -> list[Out]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, parts))


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
