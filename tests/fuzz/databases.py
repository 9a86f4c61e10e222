"""Random SQLite databases, whose rows both readers must give as sqlite3 does, or refuse."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from nightsweep.analysis.readers.nsys import source
from nightsweep.analysis.readers.nsys.export_fields import Field, Text

NUMBERS = (None, 0, 1, -1, 127, 128, -129, 2**15, 2**23, -(2**31), 2**47, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
TEXTS = (None, "", "t", "gemm()", "x" * 70, "x" * 300, "aé€😀", "a\0b", "12", "x" * 9000)
ODD = (0.5, 2.0, b"blob", "12", "text", 7, 1e300)
"""Values that a column of another type holds."""
FIRST_ROWS = (1, 1, -5, 2**31, 2**62, 2**63 - 5_000, -(2**63))


def columns_of(chance: Random) -> dict[str, str]:
    """Names and types."""
    count = chance.choice((1, 2, 5, 12))
    names = [chance.choice(("a", "start", "end", "select", "a b", "é")) + str(n) for n in range(count)]
    return {name: chance.choice(("INTEGER", "INTEGER", "TEXT", "INT", "BIGINT", "")) for name in names}


def value(chance: Random, kind: str, odd: float) -> Any:
    if chance.random() < odd:
        return chance.choice(ODD)
    return chance.choice(TEXTS if kind == "TEXT" else NUMBERS)


def fill(chance: Random, db: sqlite3.Connection, columns: dict[str, str], count: int, key: bool) -> None:
    """Rows of few kinds, with gaps between their ids."""
    odd = chance.choice((0, 0, 0, 0.01, 0.3))
    names = ", ".join(f'"{name}"' for name in columns)
    kinds = [[value(chance, kind, odd) for kind in columns.values()] for _ in range(chance.choice((1, 3, 50)))]
    rows = [chance.choice(kinds) for _ in range(count)]
    if key:
        first = chance.choice(FIRST_ROWS)
        ids = sorted({min(first + chance.randrange(4 * count + 1), 2**63 - 1) for _ in rows})
        sql = f"INSERT OR IGNORE INTO x (rowid, {names}) VALUES (?{', ?' * len(columns)})"
        db.executemany(sql, [(number, *row) for number, row in zip(ids, rows, strict=False)])
    else:
        db.executemany(f"INSERT OR IGNORE INTO x ({names}) VALUES ({', '.join('?' * len(columns))})", rows)


def statements(chance: Random, columns: dict[str, str]) -> Iterator[str]:
    """The table, which may have a key, computed columns, or no row ids."""
    parts = [f'"{name}" {kind}' for name, kind in columns.items()]
    first = next(iter(columns))
    extra = {
        "key": f'PRIMARY KEY ("{first}")',
        "stored": f'made AS ("{first}" || 1) STORED',
        "virtual": f'made AS ("{first}" || 1) VIRTUAL',
        "default": "later INTEGER DEFAULT 5 NOT NULL",
    }
    for name in chance.choice(((), (), (), ("key",), ("stored",), ("virtual",), ("default",), ("virtual", "key"))):
        # A computed column may stand anywhere, a key stands last.
        parts.insert(len(parts) if name == "key" else chance.randrange(len(parts) + 1), extra[name])
    keyed = any(part.startswith("PRIMARY") for part in parts)
    end = " WITHOUT ROWID" if keyed and chance.random() < 0.5 else ""
    yield f"CREATE TABLE x ({', '.join(parts)}){end}"
    if chance.random() < 0.3:
        yield f'CREATE INDEX i ON x ("{chance.choice([*columns])}")'


def make(chance: Random, folder: Path) -> tuple[Path, dict[str, str]]:
    """A database with a table x, and the types of its columns."""
    path, columns = folder / "made.sqlite", columns_of(chance)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {chance.choice((512, 1024, 4096, 65536))}")
        db.execute(f"PRAGMA encoding = '{chance.choice(('UTF-8', 'UTF-8', 'UTF-8', 'UTF-16le'))}'")
        db.execute(f"PRAGMA auto_vacuum = {chance.choice((0, 0, 1))}")
        if logged := chance.random() < 0.2:
            db.execute("PRAGMA journal_mode = WAL")
        for statement in statements(chance, columns):
            db.execute(statement)
        sql = db.execute("SELECT sql FROM sqlite_master WHERE name = 'x'").fetchone()[0]
        with_ids = "WITHOUT ROWID" not in sql
        for _ in range(chance.choice((0, 1, 1, 2))):
            db.execute("BEGIN")
            with contextlib.suppress(sqlite3.IntegrityError):  # no number for a key
                fill(chance, db, columns, chance.choice((0, 1, 30, 500)), with_ids and chance.random() < 0.5)
            db.execute("COMMIT")
            change(chance, db, columns)
        if not logged:
            return path, columns
        left = folder / "left"
        left.mkdir()
        for file in folder.glob("made.sqlite*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, left)
    return left / path.name, columns


def change(chance: Random, db: sqlite3.Connection, columns: dict[str, str]) -> None:
    """Change the table, and its columns."""
    name = chance.choice([*columns])
    try:
        match chance.randrange(8):
            case 0:
                kind, default = chance.choice((("INTEGER", "7"), ("TEXT", "'seven'"), ("INTEGER", "NULL")))
                db.execute(f"ALTER TABLE x ADD COLUMN new{len(columns)} {kind} DEFAULT {default}")
                columns[f"new{len(columns)}"] = kind
            case 1 if len(columns) > 1:
                db.execute(f'ALTER TABLE x DROP COLUMN "{name}"')
                del columns[name]
            case 2:
                db.execute(f'ALTER TABLE x RENAME COLUMN "{name}" TO renamed')
                columns["renamed"] = columns.pop(name)
            case 3:
                db.execute(f"DELETE FROM x WHERE rowid % 3 = {chance.randrange(3)}")
            case 4:
                db.execute("VACUUM")
    except sqlite3.Error:
        pass  # as of a column that is a key


def expected(path: Path, columns: dict[str, str]) -> dict[str, list[Any]]:
    """What sqlite3 gives, in the order of the row ids."""
    with closing(sqlite3.connect(path)) as db:
        names = ", ".join(f'"{name}"' for name in columns)
        try:
            rows = db.execute(f"SELECT {names} FROM x ORDER BY rowid").fetchall()
        except sqlite3.OperationalError:  # it has none
            rows = db.execute(f"SELECT {names} FROM x").fetchall()
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}


def readings(path: Path, columns: dict[str, str]) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """What each reader gives; nothing of one that refuses."""
    fields: list[Field] = [Text(name) if kind == "TEXT" else name for name, kind in columns.items()]

    def refuse(path: Path) -> None:
        raise source.UnsupportedLayout("as a trial")

    for way in ("pages", "SQLite"):
        with pytest.MonkeyPatch.context() as patch:
            if way == "SQLite":
                patch.setattr(source, "Pages", refuse)
            try:
                opened = source.open_export(path)
                frame = opened.load("x", fields)
            except (ValueError, OSError, pl.exceptions.PolarsError):
                continue
            if not opened.damage.problems:
                yield way, {name: frame[name].to_list() for name in columns}


def is_plain(columns: dict[str, str], rows: dict[str, list[Any]]) -> bool:
    """Whether each column holds what its type says."""
    kinds = {name: str if kind == "TEXT" else int for name, kind in columns.items()}
    return all(isinstance(value, kinds[name] | None) for name, values in rows.items() for value in values)


def attempt(seed: int) -> str:
    """What is wrong with the readings of a database; empty if nothing is."""
    chance = Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        path, columns = make(chance, Path(scratch))
        try:
            found = dict(readings(path, columns))
        except BaseException as error:
            return f"database {seed}: {''.join(traceback.format_exception(error)[-4:])}"
        wanted = expected(path, columns)
    if is_plain(columns, wanted):
        if len(found) < 2:
            return f"database {seed}: read by {[*found]} alone"
        wrong = [(way, name) for way, rows in found.items() for name in rows if rows[name] != wanted[name]]
        return f"database {seed}: not as sqlite3: {wrong}" if wrong else ""
    if len(found) == 2 and found["pages"] != found["SQLite"]:
        return f"database {seed}: the readers differ"
    return ""
