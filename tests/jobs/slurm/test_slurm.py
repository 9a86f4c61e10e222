"""The executor on a real Slurm: every way in which a job can be lost, and a driver that is killed or told to stop."""

import csv
import os
import re
import shutil
import signal
import time
from contextlib import suppress

import psutil
import pytest

from tests.cluster.slurm import Cluster, Shape, available
from tests.jobs.slurm.sleep_run import Driver

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("cluster", [False, True], ids=["squeue", "sacct"], indirect=True)
"""With and without accounting, where the two ways to ask for states could differ."""
SAMPLED = ("JobAcctGatherFrequency=1",)


@pytest.fixture(scope="module")
def cluster(request, tmp_path_factory):
    accounting = getattr(request, "param", False)
    if why := available(accounting=accounting):
        pytest.skip(why)
    with Cluster(
        tmp_path_factory.mktemp("cluster"), Shape(nodes=4, gpus=0, accounting=accounting, extra=SAMPLED)
    ) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def over_the_limit(tmp_path_factory):
    """Three points in one job, on a separate cluster. The first point runs into the job's time limit, which takes
    Slurm a minute and a half to notice."""
    if available():
        yield None
        return
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=1, gpus=0)) as started:
        folder = tmp_path_factory.mktemp("limit")
        hanging = folder / "results/sleep/points" / f"{0:012x}"
        hanging.mkdir(parents=True)
        (hanging / "hangs").touch()
        driver = Driver(started, folder, 3, 0, 1, 1, "part=3")
        yield driver
        with suppress(ProcessLookupError):  # where no test waited for it
            os.killpg(driver.process.pid, signal.SIGKILL)


@BOTH
def test_arrays_of_jobs_over_two_nodes(cluster, tmp_path):
    """Started inside an allocation: what an enclosing job leaves in the environment must not reach the points."""
    bound = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "10", "SLURM_NTASKS": "7", "CUDA_VISIBLE_DEVICES": "3"}
    within = Cluster.__new__(Cluster)
    within.__dict__ = cluster.__dict__ | {"environment": cluster.environment | bound}
    (tmp_path / "partitions.yaml").write_text("partitions: {main: {max_nodes: 1}, urgent: {max_nodes: 2}}")
    chosen = ["--submitit-partition-config=partitions.yaml", "--submitit-efficiency-report=efficiency.csv"]
    driver = Driver(within, tmp_path, 4, 1, 2, 5, "--submitit-extra=--exclusive", *chosen)
    said = driver.finish()
    assert all(driver.record(n)["status"] == "ok" for n in range(4))
    assert all(len(driver.notes(n, "end")) == 1 for n in range(4))
    ids = {driver.notes(n, "start")[0] for n in range(4)}
    assert len(ids) == 4
    assert all("Partition=urgent " in cluster.run("scontrol", "-o", "show", "job", job) for job in ids)
    assert said.count("submitit-efficiency-report: ") == (not cluster.shape.accounting), said
    if cluster.shape.accounting:
        check_efficiency(tmp_path / "efficiency.csv", 4)


def check_efficiency(path, jobs):
    """Of jobs that had two nodes of 16 CPUs to themselves."""
    rows = list(csv.DictReader(path.open()))
    kinds = {(row["rule"], row["state"], row["cpus"], row["req_mem_mb_per_node"]) for row in rows}
    assert len({row["job_id"] for row in rows}) == jobs and kinds == {("point", "COMPLETED", "32", "100.0")}
    for row in rows:
        assert 0 < float(row["cpu_efficiency_percent"]) < 100 and float(row["max_rss_mb"]) > 1
        assert re.fullmatch(r"n\[\d[-,]\d\]", row["nodes"]) and int(row["elapsed_s"]) > 0


@BOTH
def test_lost_jobs(cluster, tmp_path):
    """A node loses its power, a person cancels, an urgent job preempts; two others are not touched."""
    driver = Driver(cluster, tmp_path, 5, 25, 1, 5, "--set-resources", "point:cpus_per_task=10")
    driver.until(lambda: len(driver.running()) == 4)  # one job a node: the fifth waits
    driver.until(lambda: sum(bool(driver.notes(n, "start")) for n in range(5)) == 4)
    started = [n for n in range(5) if driver.notes(n, "start")]
    waiting = next(n for n in range(5) if n not in started)
    ids = {n: driver.notes(n, "start")[0] for n in started}
    off, cancelled, preempted, _ = started
    rows = {n: next(r for r in driver.running() if real_id(cluster, r["id"]) == ids[n]) for n in started}
    node = rows[off]["nodes"]
    cluster.power_off(node)
    cluster.down(node, "power")
    cluster.run("scancel", rows[cancelled]["id"])
    urgent = cluster.run(
        "sbatch", "--parsable", "--partition=urgent", f"--nodelist={rows[preempted]['nodes']}", "--exclusive",
        "--output=/dev/null", "--wrap", "sleep 5",
    ).strip()  # fmt: skip
    try:
        said = driver.finish()
    finally:
        cluster.run("scancel", urgent, check=False)
        cluster.power_on(node)
        cluster.wait_for(node, "idle")
    assert driver.record(cancelled)["status"] == "cancelled" and driver.record(cancelled)["reason"] == "cancelled"
    for n in set(range(5)) - {cancelled}:
        assert driver.record(n)["status"] == "ok", said
        assert len(driver.notes(n, "end")) == 1
    assert len(driver.notes(off, "start")) == len(driver.notes(preempted, "start")) == 2
    assert len(driver.notes(waiting, "start")) == 1


def real_id(cluster, job):
    """Slurm's own number of an array's element."""
    return next(
        word.removeprefix("JobId=")
        for word in cluster.run("scontrol", "-o", "show", "job", job).split()
        if word.startswith("JobId=")
    )


@pytest.mark.parametrize(
    ("option", "text", "key"),
    [("--submitit-partition=none", "invalid partition", "submitit-partition"),
     ("--submitit-extra=--gres=none:9", "(gres)", "ranks_per_node"),
     ("--submitit-constraint=none", "Invalid feature", "submitit-constraint"),
     ("--submitit-partition-config=small.yaml", "which no partition gives: main (max_runtime 1)", "rule point")],
)  # fmt: skip
def test_refused_by_the_scheduler(cluster, tmp_path, option, text, key):
    """What would be every point's end stops the run, before a point has a record."""
    (tmp_path / "small.yaml").write_text("partitions: {main: {max_runtime: 60s}}")
    driver = Driver(cluster, tmp_path, 3, 0, 1, 5, option)
    said = driver.finish(status=1)
    assert said.count(text) == 1 and key in said and "Traceback" not in said, said
    assert not any(driver.record(n) for n in range(3))
    assert not list(tmp_path.glob(".snakemake/submitit/*/*/*.pkl"))


def test_one_of_many_is_refused(cluster, tmp_path):
    """That point alone has got a result: it does not run here."""
    driver = Driver(cluster, tmp_path, 3, 0, 1, 5, "odd=9")
    said = driver.finish()
    assert [driver.record(n)["status"] for n in range(3)] == ["ok", "ok", "failed"], said
    assert driver.record(2)["reason"] == "launch_failed"
    assert "PartitionNodeLimit" in driver.record(2)["message"]


def test_nothing_can_start(cluster, tmp_path):
    """Jobs that end before their command has begun stop the run, too."""
    driver = Driver(cluster, tmp_path, 5, 0, 1, 5, "--submitit-setup=module-is-not-here load x; exit 3")
    said = driver.finish(status=1)
    assert "module-is-not-here" in said and "Traceback" not in said, said
    assert not any(driver.record(n) for n in range(5))


def test_controller_stops_for_a_while(cluster, tmp_path):
    driver = Driver(cluster, tmp_path, 3, 5)
    driver.until(lambda: cluster.run("squeue", "-h", "-s", "-o", "%j").split().count("sleep") == 3)
    cluster.stop_controller()
    time.sleep(20)
    cluster.start_controller()
    driver.finish()
    assert all(driver.record(n)["status"] == "ok" and len(driver.notes(n, "end")) == 1 for n in range(3))


def test_submitted_while_the_controller_is_away(cluster, tmp_path):
    cluster.stop_controller()
    try:
        driver = Driver(cluster, tmp_path, 2)
        time.sleep(15)
    finally:
        cluster.start_controller()
    driver.finish()
    assert all(driver.record(n)["status"] == "ok" and len(driver.notes(n, "end")) == 1 for n in range(2))


@BOTH
def test_driver_killed_and_started_again(cluster, tmp_path):
    alone = ("--set-resources", "point:cpus_per_task=10")
    first = Driver(cluster, tmp_path, 3, 12, 2, 5, *alone)
    first.until(lambda: len(first.running()) == 2)  # on all four nodes
    os.killpg(first.process.pid, signal.SIGKILL)
    first.process.wait()
    time.sleep(14)  # two end while nobody watches, one starts
    second = Driver(cluster, tmp_path, 3, 12, 2, 5, *alone)
    second.finish()
    for n in range(3):
        assert second.record(n)["status"] == "ok"
        assert len(second.notes(n, "start")) == len(second.notes(n, "end")) == 1
    (second.point(0) / "record.json").unlink()  # a person wants this one again: no old job may stand for it
    third = Driver(cluster, tmp_path, 3, 0)
    assert "lost" not in third.finish()
    assert [len(third.notes(n, "end")) for n in range(3)] == [2, 1, 1]


def with_stand_in(cluster, folder, name, lines):
    """The cluster with a shell script in place of one of its commands; `{real}` in it is the command."""
    stand_in = folder / "stand-in" / name
    stand_in.parent.mkdir()
    path = cluster.environment["PATH"]
    stand_in.write_text(f"#!/bin/sh\n{lines.replace('{real}', shutil.which(name, path=path))}\n")
    stand_in.chmod(0o755)
    other = Cluster.__new__(Cluster)
    other.__dict__ = cluster.__dict__ | {"environment": cluster.environment | {"PATH": f"{stand_in.parent}:{path}"}}
    return other


UNANSWERED = """[ -e accepted ] && exec {real} "$@"
touch accepted
{real} "$@" > /dev/null
"""
"""sbatch, which once does not come to answer what Slurm has accepted."""
NO_ANSWER = {
    "outage": "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2\nexit 1",
    "killed": "kill -9 -$(ps -o pgid= $PPID | tr -d ' ')",
}


@pytest.mark.parametrize("how", NO_ANSWER)
def test_accepted_and_not_answered(cluster, tmp_path, how):
    """Such jobs have no command to run: they are no failures, and others run in their place."""
    driver = Driver(with_stand_in(cluster, tmp_path, "sbatch", UNANSWERED + NO_ANSWER[how]), tmp_path, 2)
    if how == "killed":
        assert driver.process.wait(60) == -signal.SIGKILL
        driver = Driver(cluster, tmp_path, 2)
    driver.finish()
    assert all(driver.record(n)["status"] == "ok" and len(driver.notes(n, "end")) == 1 for n in range(2))


def test_stopped_twice(cluster, tmp_path):
    """The second Ctrl-C comes while jobs are being cancelled. They are no results, and run again."""
    driver = Driver(with_stand_in(cluster, tmp_path, "scancel", '{real} "$@"\nsleep 3'), tmp_path, 3, 8)
    driver.until(lambda: len(driver.running()) == 3)
    ours = psutil.Process(driver.process.pid)
    driver.process.send_signal(signal.SIGINT)
    driver.until(lambda: any("scancel" in child.name() for child in ours.children(recursive=True)), fast=True)
    driver.process.send_signal(signal.SIGINT)
    driver.process.wait(60)
    second = Driver(cluster, tmp_path, 3)
    assert "cancelled" not in second.finish()
    assert all(second.record(n)["status"] == "ok" and len(second.notes(n, "end")) == 1 for n in range(3))


SLOW = """sleep 1
[ -e told ] && sleep 5
exec {real} "$@"
"""
"""squeue, which takes a second more, so that a query can be caught under way; and, where there is a file `told`, five
more, so that it answers when the jobs are gone."""


@pytest.mark.parametrize("asking", [False, True], ids=["quiet", "while-asking"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop(cluster, tmp_path, number, asking):
    before = {row["id"] for row in cluster.jobs()}  # of other tests: some may still be completing
    asked = with_stand_in(cluster, tmp_path, "squeue", SLOW) if asking else cluster
    driver = Driver(asked, tmp_path, 40, 60, 1, 5, "--set-resources", "point:cpus_per_task=10")  # one job a node
    driver.until(lambda: len(driver.running()) >= 3)
    if asking:  # its query to the scheduler is under way
        ours = psutil.Process(driver.process.pid)
        driver.until(lambda: any(child.name() in ("squeue", "sacct") for child in ours.children()), fast=True)
        (tmp_path / "told").touch()
    driver.process.send_signal(number)
    told = time.monotonic()
    driver.process.wait(60)
    active = ("RUNNING", "PENDING", "COMPLETING")
    while left := [row for row in cluster.jobs() if row["state"] in active and row["id"] not in before]:
        assert time.monotonic() - told < 10, left
        time.sleep(0.2)
    assert driver.process.returncode != 0
    assert not any(driver.record(n) for n in range(40))


def test_time_limit(over_the_limit):
    """What the job had not come to is run by another one, in the same run; the point that used up its time is not."""
    if over_the_limit is None:
        pytest.skip(available())
    said = over_the_limit.finish()
    records = [over_the_limit.record(n) for n in range(3)]
    assert [record["reason"] or record["status"] for record in records] == ["time_limit", "ok", "ok"], said
    starts = [over_the_limit.notes(n, "start") for n in range(3)]
    assert [len(ids) for ids in starts] == [1, 1, 1] and starts[0] != starts[1] == starts[2]
    assert said.count("submitted again for the 2 of its points that it had not come to") == 1, said
