"""Points that are stopped or killed on a real Slurm: none gets a false result, and the same command goes on."""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import suppress

import psutil
import pytest

from tests.cluster.slurm import Cluster, Shape, available
from tests.jobs.slurm.sweep_run import BASE, finish, start

pytestmark = pytest.mark.slow
STOPPED = f"""
name: stopped
base: {{{BASE}, timed_steps: 100, traced_steps: 0, ranks_per_node: 2}}
axes: {{seed: [1, 2, 3]}}
resources: {{timeout_min: 10}}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := available():
        pytest.skip(why)
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=2)) as started:
        yield started


def records(folder):
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("results/*/points/*/record.json")}


def test_stopped_at_any_moment_and_resumed(cluster, tmp_path):
    """Ctrl-C, again and again: no point gets a false result, none is measured twice, all are there in the end."""
    chance = random.Random(int(os.environ.get("NIGHTSWEEP_SEED", "1")))
    measured = {}
    for _ in range(int(os.environ.get("NIGHTSWEEP_STOPS", "2"))):
        driver = start(cluster, tmp_path, STOPPED, "points")
        with suppress(subprocess.TimeoutExpired):
            driver.wait(chance.uniform(3, 25))
        driver.send_signal(chance.choice((signal.SIGINT, signal.SIGTERM)))
        driver.communicate(timeout=200)
        wait_for_no_jobs(cluster)
        found = records(tmp_path)
        assert {record["status"] for record in found.values()} <= {"ok"}, found
        assert found.items() >= measured.items()
        measured = found
    assert "3 of 3 points ok" in finish(start(cluster, tmp_path, STOPPED, "points"))
    assert len(records(tmp_path)) == 3 and records(tmp_path).items() >= measured.items()


def wait_for_no_jobs(cluster):
    deadline = time.monotonic() + 200
    while [row for row in cluster.jobs() if row["state"] in ("RUNNING", "PENDING", "COMPLETING")]:
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.parametrize("victim", ["launcher", "rank", "slurmstepd"])
def test_a_process_is_killed(cluster, tmp_path, victim):
    """What was killed decides: a rank is the point's failure, a launcher or Slurm's own process starts it again."""
    sweep = STOPPED.replace("[1, 2, 3]", "[1]").replace("100", "250").replace("stopped", victim)
    driver = start(cluster, tmp_path, sweep, "points")
    wait_for_a_step(tmp_path, driver)
    supervisor = running(tmp_path, "jobs.rank.supervisor")
    {
        "launcher": lambda: running(tmp_path, "jobs.launch.launch"),
        "rank": lambda: running(tmp_path, "jobs.rank.worker"),
        "slurmstepd": supervisor.parent,
    }[victim]().kill()
    said = finish(driver) if victim != "rank" else driver.communicate(timeout=300)[1]
    (record,) = records(tmp_path).values()
    if victim == "rank":
        assert (record["status"], record["reason"]) == ("failed", "rank_killed"), said
    else:
        assert (record["status"], record["attempt"]) == ("ok", 2), said


def running(folder, module):
    """A process of this module itself, not of a shell around it, that works in the folder."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder) and process.cmdline()[1:3] == ["-m", module]:
                return process
    raise LookupError(module)


def wait_for_a_step(folder, driver):
    deadline = time.monotonic() + 180
    while not any("step" in beat.read_text() for beat in folder.glob("results/*/points/*/timed.*/rank0.heartbeat")):
        assert time.monotonic() < deadline and driver.poll() is None
        time.sleep(0.2)
