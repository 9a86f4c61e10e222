"""Faults of a night on a real Slurm, once each: nothing is lost, measured twice or given a wrong reason.

All of them, more often: python -m tests.cluster.faults, and tests.cluster.batch_faults
"""

import os
import random

import pytest

from tests.cluster.batch_faults import BATCH_FAULTS, BATCH_MIN
from tests.cluster.faults import FAULTS
from tests.cluster.slurm import Cluster, Shape, available
from tests.cluster.trial import REAL, SCRIPTS, Outcome, Trial

pytestmark = pytest.mark.slow
ONE_RANK = REAL.replace("ranks_per_node: 2", "ranks_per_node: 1")
HERE = {
    "Ctrl-C twice, ranks at work": SCRIPTS,
    "Ctrl-C twice, local profile": SCRIPTS,
    "kill -9 of the driver, local profile": SCRIPTS,
    "kill -9 of slurmstepd": SCRIPTS,
    "slurmdbd away": REAL,
    "corrupt record": SCRIPTS,
    "host out of memory (cgroup)": REAL,
}
"""Faults, and the sweep of their real points. A rank of a model takes seconds of a core to start: there are two of them
only where the fault is one of a rank."""
IN_BATCHES = {"kill -9 of the launcher": ONE_RANK, "kill -9 of a rank": REAL, "scancel": ONE_RANK}
"""The others take as long, and are like one of these, or are tried in another way by other tests."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := available(accounting=True):
        pytest.skip(why)
    with Cluster(tmp_path_factory.mktemp("cluster"), Shape(nodes=4, accounting=True)) as started:
        yield started


@pytest.mark.parametrize("name", HERE)
def test_fault(cluster, tmp_path, name):
    if "cgroup" in name and not os.access("/sys/fs/cgroup/memory/memory.limit_in_bytes", os.F_OK):
        pytest.skip("memory cgroups of version 1 are not here")
    # Of five points that sleep, one waits: there are four nodes.
    found = FAULTS[name](Trial(cluster, tmp_path / "try", chance(), real=HERE[name], points=5))
    assert found == Outcome(), found


@pytest.mark.parametrize("name", IN_BATCHES)
def test_fault_where_a_job_runs_several_points(cluster, tmp_path, name):
    trial = Trial(cluster, tmp_path / "try", chance(), batch_min=BATCH_MIN, real=IN_BATCHES[name])
    found = BATCH_FAULTS[name](trial)
    assert found == Outcome(), found


def chance():
    return random.Random(int(os.environ.get("NIGHTSWEEP_SEED", "1")))
