"""The executor on a scheduler that answers as a test wants it: what it sends, cancels, and takes over."""

import errno
import logging
import os
import types

import pytest
from snakemake_executor_plugin_submitit import job_end, request, waiting
from snakemake_executor_plugin_submitit.executor import Executor
from snakemake_executor_plugin_submitit.hook import Hook, Loss
from snakemake_executor_plugin_submitit.journal import Journal
from snakemake_executor_plugin_submitit.local import Local
from snakemake_executor_plugin_submitit.query import Unreachable
from snakemake_executor_plugin_submitit.refusal import Refused
from snakemake_executor_plugin_submitit.scheduler import Slurm, State
from snakemake_executor_plugin_submitit.settings import ExecutorSettings
from snakemake_executor_plugin_submitit.submission import Submission
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from submitit import SlurmExecutor

LOST = Loss("node_failure", "Node failure on n2", again=True)


def track():
    return job_end.Track("k", request.Request(), "true", name="n")


class Cluster(Local):
    """A scheduler that answers each call with the next of these: ids, or an error to raise. Notes what it is asked."""

    def __init__(self, *answers):
        super().__init__()
        self.answers, self.asked = list(answers), []

    def submit(self, folder, name, asked, commands, parallel):
        self.asked.append(("submit", name))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def find(self, name, size):
        self.asked.append(("find", name))
        return self.answers.pop(0)

    def cancel(self, ids, names):
        self.asked.append(("cancel", sorted(ids), sorted(names)))
        if self.answers and isinstance(self.answers[0], Exception):
            raise self.answers.pop(0)


def driver_of(tmp_path, *answers, wanted=()):
    """An executor without Snakemake, on such a scheduler. `wanted`: the jobs that are to run."""
    driver = Executor.__new__(Executor)
    driver.hook, driver.backend, driver.options = Hook(), Cluster(*answers), ExecutorSettings()
    driver.journal, driver.dag = Journal(tmp_path, "local"), types.SimpleNamespace(needrun_jobs=lambda: wanted)
    driver.earlier = driver._earlier()
    driver.submission = Submission(driver.backend, driver.journal, driver.options, {}, print)
    driver.logger, driver.waiting = logging.getLogger("driver"), waiting.Waiting()
    driver.efficiency = driver.workflow = types.SimpleNamespace(add=lambda infos: None)
    driver.open, driver.passed, driver.outage, driver.disk = {}, False, "", ""
    driver.interval = driver.next_query = 0.0
    return driver


def asked_for(*keys):
    return [SubmittedJobInfo(None, None, {"track": job_end.Track(key, request.Request(), "true")}) for key in keys]


def test_jobs_are_sent_by_their_priority(tmp_path, monkeypatch):
    driver = driver_of(tmp_path, ["7_0", "7_1", "7_2"])
    jobs = [types.SimpleNamespace(priority=priority) for priority in (0.5, 1.0, 0.0)]
    prepare = lambda job: SubmittedJobInfo(job, None, asked_for(str(job.priority))[0].aux)  # noqa: E731
    monkeypatch.setattr(driver, "_prepare", prepare)
    for method in ("run_job_pre", "report_job_submission"):
        monkeypatch.setattr(driver, method, lambda _: None)
    driver.run_jobs(jobs)
    assert [(info.job.priority, info.external_jobid) for info in driver.open.values()] == [
        (1.0, "7_0"), (0.5, "7_1"), (0.0, "7_2")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "line"), [("a", "1 job of an earlier run goes on: 7"), ("ab", "2 jobs of an earlier run go on: 7, 8")]
)
def test_jobs_of_an_earlier_run_are_said_to_go_on(tmp_path, monkeypatch, keys, line):
    driver, said = driver_of(tmp_path), []
    jobs = [types.SimpleNamespace(priority=0, info=info) for info in asked_for(*keys)]
    for job, number in zip(jobs, "78", strict=False):
        job.info.external_jobid = number
    for method, stand_in in (("_prepare", lambda job: job.info), ("_adopt", lambda _: True), ("_tell", said.append)):
        monkeypatch.setattr(driver, method, stand_in)
    for method in ("run_job_pre", "report_job_submission", "_send"):
        monkeypatch.setattr(driver, method, lambda _: None)
    driver.run_jobs(jobs)
    assert said == [line]


def test_what_could_not_be_cancelled_is_by_the_next_driver_before_it_sends_anything(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    first = driver_of(tmp_path, ["7_0", "7_1"], *[Unreachable("away")] * 5)
    jobs = dict(zip("ab", asked_for("a", "b"), strict=True))
    first._send(list(jobs.values()))
    name = jobs["a"].aux["track"].name
    assert first.submission.cancel(jobs, first._report_outage) == ["7"]
    second = driver_of(tmp_path, ["8"])
    assert second.earlier == {}
    second._send(asked_for("a"))
    assert [call[0] for call in second.backend.asked] == ["cancel", "submit"]
    assert second.backend.asked[0] == ("cancel", [], [name])
    assert driver_of(tmp_path).journal.stopped == set()


def test_a_full_disk_cancels_nothing(tmp_path, monkeypatch, caplog):
    driver = driver_of(tmp_path, ["7"])
    jobs = asked_for("a")
    with monkeypatch.context() as full:
        full.setattr(driver.journal, "_write", lambda event: (_ for _ in ()).throw(OSError(28, "No space left")))
        driver._send(jobs)
        driver._send(jobs)
    assert not driver.backend.asked and len(caplog.messages) == 1 and "No space left" in caplog.messages[0]
    driver._send(jobs)
    assert jobs[0].external_jobid == "7"


def test_a_submission_that_only_a_file_was_in_the_way_of_is_looked_for(tmp_path):
    """Slurm had taken the jobs when submitit could not name their file."""
    driver = driver_of(tmp_path, OSError(122, "Disk quota exceeded"), ["7"])
    jobs = asked_for("a")
    driver._send(jobs)
    track = jobs[0].aux["track"]
    track.folder.mkdir()
    (track.folder / "7_submitted.pkl").touch()
    driver._send(jobs)
    assert jobs[0].external_jobid == "7" and [call[0] for call in driver.backend.asked] == ["submit", "find"]


@pytest.mark.parametrize(("said", "status"), [("no account", 1), ("", 3)])
def test_an_sbatch_that_complains_on_its_output_or_not_at_all(tmp_path, monkeypatch, said, status):
    stand_in = tmp_path / "sbatch"
    stand_in.write_text(f"#!/bin/sh\necho '{said}'\nexit {status}\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda _: 1))
    with pytest.raises(Refused, match=said or "exit status 3, without a word"):
        Slurm.submit(None, tmp_path / "x", "n", request.from_job({}, 1, ExecutorSettings()), ["true"], 1)


class Begun(Hook):
    def has_begun(self, job, job_id=None):
        return job_id == "9"


@pytest.mark.parametrize(("other", "stops"), [("9", False), ("8", True)])
def test_jobs_that_cannot_start_stop_no_run_in_which_others_have_begun(tmp_path, monkeypatch, other, stops):
    driver = driver_of(tmp_path)
    driver.hook = Begun()
    jobs = {key: SubmittedJobInfo(None, key, {"track": track()}) for key in ("1", "2", "3", other)}
    for key in "123":
        jobs[key].aux["track"].refused = "FAILED, without a result"
    driver.open, ended = jobs, []
    monkeypatch.setattr(driver, "_cancel_all", lambda: None)
    driver.workflow = types.SimpleNamespace(scheduler=types.SimpleNamespace(executor_error_callback=ended.append))
    driver._stop_where_nothing_passes()
    assert bool(ended) == stops and driver.passed != stops


def test_of_an_array_only_what_waits_for_ever_is_cancelled(tmp_path):
    driver = driver_of(tmp_path)
    jobs = [SubmittedJobInfo(None, f"7_{place}", {"track": track()}) for place in range(3)]
    why = State("PENDING", "", "QOSMaxWallDurationPerJobLimit")
    driver.journal.intend("n", ["k"], [0])
    driver._look_at_queue(jobs, {"7_0": State("RUNNING", "n1"), "7_1": why, "7_2": why})
    assert driver.backend.asked == [("cancel", ["7_1", "7_2"], [])] and jobs[0].external_jobid == "7_0"
    assert driver_of(tmp_path).earlier == {}, "that it was cancelled is no result"


def test_jobs_of_another_cluster_are_not_taken_for_jobs_here(tmp_path):
    outputs = [str(tmp_path / name) for name in "ab"]
    first = Journal(tmp_path, "east")
    first.intend("x", outputs, [0, 0])
    first.accept("x", ["7_0", "7_1"])
    jobs = [types.SimpleNamespace(output=[output]) for output in outputs]
    with pytest.raises(ValueError, match="on cluster east, and this is local"):
        driver_of(tmp_path, wanted=jobs[1:])
    (tmp_path / "b").touch()
    assert driver_of(tmp_path, wanted=jobs[1:]).earlier == {}


def test_a_full_disk_does_not_keep_an_end_from_being_seen(tmp_path, monkeypatch, caplog):
    driver = driver_of(tmp_path)
    monkeypatch.setattr(driver.journal, "_write", lambda event: (_ for _ in ()).throw(OSError(28, "No space left")))
    driver._note_end(track())
    driver._note_end(track())
    assert len(caplog.messages) == 1 and "No space left" in caplog.messages[0]


class OnFullDisk(Hook):
    """A workflow that cannot note what a job that is sent again finds."""

    def count_rest(self, job):
        return 1

    def take_back(self, job, lost_id):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("end", [LOST, True], ids=["lost", "had-no-time"])
def test_a_job_that_a_full_disk_keeps_from_being_sent_again_is_told_in_a_line(caplog, tmp_path, end):
    driver = driver_of(tmp_path)
    driver.hook = OnFullDisk()
    asked = SubmittedJobInfo(None, external_jobid="7", aux={"track": track()})
    assert not driver._is_kept(asked, end) and asked.external_jobid == "7"
    assert caplog.messages == ["k: No space left on device; not submitted again"]
