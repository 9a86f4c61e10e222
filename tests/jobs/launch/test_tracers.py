"""Tracers of real ranks, which compute on the CPU: Kineto where nsys fails, and what is left of nsys."""

import dataclasses
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from nightsweep.jobs.launch import launch, watchdog
from nightsweep.jobs.launch.attempt import Attempt, Launcher, RunEnd
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.launch.tracer_choice import Choice
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.launch_files import Job
from nightsweep.jobs.record.record import Run
from nightsweep.jobs.sweep.order import Order
from tests.fakes.nsys import AGENT, HANGS, VERSION, left_behind, nano, stand_in


def measure(tmp_path, point, servers):
    """Launch the point here; its record and folder."""
    folder = tmp_path / "points" / point.id
    folder.mkdir(parents=True)
    job = Job(sweep="t", point_id=point.id, settings=point.settings())
    return launch.launch(folder, job, Launcher(watchdog.Limits(120, 300), lambda: False, servers)), folder


def test_ranks_are_told_that_gpu_metrics_cannot_be_had(tmp_path, monkeypatch):
    seen = {}

    def run(attempt, kind, *_, **__):
        seen[kind] = attempt.gpu_metrics
        return RunEnd(Run(status="ok"))

    monkeypatch.setattr(launch, "choose_tracer", lambda *_: Choice("nsys", "v; no GPU metrics: x", "v", "x"))
    monkeypatch.setattr(launch.Attempt, "run", run)
    measure(tmp_path, nano(tracer="nsys"), Servers())
    assert seen == {"timed": True, "traced": False}


def trace(folder, rank):
    return gzip.decompress((folder / f"traced/trace-r{rank}.json.gz").read_bytes()).decode()


def under_nsys(tmp_path, monkeypatch, servers, point, profile):
    """Launch ranks that compute on the CPU as if nsys were to trace them; the record and its folder."""
    point = dataclasses.replace(point, tracer="nsys")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(launch, "choose_tracer", lambda *_: Choice("nsys", "a stand-in", VERSION))
    calls = stand_in(tmp_path, monkeypatch, profile=profile).with_name("calls")
    record, folder = measure(tmp_path, point, servers)
    ranks = point.traced_ranks()
    assert calls.read_text().count("-m nightsweep.jobs.rank.worker") == len(ranks)
    assert sorted(path.name for path in folder.glob("traced/trace-*")) == [f"trace-r{r}.json.gz" for r in ranks]
    assert left_behind(tmp_path) == []
    return record, folder


def kineto_took_over(record, folder, words):
    """The record is of a point that is as good as any; it says how nsys failed."""
    assert (record.status, record.reason, record.failure) == ("ok", None, None)
    assert [run.status for _, run in record.runs.named()] == ["ok", "ok", "skipped"]
    assert record.tracer.used == "kineto"
    assert record.tracer.reason.startswith("under nsys: ") and words in record.tracer.reason
    assert len((folder / "timed/steps-r0.jsonl").read_text().splitlines()) == 3
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["timed", "traced"]
    assert '"step 1"' in trace(folder, record.world_size - 1)


# The rank computes on the CPU, where it could not open nsys' capture range; like nsys' it has a session of its own.
RUNS_THE_RANK = """
while [ "$1" != -o ]; do shift; done; shift 2
for folder; do :; done; sed -i s/nsys/none/ "$folder/run.json"
setsid "$@"
"""


@pytest.fixture(scope="module")
def without_report(tmp_path_factory, servers):
    """A point whose rank (one, to save time) ran well under an nsys that left no report."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        point = nano(ranks_per_node=1)
        return under_nsys(tmp_path_factory.mktemp("without"), monkeypatch, servers, point, RUNS_THE_RANK)


@pytest.mark.slow
def test_where_nsys_leaves_no_report_kineto_traces_lightly(without_report):
    kineto_took_over(*without_report, "nsys left no report for rank 0")
    assert "python_function" not in trace(without_report[1], 0)


@pytest.fixture
def timed_before(monkeypatch, without_report):
    """The timed run is there already; under nsys a rank has four seconds for a sign of life."""
    record, measured = without_report
    run = Attempt.run

    def shorter(self, kind, tracer, blocks, **more):
        if kind == "timed":
            shutil.copytree(measured / "timed", self.folder / "timed")
            return RunEnd(record.runs.timed)
        limits = watchdog.Limits(4, 60) if tracer == "nsys" else self.launcher.limits
        launcher = dataclasses.replace(self.launcher, limits=limits)
        return run(dataclasses.replace(self, launcher=launcher), kind, tracer, blocks, **more)

    monkeypatch.setattr(Attempt, "run", shorter)


@pytest.mark.slow
def test_where_nsys_hangs_kineto_traces(tmp_path, monkeypatch, servers, timed_before):
    record, folder = under_nsys(tmp_path, monkeypatch, servers, nano(), HANGS)
    kineto_took_over(record, folder, "no rank moved for 4 s: no sign of life: rank 0, 1")


@pytest.mark.slow
def test_where_nsys_dies_kineto_traces_the_asked_rank_deep_with_stacks_shapes_and_memory(
    tmp_path, monkeypatch, servers, timed_before
):
    profile, point = AGENT + "echo 'nsys: out of luck' >&2; exit 1", nano(trace_ranks="1", trace_preset="deep")
    record, folder = under_nsys(tmp_path, monkeypatch, servers, point, profile)
    kineto_took_over(record, folder, "rank 1 ended with code 1 before its first sign of life, without a traceback")
    events = json.loads(trace(folder, 1))["traceEvents"]
    assert any(event.get("cat") == "python_function" for event in events)
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert any(event["name"] == "[memory]" for event in events)


def test_a_look_that_was_stopped_under_nsys_is_not_taken_up_by_kineto(tmp_path, monkeypatch):
    ran = []

    def stopped(self, kind, tracer, blocks, **_):
        ran.append((kind, tracer))
        return RunEnd(Run(status="failed", reason="interrupted", message="asked to stop"))

    monkeypatch.setattr(Attempt, "run", stopped)
    attempt = Attempt(tmp_path, 1, nano(), Launcher(watchdog.Limits(1, 1), lambda: True, Servers()))
    launch.run_traced(attempt, Choice("nsys", "a stand-in"))
    assert ran == [("traced", "nsys")]


@pytest.mark.slow
def test_a_rank_under_nsys_shows_its_stack_and_leaves_nothing_behind(tmp_path, monkeypatch):
    """nsys gives the rank a session of its own, and would die of the signal that asks for stacks."""
    stand_in(tmp_path, monkeypatch, profile=AGENT + RUNS_THE_RANK)
    run_folder = RunFolder(tmp_path / "traced.1")
    run_folder.path.mkdir()
    Order(settings=nano(device="cpu").settings(), tracer="nsys").write(run_folder)
    port = watchdog.hold_port()
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
    env = {**os.environ, **group, "RANK": "0", "LOCAL_RANK": "0"}
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "nightsweep.jobs.rank.supervisor", str(run_folder.path)], env=env
    )
    try:
        wait_for(run_folder.rank_file(0, "heartbeat"), "group")  # where it waits for a rank that never comes
        supervisor.send_signal(signal.SIGUSR1)
        wait_for(run_folder.rank_file(0, "stacks.txt"), "jobs/rank/worker.py")
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(60)
    finally:
        supervisor.kill()
    assert run_folder.rank_file(0, "exit.json").exists()
    assert left_behind(tmp_path) == []


def wait_for(path, word):
    deadline = time.monotonic() + 200
    while not path.exists() or word not in path.read_text():
        assert time.monotonic() < deadline, f"{path.name} never said {word}"
        time.sleep(0.1)
