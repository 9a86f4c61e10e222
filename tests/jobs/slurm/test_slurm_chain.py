"""Real ranks on a real Slurm: the whole chain over one and two nodes, failures of ranks, and a node that is lost."""

import json
import shutil
import time
from datetime import datetime

import polars as pl
import pytest

from nightsweep.analysis.tools.draw import draw
from tests.cluster.slurm import Cluster, Shape, available
from tests.jobs.slurm.sweep_run import BASE, SCRIPT, finish, start

pytestmark = pytest.mark.slow
CHAIN = f"""
name: chain
base: {{{BASE}, timed_steps: 3, traced_steps: 1}}
axes: {{nodes: [1, 2], strategy: [ddp]}}
include:
  - {{nodes: 2, fault: "hang@rank1:step1"}}
resources: {{timeout_min: 5, stall_s: 90}}
"""
LONG = f"""
name: long
base: {{{SCRIPT}, timed_steps: 700, traced_steps: 0}}
axes: {{seed: [1]}}
resources: {{timeout_min: 10}}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := available():
        pytest.skip(why)
    # So slow to notice that a node is gone that srun, which gives it half a minute, is first.
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=3, extra=("SlurmdTimeout=150",))) as started:
        yield started


def test_chain(cluster, tmp_path):
    table = "results/chain/tables/points.parquet"
    said = finish(start(cluster, tmp_path, CHAIN, table), 1)
    assert "2 of 3 points ok" in said
    points = pl.read_parquet(tmp_path / table)
    found = {(r["nodes"], r["fault"]): r for r in points.to_dicts()}
    assert found[1, None]["status"] == found[2, None]["status"] == "ok"
    assert len(found[2, None]["hosts"]) == 2
    assert found[2, "hang@rank1:step1"]["reason"] == "stalled"
    record = tmp_path / "results/chain/points" / found[2, None]["point_id"] / "record.json"
    assert json.loads(record.read_text())["slurm"]["job_id"]
    phases = pl.read_parquet(tmp_path / "results/chain/tables/phases.parquet")
    for point in points["point_id"]:
        marks = json.loads((tmp_path / f"results/chain/points/{point}/record.json").read_text())["phases"]
        own = phases.filter(pl.col("point_id") == point, pl.col("use") != "queue")
        assert [mark["phase"] for mark in marks[:2]] == ["queue", "job_start"]
        assert own["duration_ns"].sum() == marks[-1]["start_ns"] - marks[1]["start_ns"]
    # Points on one node and on two are compared, unless the other tests on this machine have disturbed one of them.
    left_out = draw(tmp_path / "results/chain/tables", tmp_path / "figures", ("timeline", "failures", "scaling"), 1)
    assert not left_out or (points["disturbed"].any() and [line.split(":")[0] for line in left_out] == ["scaling"])
    assert (tmp_path / "figures/timeline.pdf").exists() and (tmp_path / "figures/supplement/failures.pdf").exists()


def test_slurmd_dies_and_its_ranks_run_on(cluster, tmp_path):
    """The controller gives the node up while the ranks still run: they must not disturb the next attempt."""
    driver = start(cluster, tmp_path, LONG, "points")
    beats = []
    deadline = time.monotonic() + 180
    while not any("step" in beat.read_text() for beat in beats) and time.monotonic() < deadline:
        time.sleep(0.5)
        beats = list(tmp_path.glob("results/long/points/*/timed.*/rank0.heartbeat"))
    node = next(row["nodes"] for row in cluster.jobs() if row["state"] == "RUNNING")
    cluster.kill_slurmd(node)
    cluster.down(node, "slurmd is gone")
    try:
        finish(driver)
    finally:
        cluster.power_off(node)
        cluster.power_on(node)
        cluster.wait_for(node, "idle", 90)
    (folder,) = tmp_path.glob("results/long/points/*")
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "ok" and record["attempt"] == len((folder / "attempts.jsonl").read_text().splitlines())
    window = json.loads((folder / "timed/rank0.result.json").read_text())["window"]
    look = record["looks"]["timed"]
    assert look["started_ns"] < window["start_ns"] < window["end_ns"] < look["ended_ns"]
    assert [phase["phase"] for phase in record["phases"][:3]] == ["queue", "job_start", "launch"]
    starts = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    # Of the attempt that was lost, whose ranks may still write as the next launcher comes.
    lost_ns = datetime.fromisoformat(starts[-2]["started_at"]).timestamp() * 1e9
    assert lost_ns < starts[-1]["earlier_sign_ns"] < look["started_ns"]
    names = [row["state"] for row in cluster.jobs()]
    assert "NODE_FAIL" in names and names.count("COMPLETED") >= 1


SRUN = """#!/bin/sh
touch {folder}/waits
while [ ! -e {folder}/go ]; do sleep 0.05; done
exec {srun} "$@"
"""


def test_a_node_is_lost_as_ranks_start(cluster, tmp_path, monkeypatch):
    """srun notices before the controller does, and the point starts again without that node."""
    # Else ranks may be there already, and Slurm takes minutes to miss the node.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/srun").write_text(SRUN.format(folder=tmp_path, srun=shutil.which("srun")))
    (tmp_path / "bin/srun").chmod(0o755)
    monkeypatch.setitem(cluster.environment, "PATH", f"{tmp_path}/bin:{cluster.environment['PATH']}")
    sweep = LONG.replace("700", "3").replace("long", "started").replace("axes: {", "axes: {nodes: [2], ")
    driver = start(cluster, tmp_path, sweep, "points")
    deadline = time.monotonic() + 180
    while not (tmp_path / "waits").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    nodes = next(row["nodes"] for row in cluster.jobs() if row["state"] == "RUNNING")
    lost = cluster.run("scontrol", "show", "hostnames", nodes).split()[-1]
    cluster.power_off(lost)
    (tmp_path / "go").touch()
    try:
        said = finish(driver)
    finally:
        cluster.power_on(lost)
        cluster.wait_for(lost, "idle", 90)
    (record,) = tmp_path.glob("results/started/points/*/record.json")
    found = json.loads(record.read_text())
    assert (found["status"], found["attempt"]) == ("ok", 2), said
    assert "(node_failure: srun: error: Task launch for StepId" in said and f"failed on node {lost}" in said, said
    assert lost not in [host["hostname"] for host in found["hosts"]]


def test_controller_is_away_when_ranks_should_start(cluster, tmp_path):
    driver = start(cluster, tmp_path, LONG.replace("700", "3").replace("long", "away"), "points")
    deadline = time.monotonic() + 180
    while not list(tmp_path.glob("results/away/points/*/attempts.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    cluster.stop_controller()
    time.sleep(15)
    cluster.start_controller()
    finish(driver)
    (record,) = tmp_path.glob("results/away/points/*/record.json")
    assert json.loads(record.read_text())["status"] == "ok"


def test_the_launcher_stops_before_slurm_would(cluster, tmp_path):
    """So that the record tells where the ranks stood, which Slurm's own end would not leave time for."""
    hang = LONG.replace(SCRIPT, BASE).replace("traced_steps: 0", 'traced_steps: 0, fault: "hang@rank0:step1"')
    hang = hang.replace("long", "limit")
    finish(start(cluster, tmp_path, hang, "points", "--set-resources", "point:runtime=1"), 1)
    (path,) = tmp_path.glob("results/limit/points/*/record.json")
    record = json.loads(path.read_text())
    assert (record["status"], record["reason"]) == ("failed", "time_limit")
    assert record["message"].startswith("still running after") and record["looks"]["timed"]["wall_s"] < 60
    assert (path.parent / "timed/rank0.stacks.txt").stat().st_size
