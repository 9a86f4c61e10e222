"""Jobs that share a GPU (here: the CPU), and the search for the largest batch."""

import errno
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from nightsweep.jobs.launch import batch_search, tenants, watchdog
from nightsweep.jobs.launch.attempt import Attempt, Launcher, RunEnd
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank import worker
from nightsweep.jobs.record.failures import TOO_FEW_SAMPLES, reason_of
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.record import Run
from nightsweep.jobs.sweep.order import Order
from tests.jobs.launch.test_launch import NANO, launch

WRITES_WHAT_IT_SEES = """import os, pathlib, sys
if "nightsweep.jobs.rank.worker" in sys.orig_argv:
    pathlib.Path(sys.orig_argv[-1], "seen").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    os._exit(0)
"""


@pytest.mark.slow
def test_another_tenant_works_beside_the_measured_one(tmp_path):
    record, folder = launch(tmp_path, tenants=2, ranks_per_node=1)
    assert record["status"] == "ok", record["message"]
    assert list(folder.glob("tenant-*")) == []  # ended, and nothing left


@pytest.mark.slow
def test_a_tenant_that_fails_is_told(tmp_path):
    record, folder = launch(tmp_path, tenants=2, ranks_per_node=1, fault="exception@rank0:step0")
    assert record["reason"] == "rank_exception" and record["message"].startswith("another tenant: rank 0: DrillError")
    assert list(folder.glob("tenant-*")) == []


@pytest.mark.slow
def test_a_tenant_that_dies_during_the_look_is_told(tmp_path):
    run_folder, point = RunFolder(tmp_path / "timed.1"), complete(NANO | {"tenants": 2, "warmup_steps": 1})
    tenant = RunFolder(tmp_path / "tenant-1.timed.1")
    with (
        pytest.raises(tenants.TenantError, match=r"^another tenant: rank 0 died of signal 9 \(SIGKILL\) in step \d+$"),
        tenants.beside(run_folder, Order(settings=point.settings()), watchdog.Limits(60, 120), lambda: False),
    ):
        os.kill(read_json(tenant.rank_file(0, "pid.json"), dict)["pid"], signal.SIGKILL)
        while read_json(tenant.rank_file(0, "exit.json"), dict) is None:
            time.sleep(0.05)
    assert not tenant.path.exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, True),
        ({"tenants": 2}, False),
        ({"strategy": "dp"}, True),
        ({"strategy": "dp", "ranks_per_node": 2}, False),
    ],
)
def test_only_a_gpu_of_its_own_is_a_ranks_for_its_energy(monkeypatch, settings, named):
    own = SimpleNamespace(uuid="7d4f0a34-0000-0000-0000-000000000000")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: own)
    found = worker.uuid(torch.device("cuda", 0), complete(NANO | {"device": "cuda"} | settings))
    assert found == (f"GPU-{own.uuid}" if named else None)


def test_mps_without_its_program(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tenants.TenantError) as caught, tenants.service(complete(NANO | {"tenants": 2, "mps": True})):
        pass
    assert caught.value.outcome.reason == "unsupported_here"


def test_mps_is_started_and_ended(tmp_path, monkeypatch):
    """By a program that notes how it is called, for there is no GPU here."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "$1 $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls\ncat >> {tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with tenants.service(complete(NANO | {"tenants": 2, "mps": True})) as variables:
        pipe = variables["CUDA_MPS_PIPE_DIRECTORY"]
    calls = (tmp_path / "calls").read_text().split("\n")
    assert calls[0] == f"-d {pipe}" and calls[-3:] == [f" {pipe}", "quit", ""]


@pytest.mark.parametrize(("told", "given"), [("1,2", "GPU-b,GPU-c"), ("GPU-b", None), ("MIG-b", None), (None, None)])
def test_mps_counts_gpus_as_the_ranks_do(tmp_path, monkeypatch, told, given):
    """The second and third GPU of a host are the service's first and second: indices would tell them wrongly."""
    control, smi = tmp_path / "nvidia-cuda-mps-control", tmp_path / "nvidia-smi"
    control.write_text(f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" >> {tmp_path}/calls\ncat > {tmp_path}/quit\n')
    smi.write_text("#!/bin/sh\nfor g in 0,GPU-a 1,GPU-b 2,GPU-c; do echo $g,H200,1,580; done\n")
    for program in (control, smi):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if told is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    with tenants.service(complete(NANO | {"tenants": 2, "mps": True})) as variables:
        assert variables.get("NIGHTSWEEP_GPUS") == given
    assert (tmp_path / "calls").read_text().split() == ([given or told] * 2 if told else [])


@pytest.mark.parametrize(("given", "seen"), [("GPU-b,GPU-c", "GPU-b,GPU-c"), (None, "1,2")])
def test_a_rank_sees_its_gpus_as_the_service_counts_them(tmp_path, given, seen):
    """The ranks alone: what supervises them looks at the GPUs through NVML, which knows the host's indices."""
    (tmp_path / "sitecustomize.py").write_text(WRITES_WHAT_IT_SEES)
    run_folder = RunFolder(tmp_path / "timed.1")
    run_folder.path.mkdir()
    Order(settings=complete(NANO).settings(), samplers=False).write(run_folder)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    env |= {"CUDA_VISIBLE_DEVICES": "1,2"} | ({"NIGHTSWEEP_GPUS": given} if given else {})
    subprocess.run(
        [sys.executable, "-m", "nightsweep.jobs.rank.supervisor", str(run_folder.path)], env=env, timeout=200
    )
    assert read_json(run_folder.rank_file(0, "exit.json"), dict)["exit_code"] == 0
    assert (run_folder.path / "seen").read_text() == seen


@pytest.mark.parametrize("limit", [*range(1, 40), 100, 1000])
@pytest.mark.parametrize("start", [1, 3, 8])
def test_the_largest_batch_is_found_to_an_eighth(start, limit):
    asked = []

    def fits(size):
        asked.append(size)
        return size <= limit

    found = batch_search.largest(start, fits)
    if start > limit:
        assert found is None
    else:
        assert found <= limit < found + max(1, found // 8) + 1
    assert len(set(asked)) == len(asked) <= 16


def searching(tmp_path, monkeypatch, outcome_of):
    """A search whose starts end as `outcome_of` a size says."""
    settings = {"workload": "image", "model": "resnet50", "micro_batch": 8, "batch_search": True}

    def run(self, kind, tracer, blocks, *, samplers):
        reason, message = outcome_of(self.point.micro_batch)
        return RunEnd(Run(status="failed" if reason else "ok", reason=reason, message=message))

    monkeypatch.setattr(Attempt, "run", run)
    limits = watchdog.Limits(9, 9)
    return batch_search.search(Attempt(tmp_path, 1, complete(settings), Launcher(limits, lambda: False, Servers())))


@pytest.mark.parametrize("end", [("gpu_out_of_memory", "rank 0: no"), ("rank_exception", f"rank 0: {TOO_FEW_SAMPLES}")])
def test_a_search_finds_the_largest_that_fits(tmp_path, monkeypatch, end):
    assert 44 < searching(tmp_path, monkeypatch, lambda size: end if size > 50 else (None, None)) <= 50


def test_a_search_ends_at_another_failure(tmp_path, monkeypatch):
    died = ("rank_killed", "rank 1 died")
    with pytest.raises(batch_search.SearchError, match="rank 1 died") as caught:
        searching(tmp_path, monkeypatch, lambda size: died if size > 20 else (None, None))
    assert caught.value.ended.run.reason == "rank_killed"


def test_a_search_without_a_size_that_fits_says_why(tmp_path, monkeypatch):
    with pytest.raises(batch_search.SearchError, match="no memory") as caught:
        searching(tmp_path, monkeypatch, lambda size: ("gpu_out_of_memory", "no memory"))
    assert caught.value.ended.run.reason == "gpu_out_of_memory"


def test_memory_that_a_library_misses_is_memory():
    for text in ("CUDA error: out of memory", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"):
        assert reason_of(RuntimeError(text))[0] == "gpu_out_of_memory"


def test_a_full_disk_or_quota_is_told_from_other_errors():
    for number, reason in ((errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EIO, "rank_exception")):
        assert reason_of(OSError(number, "as it says"))[0] == reason
