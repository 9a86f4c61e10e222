"""Whom the launcher blames, where it says ranks stand, and how it starts them in an allocation."""

import signal
import time
from types import SimpleNamespace

import pytest

from nightsweep.jobs.launch import watchdog
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.launch_files import RankExit
from nightsweep.jobs.slurm import allocation

PEER = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:29500"
NCCL = "DistBackendError: NCCL error in: ..., remote process exited or there was a network error"


def ended(run_folder, rank, code, number, at, message=None):
    if message:
        write_json(run_folder.rank_file(rank, "error.json"), {"reason": "rank_exception", "message": message})
    return RankExit(rank=rank, exit_code=code, signal=number, ended_ns=at)


@pytest.mark.parametrize("collateral", [PEER, NCCL])
def test_the_rank_that_raised_for_itself_is_blamed_whatever_the_clocks_say(tmp_path, collateral):
    run_folder = RunFolder(tmp_path)
    ends = [ended(run_folder, 0, 1, None, 5, collateral), ended(run_folder, 1, 1, None, 9, "ValueError: my own fault")]
    assert watchdog.first_failure(run_folder, ends).rank == 1


def test_a_killed_rank_is_blamed_before_those_that_raised_because_of_it(tmp_path):
    run_folder = RunFolder(tmp_path)
    ends = [ended(run_folder, 0, 1, None, 5, "ValueError: what"), ended(run_folder, 1, None, signal.SIGKILL, 9)]
    assert watchdog.first_failure(run_folder, ends).rank == 1


def test_a_watchdog_that_aborts_is_not_blamed_for_an_earlier_exception(tmp_path):
    run_folder = RunFolder(tmp_path)
    ends = [ended(run_folder, 0, None, signal.SIGABRT, 9), ended(run_folder, 1, 1, None, 5, "ValueError: first")]
    assert watchdog.first_failure(run_folder, ends).rank == 1


@pytest.mark.parametrize(("beat", "where"), [(None, "before its first sign of life"), ("step 17\n{}", "in step 17")])
@pytest.mark.parametrize(
    ("end", "reason", "message"),
    [
        ({"exit_code": 3}, "rank_exit", "rank 1 ended with code 3 {where}, without a traceback"),
        ({"signal": signal.SIGSEGV}, "rank_killed", "rank 1 died of signal 11 (SIGSEGV) {where}"),
        (
            {"signal": signal.SIGKILL, "out_of_memory": True},
            "host_out_of_memory",
            "rank 1 died of signal 9 (SIGKILL) {where}",
        ),
    ],
)
def test_the_message_says_where_the_rank_stood(tmp_path, beat, where, end, reason, message):
    run_folder = RunFolder(tmp_path)
    if beat:
        run_folder.rank_file(1, "heartbeat").write_text(beat)
    outcome = watchdog.blame(run_folder, RankExit(rank=1, host="h", **end))
    assert (outcome.reason, outcome.message) == (reason, message.format(where=where))


def test_a_rank_that_fails_between_two_looks_has_failed(tmp_path, monkeypatch):
    """Its end was once looked for twice, first whether it was bad, then whether it was there."""
    looks = iter([[]])
    bad = RankExit(rank=0, host="h", exit_code=1)
    monkeypatch.setattr(watchdog, "exits", lambda *_: next(looks, [bad]))
    ranks = object.__new__(watchdog.Ranks)
    ranks.run_folder, ranks.limits, ranks.signs = RunFolder(tmp_path), watchdog.Limits(60, 60), []
    ranks.point = complete({"workload": "image", "model": "mobilenet_v2", "ranks_per_node": 1})
    ranks.started = ranks.moved = time.monotonic()
    quiet = {name: lambda *_: None for name in ("send", "pause", "wait")}
    ranks.processes = SimpleNamespace(alive=lambda: True, **quiet)
    monkeypatch.setattr(ranks, "end", lambda: None)
    ranks.run_folder.log.write_text("")
    assert ranks.watch(lambda: False).reason == "rank_exit"


def test_srun_is_told_every_number(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    point = complete({"workload": "image", "model": "mobilenet_v2", "nodes": 2, "ranks_per_node": 4})
    command = allocation.srun(point, ["python"], point.processes_per_node)
    wanted = {"--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6", "--kill-on-bad-exit=0"}
    assert wanted <= set(command)
    assert watchdog.threads(point) == 6


def test_binding_of_an_enclosing_step_does_not_reach_the_ranks(monkeypatch):
    monkeypatch.setenv("SLURM_CPU_BIND_TYPE", "mask_cpu:")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    found = allocation.environment()
    assert "SLURM_CPU_BIND_TYPE" not in found and found["SLURM_JOB_NODELIST"] == "n1"


def test_ranks_of_two_points_on_one_node_meet_at_different_ports():
    point = complete({"workload": "image", "model": "mobilenet_v2"})
    assert len({watchdog.master(point)[1] for _ in range(20)}) > 1
