"""A block: one job that measures several points, whose records follow that of the first one."""

import dataclasses
import fcntl
import json
import os
import subprocess
import sys

import pytest
from snakemake_executor_plugin_submitit.hook import Loss

from nightsweep.jobs.launch import watchdog
from nightsweep.jobs.launch.attempt import Attempt, Launcher
from nightsweep.jobs.launch.held import Held
from nightsweep.jobs.launch.launch import measure_block, result_of
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record import untraced
from nightsweep.jobs.record.json_files import json_line, read_json, write_json
from nightsweep.jobs.record.launch_files import Job as SweepJob
from nightsweep.jobs.record.launch_files import RankResult, Start
from nightsweep.jobs.record.phases import starts_of
from nightsweep.jobs.record.raw_files import MEASURED
from nightsweep.jobs.record.record import Record, Run, Runs
from nightsweep.jobs.slurm.point_jobs import PointJobs, record_of

A = complete({"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 2, "device": "cpu",
              "warmup_steps": 1, "timed_steps": 3, "traced_steps": 0})  # fmt: skip
B = dataclasses.replace(A, micro_batch=4)


def sweep(tmp_path, *points):
    path = tmp_path / "sweep.json"
    listed = [{"point_id": point.id, "settings": point.settings()} for point in points]
    path.write_text(json.dumps({"name": "t", "points": listed}))
    return path


def launch(tmp_path, listed, *points):
    folders = [str(tmp_path / "points" / point.id) for point in points]
    command = [sys.executable, "-m", "nightsweep.jobs.launch.launch", *folders, "--sweep", str(listed)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_all_points_are_measured_in_order_and_what_is_measured_stays(tmp_path):
    broken = dataclasses.replace(B, fault="exception@rank0:step1")
    listed = sweep(tmp_path, A, B, broken)
    assert launch(tmp_path, listed, broken, A, B).returncode == 0
    records = {p.id: json.loads((tmp_path / "points" / p.id / "record.json").read_text()) for p in (A, B, broken)}
    assert [records[p.id]["status"] for p in (broken, A, B)] == ["failed", "ok", "ok"]
    assert all(record["looks"]["timed"]["forked"] for record in records.values())
    assert records[broken.id]["started_at"] < records[A.id]["started_at"] < records[B.id]["started_at"]
    ends = {i: (record["phases"][0]["start_ns"], record["phases"][-1]["start_ns"]) for i, record in records.items()}
    assert ends[broken.id][1] == ends[A.id][0] and ends[A.id][1] == ends[B.id][0]  # no time is nobody's
    times = [(tmp_path / "points" / p.id / "record.json").stat().st_mtime_ns for p in (A, B, broken)]
    assert times == sorted(times)  # each as its point ends, but the first one's, which stands for all
    (tmp_path / "points" / B.id / "record.json").unlink()
    assert launch(tmp_path, listed, A, B, broken).returncode == 0
    for point in (B, broken):  # a failed point is run again where it leads, and nowhere else
        assert json.loads((tmp_path / "points" / point.id / "record.json").read_text()) == records[point.id]


def test_a_point_that_the_sweep_does_not_have_stops_the_block_before_it_begins(tmp_path):
    done = launch(tmp_path, sweep(tmp_path, A), A, B)
    assert done.returncode == 2 and f"no point {B.id} in it" in done.stderr
    assert not (tmp_path / "points").exists()


def test_who_waits_for_another_launcher_can_be_stopped(tmp_path):
    with (tmp_path / "attempts.jsonl").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stopped = Launcher(watchdog.Limits(1, 1), lambda: True, Servers(fork=False))
        assert measure_block([(tmp_path, None)], stopped) == 130


class Job:
    """What the executor asks of a job of Snakemake."""

    def __init__(self, *folders):
        self.output = [folders[0] / "record.json"]
        self.params = type("Params", (), {"folders": [str(folder) for folder in folders]})

    def is_group(self):
        return False


@pytest.fixture
def block(tmp_path, monkeypatch):
    """The folders of two points whose job the first one leads, in Slurm job 77_1."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    sweep(tmp_path, A, B)
    folders = [tmp_path / "points" / point.id for point in (A, B)]
    for folder in folders:
        folder.mkdir(parents=True)
    return folders


def record(folder):
    return read_json(folder / "record.json", Record)


LOSS = Loss("host_out_of_memory", "Slurm ended the job as OUT_OF_MEMORY")


def test_a_lost_job_loses_the_points_that_it_had_not_measured(block):
    write_json(block[0] / MEASURED, Record(point_id=A.id, status="ok"))
    Held().begin(block[1])
    (block[1] / "timed.1").mkdir()
    (block[1] / "timed.1/rank0.heartbeat").write_text("model\n")
    assert PointJobs().record_loss(Job(*block), LOSS, 1, "77_1")
    assert record(block[0]).status == "ok"
    assert (record(block[1]).status, record(block[1]).reason, record(block[1]).slurm.job_id) == (
        "failed", "host_out_of_memory", "77_1",
    )  # fmt: skip
    assert [phase.phase for phase in record(block[1]).phases] == ["lost", "end"]


@pytest.mark.parametrize(
    ("reason", "of_the_rest"), [("host_out_of_memory", "lost"), ("time_limit", "lost"), ("cancelled", "cancelled")]
)
@pytest.mark.parametrize("earlier", [False, True])
def test_what_a_lost_job_had_not_come_to_failed_only_where_that_concerns_it(block, reason, of_the_rest, earlier):
    """Of thirty points of which the second used up the memory, twenty-eight had once failed without being run.
    `earlier`: another job had begun the point before, on a node whose clock is ahead."""
    if earlier:
        start = Start(attempt=1, started_at="2099-01-01T00:00:00.000+00:00", host="n1", pid=1, slurm_id="76_1")
        (block[1] / "attempts.jsonl").write_text(json_line(start))
    Held().begin(block[0])
    assert PointJobs().record_loss(Job(*block), Loss(reason, "as Slurm says"), 1, "77_1")
    assert (record(block[0]).reason, record(block[1]).reason) == (reason, of_the_rest)


@pytest.mark.parametrize(("culprit", "other"), [(0, 1), (1, 0)])
def test_what_a_lost_job_had_not_come_to_is_left_for_another(block, culprit, other):
    """Also of one whose leader has been measured, or is the point that used up the memory and must not run again."""
    if other == 0:
        write_json(block[0] / MEASURED, Record(point_id=A.id, status="failed", reason="gpu_out_of_memory"))
    rest = [block[1]] if culprit == 0 else [block[1].with_name("c" * 12), block[1].with_name("d" * 12)]
    block = [*block, *rest] if culprit else block
    Held().begin(block[culprit])
    job = Job(*block)
    assert PointJobs().record_begun(job, LOSS, 0, "77_1") == len(rest)
    PointJobs().take_back(job, lost_id=None)
    assert record(block[0]) is None, "the job that is sent again writes it last"
    found = result_of(block[culprit], leads=culprit == 0)
    assert (found.status, found.reason, found.attempt) == ("failed", "host_out_of_memory", 1)
    assert other == 1 or result_of(block[0], leads=True).reason == "gpu_out_of_memory"
    assert not any(record(folder) or result_of(folder, leads=False) for folder in rest)


@pytest.mark.parametrize("reason", ["time_limit", "lost"])
def test_a_point_that_lacks_its_trace_alone_is_not_lost_with_its_second_launcher(block, reason):
    runs = Runs(timed=Run(status="ok"), traced=Run(status="failed", reason="node_failure"))
    Held().begin(block[0])
    untraced.keep(block[0], Record(point_id=A.id, status="ok", attempt=1, runs=runs))
    Held().begin(block[0])
    loss = Loss(reason, "as Slurm says", again=reason == "lost")
    assert PointJobs().record_begun(Job(*block), loss, 1, "77_1") == (reason == "time_limit"), "one launcher, not two"
    found = result_of(block[0], leads=True)
    assert (found and (found.status, found.attempt)) == (("ok", 1) if reason == "time_limit" else None)
    assert (untraced.kept(block[0]) is None) == (reason == "time_limit") and record(block[1]) is None


@pytest.mark.parametrize("loss", [Loss("cancelled", ""), Loss("launch_failed", ""), Loss("failed", "")])
def test_nothing_is_left_of_a_job_that_nobody_wants_or_that_ran_through(block, loss):
    Held().begin(block[0])
    assert PointJobs().record_begun(Job(*block), loss, 0, "77_1") == 0
    Held().begin(block[1])
    assert PointJobs().record_begun(Job(*block), LOSS, 0, "77_1") == 0
    assert not any(record(folder) or (folder / MEASURED).exists() for folder in block)


def test_a_failed_point_that_is_published_runs_again_without_its_record(block):
    failed = Record(point_id=A.id, status="failed", reason="loss_nan", attempt=1)
    write_json(block[0] / MEASURED, failed)
    launcher = Launcher(watchdog.Limits(1, 1), lambda: False, Servers(fork=False))
    assert measure_block([(block[0], None)], launcher) == 0, "it is not run: it has its result"
    assert record(block[0]) == failed and result_of(block[0], leads=True) is None


@pytest.mark.parametrize(
    ("outcomes", "codes", "found"),
    [
        ("complaint complaint", [0], (2, "node_failure")),  # of a second one in the same job: that may last
        ("complaint ok", [0], (2, None)),
        ("complaint timeout", [0], (1, "node_failure")),  # the second one was stuck, the first one stays
        ("complaint killed", [130], (1, "node_failure")),  # nobody tries again
        ("complaint stopped complaint", [130, 0], (3, "node_failure")),
        ("stopped ending ending", [130, 130, 130], (3, "preempted")),  # sent again each time, for it need not last
    ],
    ids=lambda value: str(value),
)
def test_a_point_keeps_its_timed_run_until_it_has_its_trace_too(tmp_path, monkeypatch, outcomes, codes, found):
    latest = [""]
    point, coming = dataclasses.replace(A, traced_steps=2), iter(outcomes.split())
    deaths = {
        "complaint": watchdog.Outcome("node_failure", "srun: error: Task launch for 7.0 failed on node n2"),
        "ending": watchdog.Outcome("preempted", "slurmstepd: error: STEP 7.0 CANCELLED DUE TO PREEMPTION"),
        "timeout": watchdog.Outcome("time_limit", ""),
        "killed": watchdog.Outcome("rank_killed", ""),
        "stopped": watchdog.Outcome("interrupted", ""),
    }

    def ranks(attempt, run_folder, order):
        run_folder.path.mkdir()
        latest[0] = outcome = next(coming)
        if outcome not in ("timeout", "killed", "stopped"):
            for own, _ in order.runs(run_folder)[: None if outcome == "ok" else 1]:
                own.path.mkdir(exist_ok=True)
                write_json(own.rank_file(0, "result.json"), RankResult(rank=attempt.number))
        return deaths.get(outcome, watchdog.Outcome())

    monkeypatch.setattr(Attempt, "ranks", ranks)
    sweep(tmp_path, point)
    folder = tmp_path / "points" / point.id
    job = SweepJob(sweep="t", point_id=point.id, settings=point.settings())
    launcher = Launcher(watchdog.Limits(1, 1), lambda: latest[0] in ("ending", "stopped"), Servers(fork=False))
    ended = [measure_block([(folder, job)], launcher) for _ in codes]
    assert ended == codes and next(coming, None) is None
    assert codes[-1] == 0 or record(folder) is None
    assert codes[-1] == 0 or PointJobs().record_loss(Job(folder), Loss("lost", "no result", again=True), 2, None)
    last = record(folder)
    assert (last.attempt, last.runs.traced.reason) == found and last.status == "ok"
    assert read_json(folder / "timed/rank0.result.json", RankResult).rank == found[0]
    assert not (folder / ".untraced").exists() and starts_of(folder)[-1].earlier_sign_ns is not None


def test_a_lost_job_leaves_what_had_failed_by_itself(block):
    write_json(block[1] / "record.json", Record(point_id=B.id, status="failed", reason="stalled"))
    assert PointJobs().record_loss(Job(*block), LOSS, 1, "77_1")
    assert [record(folder).reason for folder in block] == ["host_out_of_memory", "stalled"]


def test_a_job_is_judged_by_the_point_of_its_block_that_is_not_ok(block):
    assert record_of(Job(*block)) == (block[0] / "record.json", None)
    write_json(block[1] / "record.json", Record(point_id=B.id, status="failed", reason="node_failure"))
    assert record_of(Job(*block))[1] is None  # the leader's comes last
    write_json(block[0] / "record.json", Record(point_id=A.id, status="ok"))
    path, found = record_of(Job(*block))
    assert (path, found.reason) == (block[1] / "record.json", "node_failure")


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        (None, "ok"),
        ("loss_nan", "failed"),
        ("rank_killed", "doubtful"),
        ("preempted", Loss("preempted", "", again=True)),
    ],
)
def test_what_a_record_says_of_its_job(block, reason, verdict):
    assert PointJobs().verdict(Job(*block)) == "missing" and not PointJobs().has_begun(Job(*block))
    write_json(block[0] / "record.json", Record(status="failed" if reason else "ok", reason=reason))
    Held().begin(block[0])
    assert PointJobs().verdict(Job(*block)) == verdict and PointJobs().has_begun(Job(*block))


def test_what_is_measured_is_not_taken_back_where_a_job_is_sent_again(block):
    for folder, status in zip(block, ("failed", "ok"), strict=True):
        write_json(folder / "record.json", Record(status=status))
    write_json(block[1] / MEASURED, Record(status="ok"))
    PointJobs().take_back(Job(*block), lost_id="77_1")
    assert record(block[0]) is None and record(block[1]).status == "ok"


@pytest.mark.parametrize(
    ("reason", "lost_id", "stays"),
    [("gpu_out_of_memory", "77_1", True), ("rank_killed", "77_1", False), ("rank_killed", "78", True),
     ("node_failure", "78", False)],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1])
def test_what_had_failed_by_itself_is_not_taken_back(block, number, reason, lost_id, stays):
    """The lost node may have killed a rank; it cannot have used up a GPU's memory, nor killed one of another job."""
    Held().begin(block[number])
    write_json(block[number] / "record.json", Record(status="failed", reason=reason))
    PointJobs().take_back(Job(*block), lost_id)
    assert (result_of(block[number], leads=number == 0) is not None) == stays
    assert number == 1 or record(block[0]) is None


def test_points_that_a_job_did_not_come_to_are_counted(block):
    assert PointJobs().count_rest(Job(*block)) == 2
    write_json(block[0] / "record.json", Record(status="ok"))
    assert PointJobs().count_rest(Job(*block)) == 1


def follow(folder, leader):
    command = [sys.executable, "-m", "nightsweep.jobs.launch.follow", str(folder), "--leader", str(leader)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def test_a_record_that_is_there_becomes_younger_than_its_leaders(block):
    write_json(block[1] / "record.json", Record(point_id=B.id, status="ok"))
    os.utime(block[1] / "record.json", (1, 1))
    before = (block[1] / "record.json").read_text()
    assert follow(block[1], block[0]).returncode == 0
    assert (block[1] / "record.json").read_text() == before and (block[1] / "record.json").stat().st_mtime > 1


def test_a_record_that_is_missing_is_said_in_a_line(block):
    done = follow(block[1], block[0])
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "the same command runs it again" in done.stderr
