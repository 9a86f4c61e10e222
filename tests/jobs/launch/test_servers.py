"""Ranks that are forked from a node's server, beside ranks that are new Pythons."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from nightsweep.jobs.launch import starts, watchdog
from nightsweep.jobs.launch.attempt import Attempt, Launcher, last_words
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.point import plan
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank import server
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.sweep.order import Order

NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 2, "device": "cpu", "timed_steps": 3,
        "warmup_steps": 1, "traced_steps": 0}  # fmt: skip
IMAGE = {"workload": "image", "model": "mobilenet_v2", "image_size": 32, "micro_batch": 4, "loader_workers": 2,
         "device": "cpu", "timed_steps": 3, "warmup_steps": 1, "traced_steps": 0}  # fmt: skip


def run(servers, folder, **settings):
    """Start the ranks of a point and watch them to their end; the outcome, and the processes."""
    point = complete(settings)
    folder.mkdir()
    order = Order(settings=point.settings(), blocks=plan.timed_blocks(point))
    ranks = watchdog.Ranks(RunFolder(folder), order, watchdog.Limits(200, 400), {}, servers)
    return ranks.watch(lambda: False), ranks.processes


def losses(folder, rank=0):
    return [json.loads(line)["loss"] for line in (folder / f"steps-r{rank}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Folders of starts that were forked one after the other, the last with another variable; the server of each."""
    folder, pids = tmp_path_factory.mktemp("forked"), {}
    with Servers() as servers:
        bad = NANO | {"fault": "exception@rank0:step2"}
        starts = {"nano": NANO, "image": IMAGE, "again": NANO, "bad": bad, "last": NANO}
        for name, settings in (starts | {"other": NANO | {"cpu_threads": 3}}).items():
            outcome, _ = run(servers, folder / name, **settings)
            assert outcome.reason == ("rank_exception" if name == "bad" else None), outcome
            pids[name] = servers.process.pid
    return folder, pids


@pytest.fixture
def forked(served):
    return served[0]


def test_a_forked_rank_trains_as_a_new_python_does(tmp_path, forked):
    with Servers(fork=False) as servers:
        for name, settings in (("nano", NANO), ("image", IMAGE)):
            run(servers, tmp_path / name, **settings)
            assert losses(tmp_path / name) == losses(forked / name)
        assert servers.process is None


def test_a_start_that_failed_leaves_nothing_to_the_next_one(forked):
    assert losses(forked / "nano") == losses(forked / "again") == losses(forked / "last")
    assert "DrillError" in (forked / "bad/rank0.traceback.txt").read_text()


def test_each_rank_is_a_process_of_its_own_with_its_own_log(forked):
    pids = [json.loads((forked / name / "rank0.pid.json").read_text())["pid"] for name in ("nano", "again", "last")]
    assert len(set(pids)) == 3
    assert (forked / "nano/rank0.log").read_text().endswith("rank 0 is done\n")


def test_servers_are_started_anew_for_other_variables_and_no_others(served):
    *pids, other = served[1].values()
    assert len(set(pids)) == 1 and other not in pids


def test_where_no_rank_can_be_forked_they_are_new_pythons_and_why_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif sys.orig_argv[1:3] == ['-m', 'nightsweep.jobs.rank.server']:\n"
        "    sys.modules['transformers'] = None\n"
    )
    point, limits = complete(NANO), watchdog.Limits(200, 400)
    with Servers() as servers:
        attempt = Attempt(tmp_path, 1, point, Launcher(limits, lambda: False, servers), [])
        order = Order(settings=point.settings(), blocks=plan.timed_blocks(point))
        assert attempt.ranks(RunFolder(tmp_path / "timed"), order).reason is None and not servers.fork
    said = capsys.readouterr().out
    assert said.startswith("ranks cannot be forked, so each starts a new Python: ModuleNotFoundError: ")
    assert "transformers" in said


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("ImportError: no scipy\nsrun: error: n1: task 0: Exited with exit code 1\n", "ImportError: no scipy"),
        ("CUDA began\n[2026-11-28T00:00] slurmstepd: error: x\nslurmstepd-n1: error: y\n", "CUDA began"),
        ("srun: error: Unable to confirm allocation\n", "srun: error: Unable to confirm allocation"),
        (None, ""),
    ],
)
def test_why_a_server_has_ended(tmp_path, log, why):
    if log:
        RunFolder(tmp_path).log.write_text(log)
    assert last_words(RunFolder(tmp_path)) == why


def test_a_server_that_holds_a_gpu_forks_nobody(monkeypatch, capsys):
    monkeypatch.setattr(server, "preload", lambda: "CUDA began")
    monkeypatch.setattr(server.os, "dup2", lambda *_: None)
    monkeypatch.setattr(server, "end_with_parent", lambda: None)
    assert server.main() == 1
    assert capsys.readouterr().out == "no rank can be forked: CUDA began\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_do_not_outlive_their_server(tmp_path, number):
    point = complete(NANO | {"timed_steps": 100_000})
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    order = Order(settings=point.settings(), blocks=plan.timed_blocks(point))
    with Servers() as servers:
        ranks = watchdog.Ranks(folder, order, watchdog.Limits(200, 400), {}, servers)
        heart = folder.rank_file(0, "heartbeat")
        while not heart.exists() or "step" not in heart.read_text():
            time.sleep(0.1)
        pid = json.loads(folder.rank_file(0, "pid.json").read_text())["pid"]
        servers.process.send_signal(number)
        outcome = ranks.watch(lambda: False)
    assert outcome.reason in ("launch_failed", "rank_killed", "interrupted"), outcome
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.kill(pid, 0)
            time.sleep(0.05)


def test_a_launcher_that_is_killed_leaves_no_process(tmp_path):
    point = complete(NANO | {"timed_steps": 100_000})
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"name": "t", "points": [{"point_id": point.id, "settings": point.settings()}]}))
    folder = tmp_path / "points" / point.id
    command = [sys.executable, "-m", "nightsweep.jobs.launch.launch", str(folder), "--sweep", str(sweep)]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    heart = folder / "timed.1/rank0.heartbeat"
    while not heart.exists() or "step" not in heart.read_text():
        time.sleep(0.1)
    pid = json.loads((folder / "timed.1/rank0.pid.json").read_text())["pid"]
    launcher.kill()
    launcher.wait()
    with pytest.raises(ProcessLookupError):
        for _ in range(200):
            os.kill(pid, 0)
            time.sleep(0.05)


@pytest.fixture
def servers():
    """In place of the servers of two nodes, a process that repeats what it is sent."""
    with Servers() as found, tempfile.TemporaryFile() as log:
        found.process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(found.process.stdout.fileno(), False)
        found.log, found.told, found.said, found.is_ready = log, 0, b"", False
        yield found


def said(servers, text, folder):
    servers.process.stdin.write(text)
    servers.process.stdin.flush()
    time.sleep(0.1)
    servers.listen(RunFolder(folder))
    return servers.is_ready, servers.ended


def test_a_line_that_comes_in_pieces_counts_once_it_is_whole(tmp_path, servers):
    assert said(servers, b"read", tmp_path) == (False, 0)
    assert said(servers, b"y\nready\nen", tmp_path) == (True, 0)
    assert said(servers, b"ded 0\nended 1", tmp_path) == (True, 1)
    assert said(servers, b"\n", tmp_path) == (True, 2)


def test_a_node_that_says_nothing_does_not_hold_up_the_launcher(tmp_path, servers, monkeypatch):
    monkeypatch.setattr(starts, "END_S", 0.3)
    assert said(servers, b"ready\nended 0\n", tmp_path) == (True, 1)
    starts.Forked(servers, RunFolder(tmp_path), nodes=2).wait()
    assert servers.process is None
