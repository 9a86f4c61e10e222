"""A block: one job that measures several points, whose records follow that of the first one."""

import dataclasses
import json
import subprocess
import sys

import pytest

from jobs.launch.follow import follow
from jobs.point.point import complete
from jobs.record.json_files import load_json, read_json
from jobs.record.lost import Loss, lost_record
from jobs.record.record import Record, write_record
from jobs.sweep.rounds import PointList

A = complete({"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 2, "device": "cpu",
              "warmup_steps": 1, "timed_steps": 3, "traced_steps": 0})  # fmt: skip
B = dataclasses.replace(A, micro_batch=4)


def sweep(tmp_path, *points):
    path = tmp_path / "sweep.json"
    listed = [{"point_id": point.id, "settings": point.settings()} for point in points]
    path.write_text(json.dumps({"name": "t", "points": listed}))
    return path


def launch(tmp_path, listed, *points):
    folders = [str(tmp_path / "points" / point.id) for point in points]
    command = [sys.executable, "-m", "jobs.launch.launch", *folders, "--sweep", str(listed)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_all_points_are_measured_in_order_and_what_is_measured_stays(tmp_path):
    broken = dataclasses.replace(B, fault="exception@rank0:step1")
    listed = sweep(tmp_path, A, B, broken)
    assert launch(tmp_path, listed, broken, A, B).returncode == 0
    records = {p.id: json.loads((tmp_path / "points" / p.id / "record.json").read_text()) for p in (A, B, broken)}
    assert [records[p.id]["status"] for p in (broken, A, B)] == ["failed", "ok", "ok"]
    assert records[broken.id]["started_at"] < records[A.id]["started_at"] < records[B.id]["started_at"]
    times = [(tmp_path / "points" / p.id / "record.json").stat().st_mtime_ns for p in (B, A, broken)]
    assert times == sorted(times)  # the first one's record stands for all
    (tmp_path / "points" / B.id / "record.json").unlink()
    assert launch(tmp_path, listed, A, B).returncode == 0
    assert json.loads((tmp_path / "points" / B.id / "record.json").read_text()) == records[B.id]


def test_a_point_that_the_sweep_does_not_have_stops_the_block_before_it_begins(tmp_path):
    done = launch(tmp_path, sweep(tmp_path, A), A, B)
    assert done.returncode == 2 and f"no point {B.id} in it" in done.stderr
    assert not (tmp_path / "points").exists()


def lost(folder, point, **changed):
    folder.mkdir(parents=True)
    job = load_json(folder.parents[1] / "sweep.json", PointList).job(point.id)
    record = lost_record(job, Loss("node_failure", "node n1 is gone", again=True), 2, "77_1")
    write_record(folder / "record.json", dataclasses.replace(record, **changed) if changed else record)


def test_a_point_is_lost_with_the_job_that_was_to_measure_it(tmp_path):
    listed = load_json(sweep(tmp_path, A, B), PointList)
    leader, folder = (tmp_path / "points" / point.id for point in (A, B))
    lost(leader, A)
    assert follow(folder, leader, listed) is None
    found = read_json(folder / "record.json", Record)
    assert (found.point_id, found.status, found.reason, found.slurm.job_id) == (B.id, "failed", "node_failure", "77_1")
    assert A.id in found.message and "node n1 is gone" in found.message


def test_where_the_record_alone_is_gone_the_block_runs_again(tmp_path):
    listed = load_json(sweep(tmp_path, A, B), PointList)
    leader, folder = (tmp_path / "points" / point.id for point in (A, B))
    leader.mkdir(parents=True)
    write_record(leader / "record.json", Record(point_id=A.id, status="ok"))
    assert "the same command runs it again" in follow(folder, leader, listed)
    assert not (leader / "record.json").exists() and not folder.exists()


def test_a_record_that_is_there_stays(tmp_path):
    listed = load_json(sweep(tmp_path, A, B), PointList)
    leader, folder = (tmp_path / "points" / point.id for point in (A, B))
    for path in (leader, folder):
        path.mkdir(parents=True)
    write_record(folder / "record.json", Record(point_id=B.id, status="ok"))
    before = (folder / "record.json").read_text()
    assert follow(folder, leader, listed) is None and (folder / "record.json").read_text() == before
