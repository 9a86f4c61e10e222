"""How many processes a strategy starts, whose samples count, and the variables that ranks get."""

from pathlib import Path

import pytest

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.launch import watchdog
from nightsweep.jobs.point.environment import environment
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.worker import pick_device
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.slurm import allocation
from nightsweep.jobs.telemetry.trace import nsys

LLM = {"workload": "llm", "model": "llama-1b", "nodes": 2, "ranks_per_node": 4, "micro_batch": 3}


def rank_environment(point):
    """What its ranks get."""
    with watchdog.hold_port() as held:
        return watchdog.rank_environment(point, held)


def counted(**settings):
    """Samples of a micro-batch by rank."""
    point = complete(LLM | settings)
    return [point.samples(rank) for rank in range(point.processes)]


def test_samples_of_ranks_that_share_them_count_once():
    assert counted() == [3] * 8
    assert counted(strategy="tp", replicas=2) == [3, 0, 0, 0] * 2
    assert counted(strategy="pp") == [3] + [0] * 7
    assert counted(strategy="fsdp2", tensor_parallel=2, replicas=2) == [3, 0] * 4
    assert counted(strategy="dp", nodes=1) == [12]


def test_one_process_drives_all_gpus_of_dp(monkeypatch):
    point = complete(LLM | {"strategy": "dp", "nodes": 1})
    assert (point.processes, point.world_size, point.gpus_per_node()) == (1, 4, 4)
    assert 0 in point.traced_ranks()
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    told = allocation.srun(point, ["x"], point.processes_per_node)
    assert "--ntasks=1" in told and "--ntasks-per-node=1" in told
    assert rank_environment(point)["WORLD_SIZE"] == "1"


def test_ranks_share_the_cpus_of_their_node(monkeypatch):
    for name in ("OMP_NUM_THREADS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(watchdog.os, "sched_getaffinity", lambda _: set(range(32)))
    told = [
        rank_environment(complete(LLM | settings))["OMP_NUM_THREADS"]
        for settings in ({"nodes": 1}, {"nodes": 1, "strategy": "dp"}, {"nodes": 1, "cpu_threads": 3})
    ]
    assert told == ["8", "32", "3"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [({}, False), ({"cuda_graph": True}, True), ({"compile": "max-autotune"}, True), ({"compile": "default"}, False)],
)
def test_nsys_sees_the_kernels_of_graphs(settings, told):
    command = nsys.profile_command(RunFolder(Path("timed")), 1, complete(LLM | settings))
    assert ("--cuda-graph-trace=node" in command) is told


def test_nccl_is_told_what_to_send_over():
    def told(**settings):
        return environment(complete(LLM | settings))

    shm = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    assert told() == {} and told(nccl_transport="shm") == shm
    assert told(nccl_transport="sockets") == shm | {"NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}
    assert told(nccl_algo="tree", nccl_proto="ll") == {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "ll"}
    assert told(nccl_ctas=8) == {"NCCL_MAX_CTAS": "8"}


def test_nccl_cannot_be_told_anything_on_a_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(Unsupported, match="settings of NCCL need GPUs"):
        pick_device(complete(LLM | {"nccl_transport": "shm"}), 0)


@pytest.mark.parametrize(
    ("allocator", "value"),
    [("default", None), ("expandable", "expandable_segments:True"), ("async", "backend:cudaMallocAsync")],
)
def test_the_allocator_is_told_before_torch_is_loaded(monkeypatch, allocator, value):
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    told = environment(complete(LLM | {"allocator": allocator, "nodes": 1}))
    assert [told.get(name) for name in names] == [value, value]


def test_gpus_that_slurm_gave_and_torch_does_not_see_are_no_reason_for_the_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert pick_device(complete(LLM), 0).type == "cpu"
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    with pytest.raises(Unsupported, match="does not see them"):
        pick_device(complete(LLM), 0)
    assert pick_device(complete(LLM | {"device": "cpu"}), 0).type == "cpu"
