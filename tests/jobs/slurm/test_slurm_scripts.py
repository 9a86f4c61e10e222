"""A script of somebody's own on a real Slurm: torchrun on two nodes, ranks by srun, and a rank that fails."""

import json
import shutil

import polars as pl
import pytest

from nightsweep.jobs.sweep import design
from nightsweep.jobs.sweep.sweep import load
from tests.cluster.slurm import Cluster, Shape, available
from tests.jobs.hook.script_run import SCRIPTS
from tests.jobs.slurm.sweep_run import finish, start

pytestmark = pytest.mark.slow
SWEEP = """
name: mine
base: {workload: command, command: "train.py --batch {batch}", device: cpu, nodes: 2, warmup_steps: 2, timed_steps: 4,
  traced_steps: 2, workdir: WORKDIR, launcher: torchrun, batch: 16}
include:
  - {launcher: [torchrun, srun]}
  - {command: "bad.py {batch}"}
resources: {timeout_min: 5, stall_s: 90}
"""
BAD = """
import os, time
if os.environ["RANK"] == "1":
    raise OSError("no such data set")
time.sleep(100)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := available():
        pytest.skip(why)
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=2)) as started:
        yield started


def test_scripts_over_two_nodes(cluster, tmp_path):
    shutil.copy(SCRIPTS / "plain.py", tmp_path / "train.py")
    (tmp_path / "bad.py").write_text(BAD)
    sweep, table = SWEEP.replace("WORKDIR", str(tmp_path)), "results/mine/tables/points.parquet"
    said = finish(start(cluster, tmp_path, sweep, table), 1)
    assert "2 of 3 points ok" in said
    points = pl.read_parquet(tmp_path / table)
    found = {(row["launcher"], row["command"].split()[0]): row for row in points.to_dicts()}
    for launcher in ("torchrun", "srun"):
        row = found[launcher, "train.py"]
        assert (row["status"], row["step_source"], len(row["hosts"])) == ("ok", "optimizer", 2)
        assert (row["model"], json.loads(row["variables"]), row["samples_per_step"]) == ("train.py", {"batch": 16}, 32)
        assert row["trace_status"] == "ok" and row["step_ms_median"] > 0
    failed = found["torchrun", "bad.py"]
    assert (failed["reason"], failed["message"]) == ("rank_exception", "rank 1: OSError: no such data set")


PAIRS = """
name: beside
base: {workload: command, command: "job.py {ms}", launcher: none, device: cpu, traced_steps: 0, workdir: WORKDIR,
  ms: 300}
pairs: {slower: {with: {ms: 600}}}
repeats: 4
design: {seed: 1}
resources: {timeout_min: 5}
"""


def test_a_block_of_a_pair_is_one_job(cluster, tmp_path):
    (tmp_path / "job.py").write_text("import sys, time\ntime.sleep(float(sys.argv[1]) / 1000)\n")
    assert "8 of 8 points ok" in finish(start(cluster, tmp_path, PAIRS.replace("WORKDIR", str(tmp_path)), "points"))
    sweep = load(tmp_path / "sweep.yaml")
    blocks = design.queues(sweep.points, sweep.pairs, sweep.design)
    assert [len(block) for block in blocks] == [4, 4]
    ids = []
    for block in blocks:
        folders = [tmp_path / "results/beside/points" / point.id for point in block]
        records = [json.loads((folder / "record.json").read_text()) for folder in folders]
        assert len({record["slurm"]["job_id"] for record in records}) == 1
        assert len({record["hosts"][0]["hostname"] for record in records}) == 1
        assert [r["started_at"] for r in records] == sorted(r["started_at"] for r in records)
        ids.append(records[0]["slurm"]["job_id"])
    assert len({*ids}) == 2
