"""A large export out of a small real one: copies laid end to end in time. Synthetic: say so where it is quoted.

Times are shifted by the trace's span and correlation ids by their range, so that joins stay exact.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

BATCH_ROWS = 500_000
_KEPT = ("TARGET_", "META_", "ENUM_", "NVTX_PAYLOAD")


def tile(source: Path, target: Path, copies: int) -> dict[str, int]:
    """Write the tiled export; rows of each of its event tables."""
    shutil.copyfile(source, target)
    with closing(sqlite3.connect(target)) as db:
        db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: [row[1] for row in db.execute(f'PRAGMA table_info("{name}")')] for name in names}
        timed = [name for name in names if "start" in columns[name] and not name.startswith(_KEPT)]
        shift = _shifts(db, timed, columns)
        for name in timed:
            listed = ", ".join(f'"{c}"' for c in columns[name])
            moved = ", ".join(f'"{c}" + k.n * {shift[c]}' if c in shift else f'"{c}"' for c in columns[name])
            numbers = f"WITH RECURSIVE k(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM k WHERE n < {copies - 1})"
            db.execute(f'CREATE TEMP TABLE base AS SELECT * FROM "{name}"')
            if copies > 1:
                db.execute(f'{numbers} INSERT INTO "{name}" ({listed}) SELECT {moved} FROM k, base')
            db.execute("DROP TABLE base")
        db.commit()
        return {name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in timed}


def parquet(export: Path, folder: Path) -> None:
    """The export as a folder of one Parquet file a table, as nsys writes it too."""
    folder.mkdir()
    with closing(sqlite3.connect(export)) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = db.execute(f'SELECT * FROM "{name}"')
            names = [column[0] for column in cursor.description]
            declared = {row[1]: row[2].upper() for row in db.execute(f'PRAGMA table_info("{name}")')}
            kinds = {"INTEGER": pl.Int64, "REAL": pl.Float64, "TEXT": pl.String, "BLOB": pl.Binary}
            schema = {column: kinds.get(declared[column], pl.Int64) for column in names}
            schema |= {column: pl.Binary for column in names if column == "binaryData"}  # declared as TEXT
            writer = None
            while (rows := cursor.fetchmany(BATCH_ROWS)) or writer is None:
                table = pl.DataFrame(rows, schema, orient="row", strict=False).to_arrow()
                writer = writer or pq.ParquetWriter(folder / f"{name}.parquet", table.schema)
                writer.write_table(table)
            writer.close()


def _shifts(db: sqlite3.Connection, timed: list[str], columns: dict[str, list[str]]) -> dict[str, int]:
    def bound(function: str, column: str) -> list[int]:
        found = [
            db.execute(f'SELECT {function}("{column}") FROM "{t}"').fetchone()[0] for t in timed if column in columns[t]
        ]
        return [value for value in found if value is not None]

    # A domain is made before the capture, seconds before the first range.
    calls = db.execute('SELECT min("start") FROM "CUPTI_ACTIVITY_KIND_RUNTIME"').fetchone()
    ranges = db.execute('SELECT min("start") FROM "NVTX_EVENTS" WHERE "end" IS NOT NULL').fetchone()
    first = min(*calls, *(start for start in ranges if start is not None))
    span = max(bound("max", "start") + bound("max", "end")) - first + 1000
    return {"start": span, "end": span, "correlationId": max(bound("max", "correlationId"), default=0) + 1}
