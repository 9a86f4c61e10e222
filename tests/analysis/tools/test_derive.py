"""Chunks: what is made of many points in one job, of which points again, and what a kill or a broken point costs."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import polars as pl
import pytest

from nightsweep.analysis.diagnosis.point_diagnosis import diagnose_point
from nightsweep.analysis.ingest import derived, point_tables
from nightsweep.analysis.ingest.derived import OF_POINT, Chunk, Derived
from nightsweep.analysis.metrics.steps import timeline
from nightsweep.analysis.tools import collect
from nightsweep.analysis.tools.derive import derive, make
from tests.analysis.ingest.test_ingest import dump, make_point, record

IDS = ["aaa", "bbb", "ccc"]
PATCH = """
import os, sys, time
from pathlib import Path
if "multiprocessing" in " ".join(sys.orig_argv) or "derive.main" in " ".join(sys.orig_argv):
    from nightsweep.analysis.ingest import derived, point_tables
    from nightsweep.analysis.tools import derive
    derive.SAVE_S, real = 0, point_tables.ingest
    def ingest(point, out, processes):
        if (point / "kills").exists():
            os._exit(9)
        while (point / "hangs").exists():
            time.sleep(0.1)
        return real(point, out, processes)
    point_tables.ingest = ingest
"""


@pytest.fixture
def results(tmp_path):
    """Three measured points, the first with a trace, the last with a record alone."""
    folder = tmp_path / "results/s"
    make_point(folder / "points/aaa", point_id="aaa")
    make_point(folder / "points/bbb", point_id="bbb", status="failed", reason="rank_exception")
    dump(folder / "points/ccc/record.json", record(point_id="ccc"))
    return folder


def made_at(results):
    """When each point's tables were made."""
    return {point: row["made_ns"] for point, row in Derived(results / "derived").made.items()}


def later(file):
    """As if it were written again."""
    at = file.stat().st_mtime_ns + 10**9
    os.utime(file, ns=(at, at))


def command(results, *ids, processes=1):
    words = [
        "-c",
        "from nightsweep.analysis.tools import derive; derive.main()",
        results,
        "--chunk",
        "points-0000",
        "--points",
        *ids,
    ]
    return [sys.executable, *map(str, [*words, "--processes", processes])]


def patched(tmp_path):
    """The environment of a process in which points kill or stop their analysis, and what is done is saved at once."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(PATCH)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])}


def test_a_chunk_holds_what_each_point_alone_gives(results, tmp_path):
    derive(results, "points-0000", IDS[:2], 2)
    derive(results, "points-0001", IDS[2:], 1)
    derived = Derived(results / "derived")
    alone = {i: make(results / "points" / i, tmp_path / i, 1).tables for i in IDS}
    for name in OF_POINT:
        wanted = point_tables.as_table(name, pl.concat([alone[i][name] for i in IDS]))
        point_tables.write({"wanted": wanted, "found": derived.table(name, IDS[::-1])}, tmp_path)
        assert (tmp_path / "found.parquet").read_bytes() == (tmp_path / "wanted.parquet").read_bytes(), name
    for i in IDS:
        point_tables.write(alone[i], tmp_path / i)
        assert derived.diagnosis(i) == json.loads(
            json.dumps(diagnose_point(results / "points" / i, tmp_path / i).as_json())
        )
    with derived.folder_of("aaa") as folder:
        assert json.dumps(diagnose_point(results / "points/aaa", folder).as_json()) == json.dumps(
            derived.diagnosis("aaa")
        )
        traces = {path.name: path.read_bytes() for path in (folder / "trace").iterdir()}
    assert traces == {path.name: path.read_bytes() for path in (tmp_path / "aaa/trace").iterdir()}
    assert json.loads((results / "derived/points-0000.json").read_text()) == {"points": 2, "problems": {}}
    assert not list((results / "derived").glob("*/.*"))


def test_a_table_in_parts_is_the_same_table(results, tmp_path, monkeypatch):
    derive(results, "points-0000", IDS[:2], 1)
    derive(results, "points-0001", IDS[2:], 1)
    own = Derived(results / "derived")
    for name in OF_POINT:
        whole = own.table(name, IDS[::-1])
        assert [part.equals(whole) for part in own.parts(name, IDS)] == [True]
        with monkeypatch.context() as patch:
            patch.setattr(derived, "PART_ROWS", 1)
            parts = list(own.parts(name, IDS[::-1]))
            collect.write(own.parts(name, IDS), tmp_path / "parts.parquet")
        assert pl.concat(parts).equals(whole) and len(parts) == min(3, max(1, whole.height))
        assert pl.read_parquet(tmp_path / "parts.parquet").equals(whole)
        assert pl.read_parquet_schema(tmp_path / "parts.parquet") == whole.schema


def test_only_points_with_another_record_are_made_again(results):
    derive(results, "points-0000", IDS, 1)
    before = made_at(results)
    later(results / "points/bbb/record.json")
    derive(results, "points-0000", IDS, 1)
    after = made_at(results)
    assert after["bbb"] > before.pop("bbb") and before.items() <= after.items()
    assert Derived(results / "derived").table("points", IDS)["point_id"].to_list() == IDS


def test_a_record_that_is_written_while_a_chunk_is_made_is_newer_than_it(results, monkeypatch):
    """Nobody may have waited for the job, whose driver was killed."""
    records = [results / f"points/{point}/record.json" for point in IDS]

    def measured_again(points, ids, scratch, *_):
        for point in ids:
            yield make(points / point, scratch / point, 1)
            os.utime(points / point / "record.json")

    monkeypatch.setattr("nightsweep.analysis.tools.derive.each", measured_again)
    derive(results, "points-0000", IDS, 1)
    done = results / "derived/points-0000.json"
    assert all(record.stat().st_mtime_ns > done.stat().st_mtime_ns for record in records)


def test_an_edited_sweep_keeps_what_stays_in_a_chunk_and_the_youngest_counts(results):
    derive(results, "points-0000", IDS, 1)
    before = made_at(results)
    derive(results, "points-0000", ["bbb", "ccc"], 1)
    assert made_at(results).keys() == {"bbb", "ccc"}
    derive(results, "points-0001", ["aaa", "ccc"], 1)
    after = made_at(results)
    assert after["bbb"] == before["bbb"] and after["ccc"] > before["ccc"]
    assert Derived(results / "derived").table("points", IDS)["point_id"].to_list() == IDS
    traces = results / "derived/points-0000/traces"
    assert [path.name for path in traces.iterdir()] == ["0000"]  # of the second point, which stayed
    derive(results, "points-0000", ["ccc"], 1)
    assert not list(traces.iterdir())


def test_the_trace_tables_of_a_chunk_are_as_many_files_as_those_of_one_point(results):
    for point in ("ddd", "eee", "fff"):
        make_point(results / f"points/{point}", point_id=point)
    traces, counts = results / "derived/points-0000/traces", []
    for ids in (["aaa"], ["aaa", "ddd", "eee"], ["aaa", "ddd", "eee", "fff"]):
        derive(results, "points-0000", ids, 1)
        counts.append([len(list(part.iterdir())) for part in sorted(traces.iterdir())])
    (one,) = counts[0]
    assert counts[1:] == [[one] * 2, [one] * 3]
    later(results / "points/ddd/record.json")
    later(results / "points/eee/record.json")
    derive(results, "points-0000", ["aaa", "ddd", "eee", "fff"], 1)
    assert sorted(path.name for path in traces.iterdir()) == ["0000", "0002", "0003"]  # 0001 was of these two alone
    derived = Derived(results / "derived")
    for point in ("aaa", "ddd", "fff"):
        with derived.folder_of(point) as folder:
            assert json.dumps(diagnose_point(results / "points" / point, folder).as_json()) == json.dumps(
                derived.diagnosis(point)
            )


def test_a_point_that_cannot_be_analysed_is_a_row(results, capsys):
    dump(results / "points/bbb/record.json", record(point_id="bbb", settings={"workload": "command", "command": ""}))
    derive(results, "points-0000", IDS, 2)
    derived = Derived(results / "derived")
    (problem,) = json.loads((results / "derived/points-0000.json").read_text())["problems"].items()
    assert problem[0] == "bbb" and problem[1].startswith("no tables: ") and "\n" not in problem[1]
    assert f"points/bbb: {problem[1]}\n" in capsys.readouterr().err
    rows = derived.table("points", IDS).select("point_id", "status")
    assert rows.rows() == [("aaa", "ok"), ("bbb", "ok"), ("ccc", "ok")]
    assert derived.diagnosis("bbb") is None and derived.diagnosis("aaa")["causes"] is not None
    # It is tried again whenever its chunk is, and the others are not.
    before = made_at(results)
    dump(results / "points/bbb/record.json", record(point_id="bbb"))
    derive(results, "points-0000", IDS, 1)
    assert json.loads((results / "derived/points-0000.json").read_text())["problems"] == {}
    assert made_at(results)["bbb"] > before.pop("bbb") and before.items() <= made_at(results).items()


def test_a_diagnosis_stands_where_its_path_cannot_be_marked(results, tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no such span")

    monkeypatch.setattr(timeline, "mark_path", broken)
    made = make(results / "points/aaa", tmp_path / "scratch", 1)
    assert made.problem == "a diagnosis, but no path in the timeline: ValueError: no such span" and made.diagnosis


def test_a_point_that_kills_its_process_is_a_row_and_the_others_are_made(results, tmp_path):
    (results / "points/aaa/kills").touch()
    done = subprocess.run(command(results, *IDS, processes=2), env=patched(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    problems = json.loads((results / "derived/points-0000.json").read_text())["problems"]
    assert problems == {"aaa": "its analysis was killed; out of memory?"}
    assert Derived(results / "derived").table("steps", IDS)["point_id"].unique().to_list() == ["bbb"]


def test_a_process_that_is_killed_while_points_are_handed_out_costs_none(results, monkeypatch):
    class Broken(ProcessPoolExecutor):
        def submit(self, function, point, *more):
            if point.name == "bbb" and self._max_workers == 2:
                raise BrokenProcessPool
            return super().submit(function, point, *more)

    monkeypatch.setattr("nightsweep.analysis.tools.derive.ProcessPoolExecutor", Broken)
    derive(results, "points-0000", IDS, 2)
    assert json.loads((results / "derived/points-0000.json").read_text()) == {"points": 3, "problems": {}}


def test_a_chunk_that_is_killed_keeps_what_is_done(results, tmp_path):
    (results / "points/ccc/hangs").touch()
    process = subprocess.Popen(command(results, *IDS), env=patched(tmp_path), start_new_session=True)
    deadline = time.monotonic() + 200
    while len(made_at(results)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = made_at(results)
    assert before.keys() == {"aaa", "bbb"} and not (results / "derived/points-0000.json").exists()
    (results / "points/ccc/hangs").unlink()
    derive(results, "points-0000", IDS, 1)
    assert made_at(results).keys() == set(IDS) and before.items() <= made_at(results).items()
    assert not list((results / "derived/points-0000").glob(".*"))


def test_tables_without_a_row_of_made_are_of_a_run_that_was_killed(results):
    derive(results, "points-0000", IDS, 1)
    chunk = Chunk(results / "derived/points-0000")
    chunk.made.filter(pl.col("point_id") != "bbb").write_parquet(chunk.folder / "made.parquet")
    derive(results, "points-0000", IDS, 1)
    assert Derived(results / "derived").table("steps", IDS).height == 16
    assert pl.read_parquet(chunk.folder / "steps.parquet").height == 16
