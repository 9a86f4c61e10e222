"""Logs of JSON lines, also those of writers that were killed."""

import pytest

from jobs.record import json_lines


def test_what_is_no_whole_object_is_left_out(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"b": 2, "c\n{"d": 3}\n\n[4]\n5\n\xff{"e": 6}\n' + b"[" * 100_000 + b'\n{"f": 7}\n{"g')
    assert list(json_lines.read(path)) == [{"a": 1}, {"d": 3}, {"f": 7}]
    path.write_text("")
    assert list(json_lines.read(path)) == []


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        json_lines.read(tmp_path / "log")
