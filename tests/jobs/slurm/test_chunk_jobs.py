"""Chunks of points, sent to a cluster through the executor as points are."""

import json
import os
import signal
import time

import pytest

from nightsweep.analysis.ingest.derived import Derived
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.sweep.sweep import load
from tests.cluster.slurm import Cluster, Shape, available
from tests.jobs.slurm.sweep_run import finish, start

SWEEP = """
name: night
base: {workload: command, command: "wait.py {seed}", launcher: none, workdir: ., device: cpu, traced_steps: 0}
axes: {seed: [0, 1, 2, 3, 4]}
"""
WAIT = """
import pathlib, time
derived, until = pathlib.Path("results/night/derived"), time.monotonic() + 200
while not all((derived / f"points-000{chunk}.json").exists() for chunk in (0, 1)) and time.monotonic() < until:
    time.sleep(0.1)
"""
"""A point that runs until the other chunks are made."""
SMALL = "from nightsweep.jobs.sweep import chunks\nchunks.SIZE = 2\n"
TABLE = "results/night/tables/points.parquet"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := available():
        pytest.skip(why)
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=2)) as started:
        yield started


@pytest.fixture
def measured(tmp_path, cluster, monkeypatch):
    """Five points in chunks of two, of which all but the last one have failed. Ids in order."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "wait.py").write_text(WAIT)
    points = load(tmp_path / "sweep.yaml").points
    for point in points[:-1]:
        folder = tmp_path / "results/night/points" / point.id
        folder.mkdir(parents=True)
        own = {"point_id": point.id, "settings": point.settings(), "status": "failed", "reason": "stalled"}
        write_json(folder / "record.json", own)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SMALL)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setitem(cluster.environment, "PYTHONPATH", path)
    return [point.id for point in points]


def measure_again(folder, point):
    """Another record: Snakemake is not moved by a date alone."""
    path = folder / f"results/night/points/{point}/record.json"
    write_json(path, json.loads(path.read_text()) | {"attempt": 2})


def made_at(folder):
    return {point: row["made_ns"] for point, row in Derived(folder / "results/night/derived").made.items()}


def shown(cluster):
    """What Slurm says of each job of ours."""
    lines = cluster.run("scontrol", "-o", "show", "jobs").splitlines()
    return [dict(word.partition("=")[::2] for word in line.split()) for line in lines if "JobName=snakemake-" in line]


def accepted(folder):
    """Jobs that a driver knows Slurm has: before, it has not given them their command."""
    journals = folder.glob(".snakemake/submitit/*/journal.jsonl")
    events = [json.loads(line) for path in journals for line in path.read_text().splitlines() if line.endswith("}")]
    return [job for event in events if event["event"] == "accept" for job in event["ids"]]


@pytest.mark.slow
def test_chunks_are_jobs_of_the_cluster(cluster, measured, tmp_path):
    """They begin while other points still run, and only what is newer is made again."""
    choice = ("--set-resources", "derive:slurm_partition=urgent")
    said = finish(start(cluster, tmp_path, SWEEP, TABLE, *choice), 1)
    assert "1 of 5 points ok" in said, said
    jobs = [(job["Partition"], job["OverSubscribe"], job["NumCPUs"]) for job in shown(cluster)]
    assert len(jobs) == 4 and jobs.count(("urgent", "OK", "8")) == 3
    names = [f"points-000{number}" for number in range(3)]
    kept = tmp_path / "results/night/derived"
    assert sorted(path.name for path in kept.iterdir()) == sorted([*names, *(f"{name}.json" for name in names)])
    before = made_at(tmp_path)
    assert before.keys() == set(measured)
    ended_ns = (tmp_path / f"results/night/points/{measured[4]}/record.json").stat().st_mtime_ns
    assert all(before[point] < ended_ns for point in measured[:4]) and before[measured[4]] > ended_ns

    measure_again(tmp_path, measured[0])
    driver = start(cluster, tmp_path, SWEEP, TABLE, *choice)
    deadline = time.monotonic() + 120
    while len(accepted(tmp_path)) < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(driver.pid, signal.SIGKILL)  # and its job goes on
    driver.wait()
    while before.items() <= made_at(tmp_path).items() and time.monotonic() < deadline:
        time.sleep(0.1)
    after = made_at(tmp_path)
    assert {point for point in measured if after[point] > before[point]} == {measured[0]}

    # What that job made is older than what is there now, and so not what the next driver wants.
    over = time.monotonic() + 120
    while any(job["JobState"] in ("RUNNING", "COMPLETING") for job in shown(cluster)) and time.monotonic() < over:
        time.sleep(0.1)
    measure_again(tmp_path, measured[1])
    said = finish(start(cluster, tmp_path, SWEEP, TABLE, *choice), 1)
    assert "go on" not in said, said
    last = made_at(tmp_path)
    assert {point for point in measured if last[point] > after[point]} == {measured[1]}
    problems = [json.loads((kept / f"{name}.json").read_text())["problems"] for name in names]
    assert problems == [{}, {}, {}]
