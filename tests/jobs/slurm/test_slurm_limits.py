"""Limits of a real Slurm: as many jobs go out as it takes, the rest later; what can never pass stops the run."""

import os
import signal
import sys
import time

import pytest

from nightsweep.jobs.host.facts import ROOT
from tests.cluster.slurm import Cluster, Shape, available
from tests.jobs.slurm.sleep_run import Driver

pytestmark = pytest.mark.slow
EXTRA = ("MaxArraySize=6", "AccountingStorageEnforce=limits,qos")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := available(accounting=True):
        pytest.skip(why)
    shape = Shape(nodes=2, gpus=0, accounting=True, extra=EXTRA)
    with Cluster(tmp_path_factory.mktemp("cluster"), shape) as started:
        yield started


@pytest.fixture
def qos(cluster):
    """Sets limits of the quality of service, and takes them away again."""
    used = {}

    def limit(**limits):
        used.update(limits)
        cluster.run("sacctmgr", "-i", "modify", "qos", "normal", "set", *(f"{k}={v}" for k, v in limits.items()))

    yield limit
    limit(**dict.fromkeys(used, "-1"))


def arrays(folder):
    """Names and sizes of the arrays that were submitted, by what submitit left."""
    return {
        path.name: len(list(path.glob("*_submitted.pkl")))
        for path in folder.glob(".snakemake/submitit/*/snakemake-*")
        if path.is_dir()
    }


def test_fewer_than_there_are_points(cluster, qos, tmp_path):
    qos(MaxSubmitJobsPerUser=3)
    driver = Driver(cluster, tmp_path, 7, 1, 1, 5, "--submitit-poll-s=2")
    said = driver.finish()
    assert all(driver.record(n)["status"] == "ok" and len(driver.notes(n, "start")) == 1 for n in range(7))
    assert said.count("does not take 5 jobs at once: QOSMaxSubmitJobPerUserLimit") == 1, said  # arrays hold 5
    assert "jobs are kept here" in said and "does not answer" not in said
    found = arrays(tmp_path)
    assert sum(found.values()) == 7 and all(found.values()), "what was refused leaves nothing"


@pytest.mark.parametrize("flag", ["-1", "DenyOnLimit"], ids=["waits-for-ever", "refused"])
def test_longer_than_allowed(cluster, qos, tmp_path, flag):
    qos(MaxWall=2, Flags=flag)
    driver = Driver(cluster, tmp_path, 4)
    said = driver.finish(status=1)
    assert said.count("QOSMaxWallDurationPerJobLimit") == 1, said
    assert "timeout_min" in said and "Traceback" not in said, said
    assert not any(driver.record(n) for n in range(4))
    assert not [row for row in cluster.jobs() if row["state"] == "PENDING"]


def test_nodes_that_are_drained_come_back(cluster, tmp_path):
    """Jobs that wait for them are not given up."""
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        driver = Driver(cluster, tmp_path, 2, 0, 2, 1, "--submitit-poll-s=2")
        driver.until(lambda: "2 jobs in the queue: Nodes required for job are DOWN" in driver.log.read_text())
        time.sleep(5)
    finally:
        cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    driver.finish()
    assert all(driver.record(n)["status"] == "ok" for n in range(2))


def test_a_job_of_an_array_asks_about_itself_alone(cluster, tmp_path):
    """The last one has the number of the whole array, and Slurm tells of all when asked about that."""
    code = (
        "import time; from nightsweep.jobs.slurm import allocation as a; time.sleep(5);"
        "print(round(a.seconds_left()), a.is_ending(), sorted(a.times_ns()))"
    )
    body = f'if [ $SLURM_ARRAY_TASK_ID = 0 ]; then exit 0; fi; cd {ROOT}; exec {sys.executable} -c "{code}"'
    cluster.run("sbatch", "--wait", "--array=0-1", "--time=20", f"--output={tmp_path}/%a.out", "--wrap", body)
    left, ending, times = (tmp_path / "1.out").read_text().split(maxsplit=2)
    assert 1100 < int(left) <= 1200 and ending == "False"
    assert times.strip() == "['EndTime', 'StartTime', 'SubmitTime']"


def test_what_a_job_of_several_points_has_not_come_to_is_sent_again(cluster, tmp_path):
    """In the same run, as often as it takes; neither what is measured nor what has failed by itself runs again. What
    has twice taken its launcher with it does not keep the others from being run."""
    for number, end in ((1, "fails"), (3, "dies")):
        folder = tmp_path / "results/sleep/points" / f"{number:012x}"
        folder.mkdir(parents=True)
        (folder / end).touch()
    driver = Driver(cluster, tmp_path, 7, 0, 1, 5, "part=2", "--submitit-poll-s=2")
    said = driver.finish()
    found = [driver.record(n)["reason"] or driver.record(n)["status"] for n in range(7)]
    assert found == ["ok", "rank_exception", "ok", "lost", "ok", "ok", "ok"], said
    jobs = [driver.notes(n, "start") for n in range(7)]
    assert [len(starts) for starts in jobs] == [1, 1, 1, 2, 1, 1, 1], jobs
    assert len({job for starts in jobs for job in starts}) == 5
    assert [said.count(f"had no time left for {left} of its points") for left in (5, 1)] == [1, 1], said
    assert said.count("submitted again for the 3 of its points that it had not come to") == 1, said


def test_an_end_that_accounting_never_hears_of(cluster, tmp_path):
    """Where there is too much to tell it, the controller drops some: accounting has the job at work for good."""
    hangs = tmp_path / f"results/sleep/points/{0:012x}/hangs"
    hangs.parent.mkdir(parents=True)
    hangs.touch()
    driver = Driver(cluster, tmp_path, 1, 0, 1, 15)
    driver.until(lambda: driver.notes(0, "start"))
    (job,) = driver.running()
    os.killpg(driver.process.pid, signal.SIGSTOP)
    cluster.power_off(job["nodes"])
    cluster.down(job["nodes"], "power")
    ask = ("sacct", "-X", "-n", "-P", "-o", "State", "-j", job["id"])
    driver.until(lambda: cluster.run(*ask).strip() == "NODE_FAIL")
    cluster.lose_end(job["id"])
    assert cluster.run(*ask).strip() == "RUNNING"
    hangs.unlink()
    os.killpg(driver.process.pid, signal.SIGCONT)
    cluster.power_on(job["nodes"])
    said = driver.finish()
    assert "node_failure: Slurm ended the job as NODE_FAIL" in said and cluster.run(*ask).strip() == "RUNNING"
    assert driver.record(0)["status"] == "ok" and len(driver.notes(0, "start")) == 2
