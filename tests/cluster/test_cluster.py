"""The test cluster itself, a real Slurm of two nodes; skipped, with the reason, where none can be started."""

import time
from pathlib import Path

import pytest

from tests.cluster.slurm import Cluster, ClusterError, Shape, available

pytestmark = pytest.mark.slow
WHY_NOT = available()
WHY_NO_ACCOUNTING = available(accounting=True)


def _eventually(reached, timeout=60):
    end = time.monotonic() + timeout
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.1)


def _runs(pid):
    """Whether the process is more than a zombie: this machine's first process may never reap it."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=2)) as started:
        yield started


def test_tasks_run_on_nodes_of_their_own(cluster):
    assert sorted(cluster.run("srun", "-N2", "hostname").split()) == ["n1", "n2"]
    out = cluster.run("srun", "-N1", "--nodelist=n1", "getent", "hosts", "n2")
    assert out.split() == ["127.0.0.12", "n2"]


def test_gpus_are_given_out(cluster):
    out = cluster.run("srun", "-N2", "--ntasks-per-node=1", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert out.split() == ["0,1", "0,1"]


def test_a_failed_command_tells_why(cluster):
    with pytest.raises(ClusterError, match="invalid partition"):
        cluster.run("srun", "--partition=none", "true")


def test_urgent_jobs_preempt(cluster):
    def state(job):
        return next(row["state"] for row in cluster.jobs() if row["id"] == job)

    batch = ("sbatch", "--parsable", "--output=/dev/null", "-N2", "--gres=gpu:4", "--wrap", "exec sleep 60")
    ordinary = cluster.run(*batch).strip()
    _eventually(lambda: state(ordinary) == "RUNNING")
    urgent = cluster.run(*batch, "--partition=urgent").strip()
    _eventually(lambda: (state(urgent), state(ordinary)) == ("RUNNING", "PENDING"))
    cluster.run("scancel", ordinary, urgent)
    for node in cluster.shape.names:
        cluster.wait_for(node, "idle")


def test_a_node_fails_and_comes_back(cluster):
    cluster.power_off("n2")
    cluster.down("n2", "power")
    assert cluster.states() == {"n1": "idle", "n2": "down"}
    cluster.power_on("n2")
    cluster.wait_for("n2", "idle")
    assert sorted(cluster.run("srun", "-N2", "hostname").split()) == ["n1", "n2"]


def test_orphans_outlive_their_slurmd_but_not_their_node(cluster, tmp_path):
    place = tmp_path / "pid"
    cluster.run("sbatch", "--nodelist=n2", "--output=/dev/null", "--wrap", f"echo $$ > {place}; exec sleep 60")
    _eventually(lambda: place.exists() and place.read_text().strip())
    task = place.read_text().strip()
    cluster.kill_slurmd("n2")
    assert _runs(task)
    cluster.power_off("n2")
    _eventually(lambda: not _runs(task))
    cluster.down("n2", "power")
    assert [row["state"] for row in cluster.jobs() if row["state"] == "PENDING"]
    cluster.run("scancel", "--me")
    cluster.power_on("n2")
    cluster.wait_for("n2", "idle")


def test_the_controller_keeps_its_jobs(cluster):
    before = cluster.jobs()
    cluster.stop_controller()
    cluster.start_controller()
    assert before
    assert cluster.jobs() == before


@pytest.mark.skipif(WHY_NO_ACCOUNTING is not None, reason=str(WHY_NO_ACCOUNTING))
def test_accounting(tmp_path):
    with Cluster(tmp_path, Shape(nodes=2, accounting=True)) as cluster:
        job = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 0.3").strip()
        report = ("sacct", "--noheader", "--allocations", f"--jobs={job}", "--format=State")
        _eventually(lambda: cluster.run(*report).split() == ["COMPLETED"])
    cluster.stop()
