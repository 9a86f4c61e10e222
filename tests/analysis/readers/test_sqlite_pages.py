"""Columns from the pages of an SQLite file: those that SQLite returns, or an error, whatever the file holds."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.analysis.readers.nsys import source
from nightsweep.analysis.readers.nsys.sqlite_pages import Pages, UnsupportedLayout
from tests.analysis.readers.test_readers import refuse_pages
from tests.fakes.ranks import unpack

EDGES = sorted({sign * 2**bits + by for bits in (0, 7, 8, 15, 23, 31, 47, 62) for by in (-1, 0, 1) for sign in (1, -1)})
NUMBERS = [None, 0, 1, *EDGES, 2**63 - 1, -(2**63)]
COLUMNS = "a INTEGER, t TEXT, b INTEGER, u TEXT, c INTEGER, d INTEGER, e INTEGER, f INTEGER, g INTEGER, h INTEGER"


def make(path, statements, rows=(), size=4096):
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size = {size}")
        for statement in [statements] if isinstance(statements, str) else statements:
            db.execute(statement)
        for row in rows:
            db.execute(f"INSERT INTO x VALUES ({', '.join('?' * len(row))})", row)
        db.commit()
    return path


def query_columns(path, *columns):
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(f"SELECT {', '.join(columns)} FROM x ORDER BY rowid").fetchall()
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns]


def root(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'x'").fetchone()[0]


def read_columns(path, wanted, step=7, at=None):
    """Columns, read some pages at a time."""
    pages = Pages(path)
    leaves = pages.leaves(at or root(path))
    parts = [pages.columns(leaves[first : first + step], wanted) for first in range(0, len(leaves), step)]
    return [[value for part in parts for value in part[place].to_list()] for place in sorted(wanted)]


def text(chance, most):
    """No text, or one of ASCII or not, most of them short."""
    length = chance.choice([0, 5, 12, 13, 57, 58, 59, most])
    return chance.choice([None, "x" * length, "".join(chance.choices("aé€😀z", k=length // 4))])


def rows(chance, count, most):
    """Rows of which many are alike, as those of an export."""
    made = []
    for number in range(count):
        few = [chance.choice(NUMBERS) for _ in range(6)] if chance.random() < 0.5 else [None, 0, 1, 2, 3, 2**40]
        made.append((number * 1000, text(chance, most), chance.choice(NUMBERS), text(chance, most), *few))
    return made


@pytest.mark.parametrize("size", [512, 1024, 4096, 65536])
@pytest.mark.parametrize("count", [0, 1, 40, 4000])
def test_values_are_those_that_sqlite_gives(tmp_path, size, count):
    path = make(tmp_path / "x", f"CREATE TABLE x ({COLUMNS})", rows(random.Random(count), count, 110), size)
    wanted = {0: False, 1: True, 2: False, 3: True, 5: False, 9: False}
    assert read_columns(path, wanted) == query_columns(path, "a", "t", "b", "u", "d", "h")
    assert read_columns(path, {2: False}, 1000) == query_columns(path, "b")


@pytest.mark.parametrize("number", [1, 2**20, 2**34, 2**62])
def test_rows_have_numbers_of_any_length_with_gaps(tmp_path, number):
    path = make(tmp_path / "x", "CREATE TABLE x (a INTEGER, t TEXT)", size=512)
    with closing(sqlite3.connect(path)) as db:
        for row in random.Random(3).sample(range(1000), 1000):
            db.execute("INSERT INTO x (rowid, a, t) VALUES (?, ?, ?)", (number + row * 3, row, f"row {row}"))
        db.execute("DELETE FROM x WHERE a % 5 = 0 OR a BETWEEN 300 AND 500")
        db.commit()
    assert read_columns(path, {0: False, 1: True}) == query_columns(path, "a", "t")


def test_a_value_beyond_what_is_wanted_may_go_on_on_other_pages(tmp_path):
    chance = random.Random(5)
    made = [(number, "name", chance.choice(["", "x" * 470, "y" * 5000])) for number in range(500)]
    path = make(tmp_path / "x", "CREATE TABLE x (a INTEGER, t TEXT, u TEXT)", made, 512)
    assert read_columns(path, {0: False, 1: True}) == query_columns(path, "a", "t")
    with pytest.raises(UnsupportedLayout, match="beyond its page"):
        read_columns(path, {2: True})


ODD = {
    "a real number": (["CREATE TABLE x (a)"], [(1,), (1.5,)], {0: False}),
    "text for a number": (["CREATE TABLE x (a)"], [(1,), ("1",)], {0: False}),
    "a blob for a number": (["CREATE TABLE x (a)"], [(b"1",)], {0: False}),
    "a number for text": (["CREATE TABLE x (a)"], [("a",), (7,)], {0: True}),
    "a blob for text": (["CREATE TABLE x (a)"], [("a",), (b"a",)], {0: True}),
    "no row ids": (["CREATE TABLE x (a PRIMARY KEY) WITHOUT ROWID"], [(1,)], {0: False}),
    "another encoding": (["PRAGMA encoding = 'UTF-16'", "CREATE TABLE x (a TEXT)"], [("a",)], {0: True}),
    "not UTF-8": (
        ["CREATE TABLE x (a TEXT)", "INSERT INTO x VALUES (CAST(x'61ff6162636465666768696a6b6c6d' AS TEXT))"],
        [],
        {0: True},
    ),
    "a column that came later": (
        ["CREATE TABLE x (a)", "INSERT INTO x VALUES (1)", "ALTER TABLE x ADD COLUMN b DEFAULT 7"],
        [(1, 2)],
        {1: False},
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_exports_do_not_have_is_refused(tmp_path, odd):
    statements, made, wanted = ODD[odd]
    path = make(tmp_path / "x", statements, made)
    with pytest.raises(UnsupportedLayout):
        read_columns(path, wanted)


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(84), b"x" * 5000])
def test_a_file_that_is_no_database_is_refused(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UnsupportedLayout):
        Pages(path)


@pytest.mark.parametrize("size", [512, 4096])
def test_a_damaged_file_gives_columns_or_is_refused(tmp_path, size):
    chance = random.Random(size)
    whole = make(tmp_path / "whole", f"CREATE TABLE x ({COLUMNS})", rows(chance, 600, 60), size)
    first, content, broken = root(whole), whole.read_bytes(), tmp_path / "broken"
    wanted, refused = {0: False, 1: True, 3: True, 9: False}, 0
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 5, 50])):
            # Most of what leads on stands at the beginning of a page.
            page = chance.randrange(len(content) // size) * size
            damaged[page + chance.choice([chance.randrange(size), chance.randrange(40)])] = chance.randrange(256)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        broken.write_bytes(damaged)
        try:
            columns = read_columns(broken, wanted, at=first)
        except UnsupportedLayout as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert len({len(column) for column in columns}) == 1
    assert 100 < refused < 400  # else the damage is of no use


def test_pages_that_lead_to_themselves_end(tmp_path):
    path = make(tmp_path / "x", "CREATE TABLE x (a TEXT)", [("x" * 300,) for _ in range(500)], 512)
    content, at = bytearray(path.read_bytes()), root(path)
    begin = (at - 1) * 512
    content[begin + 8 : begin + 12] = at.to_bytes(4, "big")  # its last child
    count = int.from_bytes(content[begin + 3 : begin + 5], "big")
    for number in range(count):
        cell = int.from_bytes(content[begin + 12 + 2 * number :][:2], "big")
        content[begin + cell : begin + cell + 4] = at.to_bytes(4, "big")
    assert count > 1
    path.write_bytes(content)
    with pytest.raises(UnsupportedLayout, match="lead nowhere"):
        Pages(Path(path)).leaves(at)


@pytest.mark.parametrize("name", ["ddp-r0", "zero3-r1"])
def test_events_of_an_export_are_read_from_its_pages_and_are_those_of_sqlite(name, tmp_path, monkeypatch):
    path, asked = unpack(name, tmp_path), []
    ask = source.SQLite._query_chunks
    monkeypatch.setattr(
        source.SQLite, "_query_chunks", lambda self, table, *a: asked.append(table) or ask(self, table, *a)
    )
    by_pages = nsys.read(path)
    assert asked == ["StringIds"]  # which has a key
    refuse_pages(monkeypatch)
    other = nsys.read(path)
    assert {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"} < set(asked)
    for kind, frame in by_pages.events.items():
        assert_frame_equal(frame, other.events[kind])
    assert_frame_equal(by_pages.devices, other.devices)
    assert by_pages.problems == other.problems == () and by_pages.events["kernels"].height > 100
