"""A point and its Slurm: nodes, Python, what Slurm is blamed for, and the records of lost points."""

import os
import time
from datetime import UTC, datetime

import psutil
import pytest
from snakemake_executor_plugin_submitit import request
from snakemake_executor_plugin_submitit.hook import Loss, load
from snakemake_executor_plugin_submitit.job_end import loss_of_state
from snakemake_executor_plugin_submitit.settings import ExecutorSettings

from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.record import lost
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.launch_files import Job
from nightsweep.jobs.slurm import allocation, profile
from nightsweep.jobs.slurm.point_jobs import PointJobs
from nightsweep.jobs.sweep.driver import Run
from nightsweep.jobs.sweep.sweep import load as load_sweep


def test_nodes_are_for_one_point_alone_unless_the_profile_shares_them(tmp_path):
    shipped = profile.read(ROOT / "profiles/slurm").settings
    assert type(load(shipped.hook)) is PointJobs
    assert shipped.exclusive and not ExecutorSettings().exclusive
    alone = request.from_job({"gpus_per_node": 1}, 1, shipped)
    assert alone.parameters()["exclusive"] is True and "--exclusive" in alone.options()
    (tmp_path / "config.yaml").write_text("submitit-exclusive: false\n")
    shared = request.from_job({"gpus_per_node": 1}, 1, profile.read(tmp_path).settings)
    assert "exclusive" not in shared.parameters() and "--exclusive" not in shared.options()


def test_a_profile_without_the_hook_runs_nothing(tmp_path):
    """Lost points would have no record."""
    sweep = load_sweep(ROOT / "config/demo.yaml")
    with pytest.raises(SystemExit, match="submitit-hook"):
        Run(tmp_path / "results/demo", sweep).begin(ExecutorSettings())
    assert not (tmp_path / "results").exists()


def test_ranks_run_with_the_python_that_the_profile_names(monkeypatch):
    monkeypatch.setenv("NIGHTSWEEP_PYTHON", "apptainer exec 'my image.sif' python")
    assert allocation.python() == ["apptainer", "exec", "my image.sif", "python"]


def test_the_hour_that_comes_twice_ends_no_job(tmp_path, monkeypatch):
    """A job that ends in it, when summer time is over, was taken for one that had ended an hour ago."""
    end = datetime(2026, 10, 25, 1, 30, tzinfo=UTC).timestamp()
    answers(tmp_path, monkeypatch, EndTime=end)
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        assert allocation.times_ns() == {"EndTime": int(end) * 10**9}
    finally:
        monkeypatch.undo()
        time.tzset()


def answers(tmp_path, monkeypatch, **times):
    """Let scontrol say so of this process's job, times in its own time zone."""
    scontrol = tmp_path / "scontrol"
    lines = (f"date -d @{at:.0f} +'{name}=%Y-%m-%dT%H:%M:%S'" for name, at in times.items())
    scontrol.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "1")


@pytest.mark.parametrize("behind_s", [0, 100])
def test_a_node_whose_clock_is_behind_has_no_more_time_left(tmp_path, monkeypatch, behind_s):
    """Slurm would end the job before the launcher had written a record."""
    began, end = psutil.Process().create_time(), time.time() + 300
    answers(tmp_path, monkeypatch, StartTime=began - 5 if behind_s == 0 else began + behind_s, EndTime=end)
    left = allocation.seconds_left() - (end - time.time())
    assert left == pytest.approx(-behind_s, abs=5)


def test_who_sets_the_wall_clock_takes_no_time_from_a_job(tmp_path, monkeypatch):
    """psutil counts from the boot, whose time moves with the wall clock; that of the launch does not."""
    began = psutil.Process().create_time()
    answers(tmp_path, monkeypatch, StartTime=began, EndTime=time.time() + 300)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: began - 100)
    assert allocation.seconds_left() == pytest.approx(300, abs=5)


def test_slurm_is_blamed_where_it_says_so():
    assert allocation.blame("") is None
    assert allocation.blame("srun: error: n1: task 0: Exited with exit code 1\n") is None
    said = "srun: error: Node failure on n2"
    assert allocation.blame(f"{said}\n") == ("node_failure", said)
    said = "srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure"
    more = "srun: error: Application launch failed: Communication connection failure"
    assert allocation.blame(f"{said}\n{more}\n") == ("node_failure", said)
    assert Loss("node_failure", said).named_nodes() == ["n2"]
    assert loss_of_state("NODE_FAIL", "n[1-2]").named_nodes() == []
    said = "slurmstepd: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***"
    assert allocation.blame(said)[0] == "preempted"


def test_records_that_are_set_aside(tmp_path):
    for reason, goes in (("node_failure", True), ("cancelled", True), ("disk_full", True), ("rank_exception", False)):
        folder = tmp_path / reason
        folder.mkdir()
        write_json(folder / "record.json", {"status": "failed", "reason": reason})
        assert (lost.set_aside(folder) == reason) == goes
        assert (folder / "record.json").exists() != goes
    assert lost.set_aside(tmp_path / "none") is None
    (tmp_path / "cancelled/record.json").write_text("{half a rec")
    assert lost.set_aside(tmp_path / "cancelled") == "unreadable"
    assert not (tmp_path / "cancelled/record.json").exists()


def test_record_of_a_lost_point():
    job = Job(sweep="s", point_id="p", settings={"workload": "image", "model": "mobilenet_v2", "nodes": 2})
    record = lost.lost_record(job, "launch_failed", "no such partition", 1, None)
    assert (record.status, record.reason, record.world_size) == ("failed", "launch_failed", 2)
    assert lost.lost_record(job, "cancelled", "by a person", 1, "7").status == "cancelled"
    assert lost.lost_record(job, "node_failure", "n1", 1, "7").status == "failed"
