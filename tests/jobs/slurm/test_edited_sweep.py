"""What is edited while jobs wait in the queue is not what they run."""

import json
import time

import pytest

from nightsweep.jobs.sweep.sweep import load
from tests.cluster.slurm import Cluster, Shape, available
from tests.jobs.slurm.sweep_run import SCRIPT, finish, start

pytestmark = pytest.mark.slow
SWEEP = f"name: night\nbase: {{{SCRIPT}, timed_steps: 40, traced_steps: 0}}\naxes: {{seed: [0, 1]}}\n"
TABLE = "results/night/tables/points.parquet"
ONE_AT_A_TIME = ("--submitit-array-parallelism", "1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := available():
        pytest.skip(why)
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=1)) as started:
        yield started


def records(folder):
    return {
        path.parent.name: json.loads(path.read_text()) for path in folder.glob("results/night/points/*/record.json")
    }


def start_and_wait(cluster, folder, monkeypatch):
    """A driver whose first point trains while its second waits; their ids."""
    monkeypatch.chdir(folder)
    driver = start(cluster, folder, SWEEP, TABLE, *ONE_AT_A_TIME)
    deadline = time.monotonic() + 120
    while not list(folder.glob("results/night/points/*/timed.*/rank0.heartbeat")):
        assert time.monotonic() < deadline and driver.poll() is None, driver.stderr.read()
        time.sleep(0.1)
    return driver, [point.id for point in load(folder / "sweep.yaml").points]


def test_a_file_that_was_edited(cluster, tmp_path, monkeypatch):
    """Jobs of points and of tables are of what their driver had read."""
    driver, ids = start_and_wait(cluster, tmp_path, monkeypatch)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("[0, 1]", "[2, 3]"))
    said = finish(driver)
    assert "2 of 2 points ok" in said and (tmp_path / TABLE).exists(), said
    assert sorted(path.name for path in (tmp_path / "results/night/points").iterdir()) == sorted(ids)


def test_a_script_that_was_edited(cluster, tmp_path, monkeypatch):
    """The point that waits fails, and says why; there are tables of both."""
    driver, ids = start_and_wait(cluster, tmp_path, monkeypatch)
    with (tmp_path / "steps.py").open("a") as script:
        script.write("# edited\n")
    said = finish(driver, 1)
    found = records(tmp_path)
    assert sorted(found) == sorted(ids) and (tmp_path / TABLE).exists(), said
    assert sorted(record["status"] for record in found.values()) == ["failed", "ok"]
    (message,) = [record["message"] for record in found.values() if record["status"] == "failed"]
    assert "steps.py changed since the sweep was read" in message
