"""The archive of a measured point: nothing that tables are made of is lost, read by whom and killed when it may be."""

import errno
import fcntl
import json
import os
import shutil
import zipfile

import pytest

from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.derive import derive, make
from nightsweep.jobs.record.json_files import FormatError
from nightsweep.jobs.record.raw_files import ARCHIVE, MEASURED, clear, measured_record, pack, unpacked
from tests.analysis.ingest.test_ingest import make_point

STEPS = "timed/steps-r0.jsonl"


@pytest.fixture
def point(tmp_path):
    """A measured point with a trace."""
    folder = tmp_path / "results/s/points/aaa"
    make_point(folder, point_id="aaa")
    (folder / MEASURED).write_bytes((folder / "record.json").read_bytes())
    (folder / "attempts.jsonl").write_text("{}\n")
    (folder / "timed/rank0.heartbeat").write_text("1")
    return folder


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "heartbeat" not in path.name
    }


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_packed_is_read_as_it_was(point):
    before = contents(point)
    pack(point)
    left = names(point)
    assert left == ["attempts.jsonl", ARCHIVE, "record.json", "traced/trace-r0.sqlite", "traced/trace-r1.sqlite"]
    with unpacked(point) as folder:
        assert folder.name == point.name and contents(folder) == before
    assert not folder.exists() and names(point) == left
    assert measured_record(point).status == "ok"
    pack(point)
    assert names(point) == left


def test_tables_and_diagnoses_from_the_archive(point, capsys):
    def out(*words):
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    results, before = point.parents[1], out("diagnose", point)
    out("export", "--to", "perfetto", point, "--out", results / "loose.json")
    derive(results, "points-0000", ["aaa"], 1)
    assert not (point / STEPS).exists()
    first = {path.name: path.read_bytes() for path in (results / "derived/points-0000").glob("*.parquet")}
    shutil.rmtree(results / "derived")
    derive(results, "points-0000", ["aaa"], 1)
    again = {path.name: path.read_bytes() for path in (results / "derived/points-0000").glob("*.parquet")}
    assert {n for n in first if first[n] != again[n]} <= {"made.parquet"}  # which tells when they were made
    capsys.readouterr()
    assert out("diagnose", point) == before
    out("export", "--to", "perfetto", point, "--out", results / "packed.json")
    assert (results / "packed.json").read_bytes() == (results / "loose.json").read_bytes()


def test_what_is_not_packed(point):
    before = names(point)
    with (point / "attempts.jsonl").open("a") as lock:  # it is measured anew just now
        fcntl.flock(lock, fcntl.LOCK_EX)
        pack(point)
    record = json.loads((point / MEASURED).read_text())
    failed = record | {"looks": record.get("looks", {}) | {"traced": {"status": "failed"}}}
    (point / MEASURED).write_text(json.dumps(failed))
    pack(point)
    (point / MEASURED).unlink()
    pack(point)
    assert names(point) == [name for name in before if name != MEASURED]


@pytest.mark.parametrize("kept", [1, 3])
def test_a_kill_half_way_loses_nothing(point, monkeypatch, kept):
    """`kept`: files that are removed before the kill."""
    before, real, removed = contents(point), os.unlink, []

    def unlink(path, *args, **options):
        if len(removed) == kept:
            raise KeyboardInterrupt
        removed.append(path)
        real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            pack(point)
    assert (point / MEASURED).exists()
    with unpacked(point) as folder:
        assert contents(folder) == before
    pack(point)
    with unpacked(point) as folder:
        assert contents(folder) == before


def test_a_broken_archive_is_told_in_a_line(point, capsys):
    pack(point)
    (point / ARCHIVE).write_bytes((point / ARCHIVE).read_bytes()[:200])
    with pytest.raises(FormatError, match=r"raw\.zip: holds no raw files: File is not a zip file"), unpacked(point):
        pass
    assert measured_record(point) is None
    assert main(["diagnose", str(point)]) == 2
    assert "raw.zip: holds no raw files" in capsys.readouterr().err


def test_a_full_disk_says_nothing_of_the_archive(point, monkeypatch, tmp_path):
    """The point is analysed when there is room again: no row says that it holds no raw files."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    pack(point)
    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(OSError, match="No space left"):
        make(point, tmp_path / "scratch", 1)


def test_a_new_attempt_begins_without_the_archive(point):
    pack(point)
    clear(point)
    assert not (point / ARCHIVE).exists()


def test_an_archive_says_where_its_files_were(point):
    pack(point)
    with zipfile.ZipFile(point / ARCHIVE) as packed:
        assert STEPS in packed.namelist() and packed.namelist()[-1] == MEASURED
