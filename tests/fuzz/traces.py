"""Traces with one fault or several, from a seed: what a crash, a bad disk or a foe leaves."""

from __future__ import annotations

import copy
import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

DATA = Path(__file__).parents[1] / "data"
EXPORTS = ("h200-ranks/ddp-r0", "h200-ranks/zero3-r1", "h200-ddp-r0")
PROFILES = ("kineto-cpu-r0", "kineto-h200-ddp-r0")
EXTREMES = (
    None, 0, -1, 1, 2**31 - 1, 2**31, 2**32, -(2**31) - 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 0.5, 1e300, "",
    "NULL", "12", "x" * 5000, "a\0b", "é€😀", b"\xff\xfe",
)  # fmt: skip
ODD_JSON = (
    None, True, "", "x", "NaN", "1e400", -1, 0, 2**31, 2**63, 2**64, 10**40, 0.1, 1e308, float("nan"), float("inf"), [],
    {}, [1, 2], [None] * 3, {"a": {}},
)  # fmt: skip


def make(seed: int, folder: Path) -> Path:
    """A faulty trace in this folder, the same for the same seed."""
    chance = Random(seed)
    return _export(chance, folder) if chance.random() < 0.6 else _profile(chance, folder)


def _export(chance: Random, folder: Path) -> Path:
    path = folder / "trace-r0.sqlite"
    path.write_bytes(gzip.decompress((DATA / f"{chance.choice(EXPORTS)}.sqlite.gz").read_bytes()))
    for fault in chance.choices((_rewrite, _bytes, _pages, _cut), (5, 3, 2, 1), k=chance.choice((1, 1, 2))):
        fault(chance, path)
    return path


def _rewrite(chance: Random, path: Path) -> None:
    """Rows, columns and tables that SQLite itself changes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for _ in range(chance.choice((1, 1, 3, 10))):
            try:
                _rewrite_once(chance, db)
            except sqlite3.Error:
                return  # as what an earlier fault has broken


def _rewrite_once(chance: Random, db: sqlite3.Connection) -> None:
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    if not tables:
        return
    weights = [9 if name.startswith(("CUPTI", "NVTX", "StringIds", "TARGET_INFO_G")) else 1 for name in tables]
    table, other = chance.choices(tables, weights, k=2)
    columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
    column, second = chance.choice(columns), chance.choice(columns)
    some = f"rowid % {chance.choice((1, 2, 50))} = 0"
    match chance.randrange(12):
        case 0 | 1 | 2:
            db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', (chance.choice(EXTREMES),))
        case 3:
            db.execute(f'UPDATE "{table}" SET "{column}" = "{second}" WHERE {some}')
        case 4 if {"start", "end"} <= {*columns}:  # a negative duration
            db.execute(f'UPDATE "{table}" SET start = "end", "end" = start WHERE {some}')
        case 5 if "start" in columns:  # all overlap
            db.execute(f'UPDATE "{table}" SET start = (SELECT min(start) FROM "{table}") WHERE {some}')
        case 6:
            db.execute(f'ALTER TABLE "{table}" RENAME TO spare')
            db.execute(f'ALTER TABLE "{other}" RENAME TO "{table}"')
            db.execute(f'ALTER TABLE spare RENAME TO "{other}"')
        case 7:
            db.execute(f'DROP TABLE "{table}"')
        case 8:
            db.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        case 9:
            db.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}2"')
        case 10:
            db.execute(f'DELETE FROM "{table}" WHERE {some}')
        case _:
            db.execute(f'ALTER TABLE "{table}" RENAME TO spare')
            db.execute(f'CREATE VIEW "{table}" AS SELECT * FROM spare')


def _bytes(chance: Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 10, 300)) if content else 0):
        page = chance.randrange(max(1, len(content) // 4096)) * 4096
        at = chance.choice((chance.randrange(len(content)), page + chance.randrange(40), chance.randrange(100)))
        if at < len(content):
            content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _pages(chance: Random, path: Path) -> None:
    """Pages in each other's place, and children that are their own parents."""
    content = bytearray(path.read_bytes())
    count = len(content) // 4096
    for _ in range(chance.choice((1, 3))):
        one, two = (chance.randrange(1, max(2, count)) * 4096 for _ in range(2))
        if chance.random() < 0.5:
            content[one : one + 4096], content[two : two + 4096] = content[two : two + 4096], content[one : one + 4096]
        elif inner := [at for at in range(4096, len(content), 4096) if content[at] == 5]:
            at = chance.choice(inner)
            content[at + 8 : at + 12] = (at // 4096 + 1).to_bytes(4, "big")
    path.write_bytes(content)


def _cut(chance: Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.choice((0, 10, 100, 5000, chance.randrange(len(content) + 1)))])


def _profile(chance: Random, folder: Path) -> Path:
    document = json.loads(gzip.decompress((DATA / f"{chance.choice(PROFILES)}.json.gz").read_bytes()))
    for _ in range(chance.choice((0, 1, 1, 3, 30))):
        _change_event(chance, document)
    text = json.dumps(document).encode()
    for fault in chance.choices((_keep, _break_text, _nest, _cut_text), (4, 3, 1, 1), k=1):
        text = fault(chance, text)
    path = folder / "trace-r0.json"
    if chance.random() < 0.5:
        path = folder / "trace-r0.json.gz"
        text = gzip.compress(text, 1)
        if chance.random() < 0.5:
            text = _break_text(chance, text)
    path.write_bytes(text)
    return path


def _change_event(chance: Random, document: dict[str, Any]) -> None:
    events = document["traceEvents"]
    if chance.random() < 0.2:
        document[chance.choice([*document, "baseTimeNanoseconds"])] = copy.deepcopy(chance.choice(ODD_JSON))
        document["traceEvents"] = events
        return
    if not events:
        return
    some = [event for event in events if chance.random() < 0.3] if chance.random() < 0.4 else [chance.choice(events)]
    key, value = (
        chance.choice(("ts", "dur", "name", "cat", "ph", "pid", "tid", "args", "args.")),
        copy.deepcopy(chance.choice(ODD_JSON)),
    )
    for event in filter(lambda event: isinstance(event, dict), some):
        if key == "args." and isinstance(event.get("args"), dict) and event["args"]:
            event["args"][chance.choice([*event["args"]])] = value
        elif value == "x":
            event.pop(key, None)
        elif key != "args.":
            event[key] = value
    if chance.random() < 0.1:
        events.insert(chance.randrange(len(events)), copy.deepcopy(chance.choice(ODD_JSON)))
    if chance.random() < 0.1:
        chance.shuffle(events)


def _keep(chance: Random, text: bytes) -> bytes:
    return text


def _break_text(chance: Random, text: bytes) -> bytes:
    broken = bytearray(text)
    for _ in range(chance.choice((1, 5, 100))):
        broken[chance.randrange(len(broken))] = chance.choice((*b'{}[],:"\\0-e \n\x00', chance.randrange(256)))
    return bytes(broken)


def _nest(chance: Random, text: bytes) -> bytes:
    """Deep nesting, or brackets too many or too few, at a place between events."""
    at = text.find(b"}, {", chance.randrange(len(text)))
    deep = chance.choice((b"[" * 100_000, b'{"a":' * 100_000, b"}", b"]", b"]}", b"{", b'"', b", , ,"))
    return text[: at + 2] + deep + text[at + 2 :]


def _cut_text(chance: Random, text: bytes) -> bytes:
    return text[: chance.randrange(len(text))]
