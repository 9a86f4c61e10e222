"""JSON files of other versions, and those of writers that were killed."""

import math
import subprocess
import sys

import pytest
from msgspec import Struct

from nightsweep.jobs.record.json_files import (
    FormatError,
    convert,
    json_line,
    load_json,
    parse_json,
    parse_lines,
    read_json,
    read_lines,
    write_json,
)


class Inner(Struct, frozen=True):
    number: int = 7


class Outer(Struct, frozen=True, kw_only=True):
    name: str
    share: float | None = None
    inner: Inner = Inner()


def test_what_is_no_whole_object_is_left_out(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"b": 2, "c\n{"d": 3}\n\n[4]\n5\n\xff{"e": 6}\n' + b"[" * 100_000 + b'\n{"f": 7}\n{"g')
    assert read_lines(path, dict) == [{"a": 1}, {"d": 3}, {"f": 7}]
    path.write_text("")
    assert read_lines(path, dict) == read_lines(tmp_path / "none", dict) == []


def test_a_line_without_what_it_must_have_is_left_out():
    text = '{"name": "a"}\n{"share": 1}\n{"name": "b", "more": 1, "inner": {"more": 2}}\n'
    assert list(parse_lines(text, Outer)) == [Outer(name="a"), Outer(name="b")]


def test_a_value_that_cannot_be_is_the_default_and_costs_nothing_else():
    assert convert({"name": "a", "share": "x", "inner": {"number": 1}}, Outer) == Outer(name="a", inner=Inner(1))
    assert convert({"name": "a", "share": 2, "inner": [1]}, Outer) == Outer(name="a", share=2.0)
    with pytest.raises(ValueError, match="Expected `str`, got `int`"):
        convert({"name": 3, "share": 1.0}, Outer)


def test_numbers_that_are_none_stay_so():
    assert math.isnan(parse_json(json_line(Outer(name="a", share=math.nan)), Outer).share)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, Outer(name="a", share=0.5))
    assert load_json(path, Outer) == read_json(path, Outer) == Outer(name="a", share=0.5)
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ('{"name": "a"', "Expecting ',' delimiter: line 1 column 13 (char 12)"),
        ("[1]", "Expected `object`, got `array`"),
        ("{}", "Object missing required field `name`"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_the_file(tmp_path, content, why):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FormatError) as caught:
        load_json(path, Outer)
    assert str(caught.value) == f"{path}: holds no Outer: {why}"
    assert read_json(path, Outer) is None


FIRST_USE = """
import sys, threading
import msgspec
from nightsweep.jobs.record.json_files import convert

sys.setswitchinterval(1e-6)
for _ in range(100):
    inner = [msgspec.defstruct("Inner", [("a", int, 0)]) for _ in range(10)]
    outer = msgspec.defstruct("Outer", [(f"f{i}", kind, None) for i, kind in enumerate(inner)])
    ready = threading.Barrier(2)
    found = []

    def use():
        ready.wait()
        found.append(convert({f"f{i}": {"a": 1} for i in range(10)}, outer))

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] and found[0].f9.a == 1
"""


def test_two_threads_may_read_the_first_files_of_a_kind():
    """As Snakemake's and that of its log do when the first point ends; msgspec alone crashes."""
    assert subprocess.run([sys.executable, "-c", FIRST_USE], timeout=100).returncode == 0
