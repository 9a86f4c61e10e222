"""The record's type: its closed lists, its page, and how failed and lost points fill it."""

import subprocess
import sys

import pytest
import tomlkit
from msgspec import to_builtins

from nightsweep.analysis.tables import failures
from nightsweep.jobs.host.facts import ROOT
from nightsweep.jobs.launch import launch, watchdog
from nightsweep.jobs.launch.attempt import Attempt, Launcher, RunEnd
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.record import lost
from nightsweep.jobs.record.failures import REASONS
from nightsweep.jobs.record.json_files import json_line, read_json, write_json
from nightsweep.jobs.record.launch_files import Event, Job, RankResult, Window
from nightsweep.jobs.record.point_folder import events_of
from nightsweep.jobs.record.record import Failure, Record, Run, Runs

JOB = Job(sweep="s", point_id="p", settings={"workload": "image", "model": "mobilenet_v2", "device": "cpu"})
TYPED = """
from nightsweep.jobs.launch.watchdog import Outcome
from nightsweep.jobs.record.launch_files import RankError
from nightsweep.jobs.record.launch_files import Job
from nightsweep.jobs.record.lost import lost_record
from nightsweep.jobs.record.record import Record, Run

Outcome("{0}")
lost_record(Job(sweep="s", point_id="p", settings={{}}), "{0}", "text", 1, None)
Run(reason="{0}")
Record(status="failed", reason="{0}")
RankError(reason="{0}")
"""


@pytest.mark.slow
def test_a_reason_that_is_misspelt_does_not_pass_mypy(tmp_path):
    (tmp_path / "right.py").write_text(TYPED.format("stalled"))
    (tmp_path / "wrong.py").write_text(TYPED.format("staled"))
    # the project's configuration, so that its cache serves, too; what it names cannot go together with files
    config = tomlkit.parse((ROOT / "pyproject.toml").read_text())
    del config["tool"]["mypy"]["packages"]
    (tmp_path / "mypy.toml").write_text(tomlkit.dumps(config))
    given = [str(tmp_path / name) for name in ("mypy.toml", "right.py", "wrong.py")]
    command = [sys.executable, "-m", "mypy", "--config-file", *given]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=400)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode == 1 and len(found) == 5, done.stdout
    assert all("/wrong.py:" in line and "staled" in line for line in found), found


def test_the_tables_know_every_reason_and_one_more():
    assert set(failures.REASONS) == {*REASONS, "no_record"}


def launched(folder, monkeypatch, **settings):
    """The record of a launch whose timed run fails."""
    failed = RunEnd(Run(status="failed", reason="stalled", message="nothing moved"), Failure(run="timed", rank=1))
    monkeypatch.setattr(Attempt, "run", lambda *_, **__: failed)
    job = Job(sweep="s", point_id="p", settings=JOB.settings | settings)
    return launch.launch(folder, job, Launcher(watchdog.Limits(1, 1), lambda: False, Servers()))


def test_a_lost_point_has_the_keys_of_a_launched_one(tmp_path, monkeypatch):
    write_json(tmp_path / "lost.json", lost.lost_record(JOB, "node_failure", "n1 died", 2, "7"))
    write_json(tmp_path / "launched.json", launched(tmp_path, monkeypatch))
    gone, own = (read_json(tmp_path / name, dict) for name in ("lost.json", "launched.json"))
    assert list(gone) == list(own)
    for name in ("looks", "tracer", "nvml", "software"):
        assert list(gone[name]) == list(own[name])
    assert gone["settings"] == own["settings"] and gone["world_size"] == own["world_size"] == 1
    assert {name for name in gone if gone[name] is None} == {
        "found", "command", "started_at", "wall_s", "failure", "device", "backend"
    }  # fmt: skip
    assert (gone["status"], gone["reason"], gone["slurm"]["job_id"]) == ("failed", "node_failure", "7")


def test_a_failed_run_is_the_points_failure(tmp_path, monkeypatch):
    record = launched(tmp_path, monkeypatch, traced_steps=2)
    assert (record.status, record.reason, record.message) == ("failed", "stalled", "nothing moved")
    assert (record.failure.run, record.failure.rank) == ("timed", 1)
    assert [run.status for _, run in record.runs.named()] == ["failed", "skipped", "skipped"]
    assert read_json(tmp_path / "point.json", Job).settings["traced_steps"] == 2


def test_a_search_that_fails_is_the_timed_run(tmp_path, monkeypatch):
    record = launched(tmp_path, monkeypatch, batch_search=True)
    assert (record.status, record.reason, record.found) == ("failed", "stalled", None)


def test_events_of_all_nodes_are_in_the_record_by_time(tmp_path):
    for name, host, times in (("traced", "n1", [9]), ("timed", "n1", [3, 5]), ("timed", "n2", [4])):
        (tmp_path / name).mkdir(exist_ok=True)
        lines = [json_line(Event(t_ns=t_ns, host=host, kind="xid", message="XID 79")) for t_ns in times]
        (tmp_path / name / f"events-{host}.jsonl").write_text("".join(lines) + '{"t_ns": 1')
    assert looks_of_events(tmp_path, Runs()) == [
        (3, "timed", "n1"), (4, "timed", "n2"), (5, "timed", "n1"), (9, "traced", "n1")
    ]  # fmt: skip


def looks_of_events(folder, runs):
    return [(event["t_ns"], event["look"], event["host"]) for event in to_builtins(events_of(folder, runs))]


def test_events_of_one_start_are_the_traced_runs_from_its_first_step_on(tmp_path):
    for name in ("timed", "traced"):
        (tmp_path / name).mkdir()
    rows = [json_line(Event(t_ns=t_ns, host="n1", kind="xid")) for t_ns in (3, 5, 9)]
    (tmp_path / "timed/events-n1.jsonl").write_text("".join(rows))
    for rank, start_ns in ((0, 6), (1, 5)):
        result = RankResult(rank=rank, window=Window(start_ns=start_ns, end_ns=10))
        write_json(tmp_path / f"traced/rank{rank}.result.json", result)
    one = Runs(traced=Run(status="ok", started_ns=4, same_start=True))
    assert looks_of_events(tmp_path, one) == [(3, "timed", "n1"), (5, "traced", "n1"), (9, "traced", "n1")]
    assert {look for _, look, _ in looks_of_events(tmp_path, Runs())} == {"timed"}


def test_an_ok_record_is_read_as_it_was_written(tmp_path):
    record = Record(status="ok", point_id="p", runs=launch.Runs(timed=Run(status="ok", wall_s=2.5)))
    write_json(tmp_path / "record.json", record)
    assert read_json(tmp_path / "record.json", Record) == record
