"""Whom the launcher blames, where it says ranks stand, and how it starts them in an allocation."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from nightsweep.jobs.launch import starts, watchdog
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.launch_files import RankExit
from nightsweep.jobs.slurm import allocation
from nightsweep.jobs.sweep.order import Order

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


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Two ranks to be watched, without processes: the ends that each look at them finds, and whether they run."""

    def make(*looks, alive=True, **settings):
        found = iter(looks)
        monkeypatch.setattr(watchdog, "exits", lambda *_: next(found, looks[-1]))
        monkeypatch.setattr(watchdog, "POLL_S", 0)
        ranks = object.__new__(watchdog.Ranks)
        ranks.run_folder, ranks.limits, ranks.signs = RunFolder(tmp_path), watchdog.Limits(60, 60), []
        ranks.point = complete({"workload": "image", "model": "mobilenet_v2", "ranks_per_node": 2} | settings)
        ranks.started = ranks.moved = time.monotonic()
        quiet = {name: lambda *_: None for name in ("send", "pause", "wait")}
        ranks.processes = SimpleNamespace(alive=lambda: alive, **quiet)
        ranks.over, ranks.port = [], watchdog.hold_port()
        monkeypatch.setattr(ranks, "end", lambda: ranks.over.append(True))
        ranks.run_folder.log.write_text("srun: what\n")
        return ranks

    return make


GOOD, ALSO_GOOD = (RankExit(rank=rank, host="h", exit_code=0) for rank in (0, 1))
BAD = RankExit(rank=0, host="h", exit_code=1)


def test_a_rank_that_fails_between_two_looks_has_failed(watched):
    """Its end was once looked for twice, first whether it was bad, then whether it was there."""
    assert watched([], [BAD]).watch(lambda: False).reason == "rank_exit"


def test_a_rank_that_was_stopped_did_not_end_well_whatever_it_says(watched):
    """A script that saves its work when it is asked to stop ends with 0: half of it was once a good result."""
    saved = RankExit(rank=0, host="h", exit_code=0, stopped=True)
    assert watched([saved, ALSO_GOOD]).watch(lambda: False).reason == "interrupted"


def test_a_rank_beside_which_another_failed_is_stopped_and_not_to_blame(watched):
    ended = [RankExit(rank=0, host="h", exit_code=0, stopped=True), RankExit(rank=1, host="h", exit_code=1)]
    command = {"workload": "command", "command": "x.py", "launcher": "torchrun", "model": None}
    ranks = watched(ended, **command)
    ranks.run_folder.rank_file(1, "log").touch()
    outcome = ranks.watch(lambda: False)
    assert (outcome.reason, outcome.failure.rank) == ("rank_exit", 1)


def test_ranks_that_are_gone_without_a_word(watched):
    outcome = watched([GOOD], alive=False).watch(lambda: False)
    assert (outcome.reason, outcome.message.rpartition(": ")[2]) == ("launch_failed", "what")


def test_ranks_that_are_gone_as_the_job_is_stopped_were_stopped(watched, monkeypatch):
    """Signals come to ranks and their launcher one after the other."""
    signals = []
    later = SimpleNamespace(sleep=lambda _: signals.append(signal.SIGINT), monotonic=time.monotonic)
    monkeypatch.setattr(watchdog, "time", later)
    assert watched([], alive=False).watch(lambda: bool(signals)).reason == "interrupted"


def test_an_end_that_is_seen_once_all_are_gone_counts(watched):
    assert watched([GOOD], [GOOD, ALSO_GOOD], alive=False).watch(lambda: False).reason is None


def test_no_rank_runs_on_where_it_cannot_be_watched(watched):
    ranks = watched([])

    def full_disk(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    ranks.processes.pause = full_disk
    with pytest.raises(OSError, match="No space"):
        ranks.watch(lambda: False)
    assert ranks.over


def test_what_started_ranks_and_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(starts, "END_S", 0.2)
    deaf = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    processes = starts.Fresh(RunFolder(tmp_path), [(deaf, {}), (["sleep", "60"], {})], {"PATH": os.environ["PATH"]})
    processes.wait()
    assert [process.returncode for process in processes.processes] == [-signal.SIGKILL, -signal.SIGTERM]


def test_what_was_started_before_one_that_cannot_be_is_ended(tmp_path):
    commands = [(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"], {}), (["/no/such/program"], {})]
    before = psutil.Process().children()  # other tests' fork server
    with pytest.raises(OSError, match="No such file"):
        starts.Fresh(RunFolder(tmp_path), commands, {"PATH": os.environ["PATH"]})
    assert not set(psutil.Process().children()) - set(before)


KILLED = """
import os, pathlib, sys
from nightsweep.jobs.launch.starts import Fresh
from nightsweep.jobs.record.folder import RunFolder
started = Fresh(RunFolder(pathlib.Path(sys.argv[1])), [(["sleep", "60"], {})], dict(os.environ))
print(started.processes[0].pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_has_not_come_to_say_so_itself_ends_with_a_launcher_that_is_killed(tmp_path):
    """A supervisor says it once it has imported what it needs."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, timeout=60)
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(int(done.stdout), 0)
            time.sleep(0.05)


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


def test_the_port_where_ranks_meet_is_theirs_before_they_listen_and_until_they_have_ended(tmp_path):
    """Another launcher on this host may draw one at any time."""
    point = complete({"workload": "image", "model": "mobilenet_v2", "device": "cpu"})
    order, limits = Order(settings=point.settings()), watchdog.Limits(300, 300)
    ranks = watchdog.Ranks(RunFolder(tmp_path), order, limits, {}, None)
    port = ranks.port.getsockname()[1]
    assert f"MASTER_PORT={port}".encode() in Path(f"/proc/{ranks.processes.processes[0].pid}/environ").read_bytes()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    ranks.watch(lambda: True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
