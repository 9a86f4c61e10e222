"""The tables of an Nsight Systems export, from SQLite or a folder of Parquet files, by column name.

The schema changes from version to version, new columns may stand anywhere, and a table without rows may be missing. A
missing column reads as null, and a missing table is distinguished from an empty one.

Of an SQLite file the tables of events are read from its pages (sqlite_pages.py), several chunks at the same time. What
has another layout, is damaged or has a log of changes beside it is read through SQLite: a whole ingest takes half as
long again then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from nightsweep.analysis.readers.nsys.export_fields import (
    Field,
    Text,
    columns_of,
    complete,
    expressions,
    readable_fields,
)
from nightsweep.analysis.readers.nsys.sqlite_pages import Ints, Pages, UnsupportedLayout
from nightsweep.jobs.host.cores import allowed_cores

EXPECTED = "a trace of PyTorch's profiler (.json, .json.gz), an export of Nsight Systems or a .nsys-rep was expected"
CHUNK_ROWS = 250_000
CHUNK_BYTES = 16 << 20
"""What one thread converts at a time: rows of SQLite or Parquet, pages of an SQLite file."""
MOST_CHUNKS = 1000
"""Statements for one table at most: row ids may lie far apart, up to 2**63."""
BATCH_ROWS = 65_536

Make = Callable[[pl.DataFrame], pl.DataFrame]
In = TypeVar("In")
Out = TypeVar("Out")


class Damage:
    """What of an export cannot be read: a line each, and of which tables that is; WHOLE is the file itself, whose line
    is for all tables that are found damaged after it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.tables: set[str] = set()

    def add(self, table: str, problem: str) -> None:
        if WHOLE not in self.tables:
            self.problems.append(problem)
        self.tables.add(table)


WHOLE = ""


class Parquet:
    """A folder with one Parquet file a table (`nsys export --type=parquetdir`). `columns`: those of each table."""

    def __init__(self, path: Path) -> None:
        self.files = {f.stem: f for f in sorted(path.glob("*.parquet"))}
        self.columns: dict[str, set[str]] = {}
        self.damage = Damage()
        for table, file in self.files.items():
            try:
                self.columns[table] = set(pl.read_parquet_schema(file))
            except (pl.exceptions.PolarsError, OSError) as error:
                self.damage.add(table, f"{file.name}: cannot be read: {first_line(error)}")

    def load(self, table: str, fields: Sequence[Field], make: Make | None = None) -> pl.DataFrame:
        """These fields of a table, in the table's order; no rows where there is no table.

        `make` converts them chunk by chunk while they are read, so that a large table is never held in both forms. It
        may be called by several threads, and again with rows that it has converted before.
        """
        have = readable_fields(fields, self.columns.get(table, ()))
        whole = complete(pl.DataFrame(), fields)
        if have:
            try:
                whole = pl.scan_parquet(self.files[table]).select(expressions(fields, self.columns[table])).collect()
            except (pl.exceptions.PolarsError, OSError) as error:
                self.damage.add(table, f"{table}: cannot be read: {first_line(error)}")
        if make is None:
            return whole
        return pl.concat([make(chunk) for chunk in whole.iter_slices(CHUNK_ROWS)] or [make(whole)], rechunk=True)

    def rows(self, table: str, names: Sequence[str], column: str, values: Sequence[int]) -> pl.DataFrame:
        """Columns of the few rows in which one column has one of these values; columns that are missing are null."""
        have = [name for name in names if name in self.columns[table]]
        rows = pq.read_table(self.files[table], columns=have, filters=[(column, "in", list(values))])
        if "binaryData" in have:  # nsys 2025.3 calls it text, which it is not
            place = have.index("binaryData")
            rows = rows.set_column(place, "binaryData", rows.column(place).cast(pa.binary()))
        found: pl.DataFrame = pl.from_arrow(rows)  # type: ignore[assignment]
        return found.with_columns(pl.lit(None).alias(name) for name in names if name not in have).select(names)


class SQLite:
    """An SQLite export. Raises adbc.Error where the file is no database."""

    def __init__(self, path: Path) -> None:
        self.logged = log_beside(path) is not None  # rows that only SQLite finds
        # Nobody writes to an export, and a lock file could not be created beside one in somebody else's folder.
        self.uri = f"{path.absolute().as_uri()}?mode=ro" + ("" if self.logged else "&immutable=1")
        self.columns: dict[str, set[str]] = {}
        self.stored: dict[str, tuple[int, list[str]]] = {}
        self.damage = Damage()
        sql = """SELECT m.name AS t, m.rootpage AS root, c.name AS c, c.pk OR c.hidden AS odd
            FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE m.type = 'table' ORDER BY m.name, c.cid"""
        try:
            listed = self.query(sql, ["t", "c"])
        except adbc.Error:
            self.damage.add(WHOLE, "the file is damaged or cut short: a part of it cannot be read")
            listed = self.query(sql, ["t", "c"])
        for (table, root), rows in listed.group_by("t", "root", maintain_order=True):
            self.columns[table] = set(rows["c"])
            if not rows["odd"].max():  # a key or a computed column may not be stored with the others
                self.stored[table] = root, rows["c"].to_list()
        try:
            self.pages = None if WHOLE in self.damage.tables or self.logged else Pages(path)
        except UnsupportedLayout:
            self.pages = None

    def query(self, sql: str, texts: Sequence[str] = ()) -> pl.DataFrame:
        """The rows of one statement, on a new connection, since threads cannot share one.

        `texts`: columns of text, which are returned as dictionaries.
        """
        # Not through ADBC's dbapi module: that imports pyarrow.dataset, and this pandas, a third of a second.
        with (
            adbc_driver_sqlite.connect(self.uri) as database,
            adbc.AdbcConnection(database) as connection,
            adbc.AdbcStatement(connection) as statement,
        ):
            if WHOLE in self.damage.tables:  # without this SQLite reads nothing of a file that is shorter than it says
                statement.set_sql_query("PRAGMA writable_schema = ON")
                statement.execute_update()
            if self.logged:  # the first to open the file makes an index of its log, and lets no other in meanwhile
                statement.set_sql_query("PRAGMA busy_timeout = 60000")
                statement.execute_update()
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            table = pa.RecordBatchReader.from_stream(stream).read_all()
        for place, name in enumerate(table.column_names):
            if pa.types.is_string(table.field(place).type):
                column = _valid_text(table.column(place))
                table = table.set_column(place, name, column.dictionary_encode() if name in texts else column)
        frame: pl.DataFrame = pl.from_arrow(table)  # type: ignore[assignment]
        return frame

    def load(self, table: str, fields: Sequence[Field], make: Make | None = None) -> pl.DataFrame:
        have = readable_fields(fields, self.columns.get(table, ()))

        def convert(chunk: pl.DataFrame) -> pl.DataFrame:
            frame = complete(chunk, fields)
            return make(frame) if make else frame

        if not have:
            return convert(pl.DataFrame())
        texts = {name: isinstance(field, Text) for field in have for name in columns_of(field)}
        try:
            frames = self._read_pages(table, texts, convert)
        except (UnsupportedLayout, OSError):
            frames = self._query_chunks(table, texts, convert)
        return pl.concat(frames) if frames else convert(pl.DataFrame())

    def _read_pages(self, table: str, texts: Mapping[str, bool], make: Make) -> list[pl.DataFrame]:
        """These columns converted by `make`, chunk by chunk. `texts`: whether each is text.

        Raises UnsupportedLayout and OSError.
        """
        pages = self.pages
        if pages is None or table not in self.stored:
            raise UnsupportedLayout("a table that only SQLite can read")
        root, names = self.stored[table]
        places = {names.index(name): name for name in texts}
        wanted = {place: texts[name] for place, name in places.items()}

        def read_chunk(leaves: Ints) -> pl.DataFrame:
            found = pages.columns(leaves, wanted)
            return make(pl.DataFrame([column.alias(places[place]) for place, column in found.items()]))

        leaves = pages.leaves(root)
        step = CHUNK_BYTES // pages.size
        return _map_in_threads(read_chunk, [leaves[first : first + step] for first in range(0, len(leaves), step)])

    def _query_chunks(self, table: str, texts: Mapping[str, bool], make: Make) -> list[pl.DataFrame]:
        """The same through SQLite; chunks that cannot be read are left out and become a problem."""
        text_columns = [name for name, text in texts.items() if text]
        # The driver takes a column's type from its first rows, and null for a number. So a letter is put before each
        # text, and null becomes the empty text. NOT INDEXED, since rows that are read from an index come in its order.
        marked = {name: f"""coalesce('t' || "{name}", '') AS "{name}\"""" for name in text_columns}
        cells = [marked.get(name, f'"{name}"') for name in texts]

        def query_chunk(where: str) -> pl.DataFrame | str:
            try:
                found = self.query(f'SELECT {", ".join(cells)} FROM "{table}" NOT INDEXED{where}', text_columns)
            except adbc.Error as error:
                return first_line(error)
            return make(found.with_columns(_text(pl.col(name)) for name in text_columns))

        chunks = _map_in_threads(query_chunk, self._chunks(table))
        broken = [chunk for chunk in chunks if isinstance(chunk, str)]
        if broken:
            self.damage.add(table, f"{table}: {len(broken)} of {len(chunks)} parts cannot be read: {broken[0]}")
        return [chunk for chunk in chunks if isinstance(chunk, pl.DataFrame)]

    def rows(self, table: str, names: Sequence[str], column: str, values: Sequence[int]) -> pl.DataFrame:
        have = [name for name in names if name in self.columns[table]]
        empty = {"text": "''", "binaryData": "x''"}  # as in _query_chunks
        cells = [f'coalesce("{n}", {empty[n]}) AS "{n}"' if n in empty else f'"{n}"' for n in have]
        places = ", ".join(str(int(value)) for value in values)
        try:
            found = self.query(f'SELECT {", ".join(cells)} FROM "{table}" WHERE "{column}" IN ({places})')
        except adbc.Error as error:
            self.damage.add(table, f"{table}: rows by {column} cannot be read: {first_line(error)}")
            found = pl.DataFrame(schema=list(have))
        return found.with_columns(pl.lit(None).alias(name) for name in names if name not in have).select(names)

    def _chunks(self, table: str) -> list[str]:
        """Conditions that divide the table's rows; a single empty one for a small table, or one without row ids."""
        try:
            first, last = self.query(f'SELECT min(rowid), max(rowid) FROM "{table}"').row(0)
        except adbc.Error:
            return [""]
        if not isinstance(first, int) or last - first < CHUNK_ROWS:
            return [""]
        step = max(CHUNK_ROWS, (last - first) // MOST_CHUNKS + 1)
        return [f" WHERE rowid BETWEEN {low} AND {min(low + step - 1, last)}" for low in range(first, last + 1, step)]


Source = Parquet | SQLite


def _valid_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as UTF-8, which SQLite does not check and Polars needs."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        texts = column.cast(pa.binary()).to_pylist()
        return pa.chunked_array([[None if text is None else text.decode(errors="replace") for text in texts]])
    return column


def _text(column: pl.Expr) -> pl.Expr:
    text = column.cast(pl.String)
    return pl.when(text != "").then(text.str.slice(1)).cast(pl.Categorical()).name.keep()


def _map_in_threads(work: Callable[[In], Out], parts: Sequence[In]) -> list[Out]:
    with ThreadPoolExecutor(allowed_cores()) as pool:
        return list(pool.map(work, parts))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def log_beside(path: Path) -> Path | None:
    """The write-ahead log or rollback journal beside an SQLite file, without which its pages are not its content."""
    file = path.resolve()  # as SQLite does, which follows links
    logs = [file.with_name(f"{file.name}{end}") for end in ("-wal", "-journal")]
    return next((log for log in logs if log.is_file() and log.stat().st_size), None)


def open_export(path: Path) -> Source:
    """Open the export at a path.

    Raises:
        ValueError: in one line, where there is none.
    """
    if path.is_dir():
        return Parquet(path)
    if not path.is_file():
        raise ValueError(f"{path}: is no regular file; {EXPECTED}" if path.exists() else f"{path}: no such file")
    try:
        return SQLite(path)
    except adbc.Error as error:
        if log := log_beside(path):
            how = "a copy of both that sqlite3 has opened once was expected"
            raise ValueError(f"{path}: SQLite cannot apply {log.name}: {first_line(error)}; {how}") from error
        raise ValueError(f"{path}: not an Nsight Systems export: {first_line(error)}; {EXPECTED}") from error
