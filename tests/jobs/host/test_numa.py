"""Which CPUs a rank is bound to."""

import os

import pytest

from nightsweep.jobs.host import numa
from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.launch import watchdog
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank import worker
from tests.fakes.nvml import gpu

pytestmark = pytest.mark.usefixtures("bare")
IMAGE = {"workload": "image", "model": "mobilenet_v2"}


@pytest.fixture
def host(monkeypatch, nvml):
    """Eight cores of one thread and four GPUs, two of them near to the first four cores. What this process is bound to
    is kept in a list, and starts as all."""
    bound = [set(range(8))]
    nvml(*(gpu(n, near=0b1111 << (4 * (n // 2))) for n in range(4)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(numa, "host_cores", lambda: [[n] for n in range(8)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: bound[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    return bound


@pytest.mark.parametrize(
    ("visible", "rank", "cpus"),
    [("0", 0, [0, 1]), ("0,1,2,3", 0, [0, 1]), ("2,3", 1, [6, 7]), ("3", 0, [6, 7])],
)
def test_a_rank_has_the_same_cpus_in_a_job_of_one_gpu_and_of_several(host, monkeypatch, visible, rank, cpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert numa.bind(rank, "none") == cpus == sorted(host[-1])


def test_a_rank_that_drives_several_gpus_has_the_shares_of_all(host):
    assert worker.bind_cpus(complete(IMAGE | {"strategy": "dp", "ranks_per_node": 4}), 0) == list(range(8))
    host[:] = [set(range(8))]
    assert worker.bind_cpus(complete(IMAGE | {"strategy": "ddp", "ranks_per_node": 4}), 2) == [4, 5]


def test_what_a_scheduler_gave_stays(host):
    host.append({1, 2, 3})
    assert numa.bind(0, "none") == [1, 2, 3]


def test_near_is_all_that_is_near(host):
    assert numa.bind(1, "near") == [0, 1, 2, 3]
    host.append(set(range(8)))
    assert numa.bind(1, "far") == [4, 5, 6, 7]


def test_ranks_on_the_cpu_keep_what_they_have(host):
    assert worker.bind_cpus(complete(IMAGE | {"device": "cpu"}), 0) == list(range(8)) and len(host) == 1


def test_threads_are_those_of_a_share(host, monkeypatch):
    monkeypatch.setattr(watchdog.allocation, "inside", lambda: False)
    counts = {"ddp": {1: 2, 2: 2, 4: 2}, "dp": {2: 4, 4: 8}}
    for strategy, of in counts.items():
        for ranks, wanted in of.items():
            point = complete(IMAGE | {"strategy": strategy, "ranks_per_node": ranks})
            assert watchdog.threads(point) == wanted
    assert watchdog.threads(complete(IMAGE | {"device": "cpu", "ranks_per_node": 2})) == 4


def test_cpus_near_and_far():
    near = numa.cpus_of_mask([0b1100, 1])
    assert near == {2, 3, 64}
    assert numa.choose_cpus(near, {0, 1, 2, 3}, "near") == {2, 3}
    assert numa.choose_cpus(near, {0, 1, 2, 3}, "far") == {0, 1}
    with pytest.raises(Unsupported, match="numa far: none of this job's 2 CPUs"):
        numa.choose_cpus(near, {2, 3}, "far")


def test_a_gpus_share_is_the_same_however_many_the_job_has():
    """Two sockets of four cores, the second thread of each is 8 on; two GPUs on each."""
    cores = [(n, n + 8) for n in range(8)]
    near = [{*range(4), *range(8, 12)}] * 2 + [{*range(4, 8), *range(12, 16)}] * 2
    shares = numa.shares(near, cores)
    assert shares == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}, {6, 7, 14, 15}]
    assert numa.shares([set(range(16))], cores) == [set(range(16))]
    assert numa.shares([{0, 1}] * 3, [(0, 1)]) == [set()] * 3
    assert numa.choose_share({0, 1}, set(range(16))) == {0, 1}
    assert numa.choose_share({0, 1}, {1, 2, 3}) == {1, 2, 3}  # what a scheduler gave
    assert numa.choose_share(set(), {1, 2}) == {1, 2}
