"""Faults of a night on a real Slurm, once each: nothing is lost, measured twice or given a wrong reason.

All of them, more often: python -m tests.cluster.faults
"""

import os
import random
import subprocess

import pytest

from tests.cluster.faults import FAULTS, Outcome, Try, small_disk
from tests.cluster.slurm import Cluster, Shape, available

pytestmark = pytest.mark.slow
ELSEWHERE = {
    "Ctrl-C, points asleep",
    "SIGTERM, points asleep",
    "SIGTERM twice, ranks at work",
    "SIGTERM twice, local profile",
    "kill -9 of a rank, local profile",
    "node off, jobs queued",
    "slurmd killed",
    "slurmctld killed",
    "time limit",
}
"""Tried by other tests, or like another one here."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disk") / "small"
    try:
        with small_disk(folder):
            yield folder
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a small file system: {error}")


@pytest.fixture(scope="module")
def cluster(disk, tmp_path_factory):
    if why := available(accounting=True):
        pytest.skip(why)
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=4, accounting=True)) as started:
        yield started


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in ELSEWHERE])
def test_fault(cluster, disk, tmp_path, name):
    if "cgroup" in name and not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.F_OK):
        pytest.skip("memory cgroups of version 1 are not here")
    chance = random.Random(int(os.environ.get("NIGHTSWEEP_SEED", "1")))
    found = FAULTS[name](Try(cluster, tmp_path / "try", chance, disk))
    assert found == Outcome(), found
