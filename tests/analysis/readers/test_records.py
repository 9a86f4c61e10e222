"""Records of real runs: those that are published, and those of tests/data."""

import json
from pathlib import Path

import msgspec
import polars as pl
import pytest

from nightsweep.analysis.readers import point_files
from nightsweep.jobs.record.point_folder import record_of
from nightsweep.jobs.record.record import Record

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "data/h200-2026-11-21"
FILES = sorted([*ROOT.glob("data/*/points/*/record.json"), *ROOT.glob("tests/data/**/record.json")])


def lost_of(raw, kept, place=""):
    """Places of what a record has and its type lost."""
    if isinstance(raw, dict):
        return [where for key in raw for where in lost_of(raw[key], kept.get(key), f"{place}.{key}")]
    if isinstance(raw, list) and isinstance(kept, list) and len(raw) == len(kept):
        return [where for one, other in zip(raw, kept, strict=True) for where in lost_of(one, other, f"{place}[]")]
    return [] if raw == kept else [place]


def test_every_record_is_read_whole():
    assert len(FILES) > 300
    for file in FILES:
        raw = json.loads(file.read_text())
        assert lost_of(raw, msgspec.to_builtins(msgspec.convert(raw, Record))) == [], file


def test_rows_of_the_published_records_are_those_of_the_published_table():
    table = pl.read_parquet(PUBLISHED / "tables/points.parquet")
    rows = {row["point_id"]: row for row in table.iter_rows(named=True)}
    files = sorted((PUBLISHED / "points").iterdir())
    assert len(files) == len(rows)
    for folder in files:
        made = point_files.point_row(record_of(folder))
        made.pop("sweep")  # a point is the same in any sweep, so its record may name another one
        assert made == {name: rows[folder.name][name] for name in made}


@pytest.mark.parametrize("text", ['{"status": "o', "[]", '{"reason": "stalled"}', '{"status": "well"}'])
def test_what_is_no_record_is_a_point_that_did_not_run(tmp_path, text):
    (tmp_path / "record.json").write_text(text)
    row = point_files.point_row(record_of(tmp_path))
    assert (row["point_id"], row["status"], row["reason"]) == (tmp_path.name, "not_run", "no_record")
    why = point_files.problem(tmp_path)
    assert why.startswith(f"{tmp_path / 'record.json'}: holds no Record: ") and "\n" not in why


def test_a_record_of_another_version_is_read_as_far_as_it_goes(tmp_path):
    new = {"schema": 9, "status": "failed", "reason": "struck_by_lightning", "message": "zap", "weather": {"wind": 9}}
    (tmp_path / "record.json").write_text(json.dumps(new | {"hosts": [{"hostname": "n1", "rack": 4}]}))
    record = record_of(tmp_path)
    assert (record.status, record.reason, record.message) == ("failed", None, "zap")
    assert record.hosts[0].hostname == "n1" and point_files.problem(tmp_path) is None
