"""Copies of traces for the web: events, devices and symbols, as `analysis/tools/publish/allowed.py` lists them."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from nightsweep.analysis.readers.kineto.event_columns import ALLOCATOR, Args
from nightsweep.analysis.readers.nsys.export_fields import SOURCES
from nightsweep.analysis.tools.publish import allowed
from nightsweep.analysis.tools.publish.allowed import Kind
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer

TABLES = {table for table, _ in SOURCES.values()} | {table for table, _ in allowed.EXPORT_TEXTS} | {
    "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_CUDA_DEVICE",
}  # fmt: skip
"""Tables of an export that are copied, beside StringIds: those that the reader reads."""
TYPES = ("INTEGER", "INT", "REAL", "TEXT", "BLOB", "NUMERIC")
KNOWN_KEYS = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp"}
KNOWN_ARGS = {field.encode_name for field in msgspec.structs.fields(Args)} | set(ALLOCATOR)


def copy_nsys(source: Path, target: Path, anonymizer: Anonymizer) -> None:
    """Write an export anew: only what is allowed ever reaches the file. sqlite3.DatabaseError where it is none."""
    with closing(sqlite3.connect(target.absolute().as_uri(), uri=True, isolation_level=None)) as db:
        for kind in Kind:
            db.create_function(kind.name, 1, _cell(kind, anonymizer), deterministic=True)
        for name, value in (("journal_mode", "OFF"), ("synchronous", "OFF"), ("temp_store", "MEMORY")):
            db.execute(f"PRAGMA {name} = {value}")
        db.execute("ATTACH ? AS source", (f"{source.absolute().as_uri()}?mode=ro",))
        columns = {
            table: [(row[1], row[2]) for row in db.execute(f'PRAGMA source.table_info("{table}")')]
            for (table,) in db.execute("SELECT name FROM source.sqlite_master WHERE type = 'table'").fetchall()
            if table in TABLES
        }
        db.execute("BEGIN")
        _copy_strings(db, columns)
        for table, fields in columns.items():
            _copy_table(db, table, fields)
        db.execute("COMMIT")


def _copy_table(db: sqlite3.Connection, table: str, fields: list[tuple[str, str]]) -> None:
    # SQLite takes any text for a type.
    columns = ", ".join(f"{_quote(name)} {kind if kind in TYPES else ''}" for name, kind in fields)
    db.execute(f'CREATE TABLE "{table}" ({columns})')
    cells = ", ".join(_cell_of(table, name) for name, _ in fields)
    rows = allowed.EXPORT_ROWS.get(table, "true")
    db.execute(f'INSERT INTO main."{table}" SELECT {cells} FROM source."{table}" WHERE {rows}')


def _cell_of(table: str, name: str) -> str:
    """A number as it is, whatever the column's declared type says; a text by its kind."""
    column = _quote(name)
    if name == "binaryData":  # NCCL's messages, which are numbers
        named = "coalesce(text, (SELECT value FROM source.StringIds WHERE id = textId))"
        return f"CASE WHEN {named} LIKE 'nccl%' THEN {column} END"
    kind = allowed.EXPORT_TEXTS.get((table, name), Kind.OUT)
    text = f"{kind.name}(CAST({column} AS BLOB))"
    return f"CASE typeof({column}) WHEN 'text' THEN {text} WHEN 'blob' THEN NULL ELSE {column} END"


def _copy_strings(db: sqlite3.Connection, columns: dict[str, list[tuple[str, str]]]) -> None:
    """The strings that copied tables refer to: symbols as such, and others word by word."""
    db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    for kind, names in ((Kind.SYMBOL, allowed.SYMBOL_IDS), (Kind.WORDS, ("textId",))):
        for table, fields in columns.items():
            for name in sorted({name for name, _ in fields} & set(names)):
                used = f'SELECT DISTINCT "{name}" FROM source."{table}"'
                db.execute(
                    f"INSERT OR IGNORE INTO main.StringIds SELECT id, {kind.name}(CAST(value AS BLOB)) "
                    f"FROM source.StringIds WHERE id IN ({used})"
                )


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cell(kind: Kind, anonymizer: Anonymizer) -> Callable[[bytes], str | None]:
    # As bytes: not all that programs put into a trace is UTF-8.
    return lambda value: anonymizer.text(kind, value.decode(errors="replace"))


def copy_kineto(source: Path, target: Path, anonymizer: Anonymizer) -> None:
    """Write a Kineto trace anew, with the keys that are read. ValueError where it is none."""
    with gzip.open(source, "rt") as stream:
        trace = json.load(stream)
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError("not a Kineto trace")
    top = {key: trace[key] for key in allowed.KINETO_TOP if isinstance(trace.get(key), int | float)}
    events = [_event(event, anonymizer) for event in trace["traceEvents"] if isinstance(event, dict)]
    content = top | {"displayTimeUnit": "ms", "traceEvents": events}
    target.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), 3, mtime=0))


def _event(event: dict[str, Any], anonymizer: Anonymizer) -> dict[str, Any]:
    kinds = {"ph": Kind.FACT, "cat": Kind.WORDS, "name": Kind.WORDS}
    kinds |= {f"args.{name}": kind for name, kind in allowed.KINETO_ARGS.items()}
    if event.get("cat") in allowed.SYMBOL_CATEGORIES:
        kinds["name"] = Kind.SYMBOL
    known: dict[str, Any] = {key: value for key, value in event.items() if key in KNOWN_KEYS}
    if isinstance(event.get("args"), dict):
        is_counter = event.get("ph") == "C"  # whose args are its values, by names of their own
        known["args"] = {key: value for key, value in event["args"].items() if key in KNOWN_ARGS or is_counter}
    return anonymizer.tree(known, kinds)  # type: ignore[no-any-return]
