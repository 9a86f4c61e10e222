"""The executor's parts without a cluster: what a job asks for, what the scheduler's words mean, the journal."""

import os
import pickle
from pathlib import Path

import pytest
from submitit import SlurmExecutor

from jobs.host.facts import ROOT
from jobs.record import lost
from jobs.record.json_files import write_json
from jobs.record.launch_files import Job
from jobs.record.record import Record
from jobs.slurm import allocation
from jobs.slurm.executor import job_end, profile, refusal, request, waiting
from jobs.slurm.executor.journal import Entry, Journal
from jobs.slurm.executor.scheduler import State, forget_allocation, parse
from jobs.slurm.executor.settings import ExecutorSettings
from jobs.slurm.query import Unreachable


def test_a_rule_overrides_the_profile():
    settings = ExecutorSettings(partition="gpu", account="a", extra="--exclusive --mail-type=END", reservation="night")
    asked = request.from_job({"nodes": 2, "gpus_per_node": 4, "slurm_partition": "big", "mem_mb": 100}, 3, settings)
    assert asked == request.from_job(
        {"nodes": 2, "gpus_per_node": 4, "slurm_partition": "big", "mem_mb": 100}, 3, settings
    )  # so that such jobs share an array
    told = asked.parameters()
    assert told["partition"] == "big" and told["account"] == "a" and told["cpus_per_task"] == 3
    assert told["mem"] == "100M" and told["gpus_per_node"] == 4 and "qos" not in told
    assert told["additional_parameters"] == {
        "exclusive": True, "mail-type": "END", "reservation": "night", "no-requeue": True, "signal": "B:CONT@30"
    }  # fmt: skip
    assert asked.avoid(["n3"]).avoid(["n5"]).exclude == "n3,n5"


def test_nodes_are_for_one_point_alone_unless_the_profile_shares_them(tmp_path):
    shipped = profile.read(ROOT / "profiles/slurm").settings
    assert shipped.exclusive and not ExecutorSettings().exclusive
    alone = request.from_job({"gpus_per_node": 1}, 1, shipped)
    assert alone.parameters()["exclusive"] is True and "--exclusive" in alone.options()
    (tmp_path / "config.yaml").write_text("submitit-exclusive: false\n")
    shared = request.from_job({"gpus_per_node": 1}, 1, profile.read(tmp_path).settings)
    assert "exclusive" not in shared.parameters() and "--exclusive" not in shared.options()


def test_submitit_takes_every_parameter(tmp_path, monkeypatch):
    settings = ExecutorSettings(partition="gpu", exclusive=True, extra="--nice=10", setup="module load x")
    asked = request.from_job({"gpus_per_node": 2, "mem_mb": 100, "qos": "q", "slurm_exclude": "n1"}, 3, settings)
    monkeypatch.setattr(SlurmExecutor, "affinity", classmethod(lambda _: 1))
    executor = SlurmExecutor(folder=tmp_path)
    executor.update_parameters(**asked.parameters())
    lines = {*executor._make_submission_file_text("command", "1").splitlines()}
    assert {f"#SBATCH --{word}" for word in ("exclusive", "gpus-per-node=2", "nice=10", "mem=100M")} <= lines


def test_extra_that_is_no_option():
    with pytest.raises(ValueError, match=r"submitit-extra: 'exclusive' is not an option"):
        request.parse_options("exclusive")


def test_setup_and_python_reach_the_batch_script():
    settings = ExecutorSettings(setup="module load cuda\n\nexport A=1", python="apptainer exec x.sif python")
    lines = request.from_job({}, 1, settings).setup
    assert lines == ("module load cuda", "export A=1", "export NIGHTSWEEP_PYTHON='apptainer exec x.sif python'")


def test_ranks_run_with_the_python_that_the_profile_names(monkeypatch):
    monkeypatch.setenv("NIGHTSWEEP_PYTHON", "apptainer exec 'my image.sif' python")
    assert allocation.python() == ["apptainer", "exec", "my image.sif", "python"]


def test_states_of_arrays():
    found = parse("7_[1-3,5%2]|PENDING||Resources\n7_0|CANCELLED by 0|n1|None\n8|NODE_FAIL|n[1-2]|x\n9_4|RUNNING|n3|\n")
    assert {i for i, s in found.items() if s.active} == {"7_1", "7_2", "7_3", "7_5", "9_4"}
    assert found["7_0"].name == "CANCELLED" and found["8"].nodes == "n[1-2]"


@pytest.mark.parametrize(
    ("state", "reason", "again"),
    [("NODE_FAIL", "node_failure", True), ("PREEMPTED", "preempted", True), ("TIMEOUT", "time_limit", False),
     ("OUT_OF_MEMORY", "host_out_of_memory", False), ("CANCELLED", "cancelled", False)],
)  # fmt: skip
def test_what_a_final_state_means(state, reason, again):
    loss = lost.loss_of_state(state, "n1")
    assert (loss.reason, loss.again) == (reason, again) and "n1" in loss.message


def test_states_that_say_nothing_against_a_result():
    assert lost.loss_of_state("COMPLETED", "n1") is None and lost.loss_of_state("FAILED", "n1") is None


POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [("Unable to contact slurm controller (connect failure)", Unreachable, ""),
     ("Socket timed out on send/recv operation", Unreachable, ""),
     (f"QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {POLICY}", refusal.TooMany, ""),
     (f"AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: {POLICY}", refusal.TooMany, ""),
     (POLICY, refusal.TooMany, ""),
     ("Slurm temporarily unable to accept job, sleeping and retrying", refusal.TooMany, ""),
     ("Batch job submission failed: Invalid job array specification", refusal.TooMany, ""),
     (f"QOSMaxWallDurationPerJobLimit\nsbatch: error: {POLICY}", refusal.Refused, "timeout_min"),
     ("invalid partition specified: gpus", refusal.Refused, "submitit-partition"),
     ("Invalid account or account/partition combination specified", refusal.Refused, "submitit-account"),
     ("Invalid generic resource (gres) specification", refusal.Refused, "ranks_per_node"),
     ("Memory specification can not be satisfied\nsbatch: error: Requested node configuration is not available",
      refusal.Refused, "mem_mb_per_gpu"),
     ("Invalid feature specification", refusal.Refused, "submitit-constraint")],
)  # fmt: skip
def test_what_sbatch_says(text, kind, key):
    error = refusal.error_of(f"sbatch: error: {text}")
    assert type(error) is kind and "sbatch" not in str(error) and "\n" not in str(error)
    if kind is refusal.Refused:
        assert key in refusal.change(str(error))
    elif kind is refusal.TooMany:
        assert error.doubtful == (text == POLICY)


@pytest.mark.parametrize(
    ("reason", "never"),
    [("PartitionTimeLimit", True), ("QOSMaxWallDurationPerJobLimit", True), ("AssocMaxNodePerJobLimit", True),
     ("QOSMinGRES", True), ("QOSGrpCpuLimit", False), ("QOSMaxJobsPerUserLimit", False), ("Priority", False),
     ("Resources", False), ("ReqNodeNotAvail, UnavailableNodes:n1", False), ("JobHeldUser", False)],
)  # fmt: skip
def test_what_waits_for_ever(reason, never):
    assert refusal.never_passes(reason) == never


def test_one_line_for_many_jobs():
    ids = [*(f"7_{i}" for i in range(64)), "9", *(f"8_{i}" for i in (0, 2))]
    assert waiting.arrays(ids) == "7_[0-63], 9, 8_[0,2]"
    assert waiting.arrays(f"{i}_0" for i in range(7)).endswith("4_0 and 2 more arrays")
    queue = waiting.Waiting()
    first = queue.lines(["Priority"] * 40 + ["None", "ReqNodeNotAvail, UnavailableNodes:n1"])
    assert first[0] == "40 jobs in the queue: Priority, other jobs go first"
    assert first[1].startswith("1 job in the queue: ReqNodeNotAvail, their nodes are down")
    assert not queue.lines(["Priority"] * 30) and queue.lines(["Resources"]) and not queue.lines(["Priority"])
    assert queue.lines(["ReqNodeNotAvail"]), "it had gone and is back"


def test_journal(tmp_path):
    first = Journal(tmp_path)
    first.intend("x", ["a", "b"], [0, 0])
    first.accept("x", ["7_0", "7_1"])
    first.end("a")
    first.intend("y", ["c"], [1])
    first.intend("z", ["d"], [0])
    first.refuse("z")
    with (first.folder / "journal.jsonl").open("a") as sink:
        sink.write('{"event": "en')  # killed while it wrote
    found = Journal(tmp_path).load_unfinished()
    assert set(found) == {"b", "c"}
    assert (found["b"].job_id, found["b"].index, found["b"].size) == ("7_1", 1, 2)
    assert found["c"].job_id is None and found["c"].losses == 1 and found["c"].name == "y"


def test_an_end_that_a_later_driver_saw(tmp_path):
    first, second = Journal(tmp_path), Journal(tmp_path)
    first.intend("x", ["a", "b"], [0, 0])
    first.accept("x", ["7_0", "7_1"])
    second.end("a")
    assert set(Journal(tmp_path).load_unfinished()) == {"b"}
    second.intend("y", ["a"], [0])
    assert Journal(tmp_path).load_unfinished()["a"].name == "y"


def test_a_record_that_someone_removed_is_told_from_one_that_is_late(tmp_path):
    """The job ended well: its record may be late for two minutes, and is gone after that."""
    result = tmp_path / "x/7_0_0_result.pkl"
    result.parent.mkdir()
    entry = Entry(str(tmp_path / "record.json"), "x", result.parent, 0, 1, "7_0", 0)
    assert not job_end.ended_well(entry)
    for outcome, well in ((("success", 1), False), (("error", "Traceback"), False), (("success", 0), True)):
        result.write_bytes(pickle.dumps(outcome))
        os.utime(result, (0, 0))
        assert job_end.ended_well(entry) == job_end.is_wanted_again(entry) == well
    os.utime(result)
    assert not job_end.is_wanted_again(entry)
    os.utime(result, (0, 0))
    (tmp_path / "record.json").touch()
    assert entry.is_written() and not job_end.is_wanted_again(entry)


def test_old_journals_without_open_ends_are_removed(tmp_path):
    first, second = Journal(tmp_path), Journal(tmp_path)
    for journal in (first, second):
        journal.intend("x", ["a"], [0])
        journal.end("a")
    os.utime(first.folder / "journal.jsonl", (0, 0))
    assert Journal(tmp_path).load_unfinished() == {}
    assert not first.folder.exists() and second.folder.exists()


def test_an_enclosing_allocation_is_forgotten(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SBATCH_PARTITION", "CUDA_VISIBLE_DEVICES", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    forget_allocation()
    assert "SLURM_CONF" in os.environ
    assert not {"SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SBATCH_PARTITION", "CUDA_VISIBLE_DEVICES"} & set(os.environ)


def test_gpus_of_this_host_stay_without_an_allocation(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    forget_allocation()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_slurm_is_blamed_where_it_says_so(tmp_path):
    log = tmp_path / "launch.log"
    assert allocation.blame(log) is None
    log.write_text("srun: error: n1: task 0: Exited with exit code 1\n")
    assert allocation.blame(log) is None
    log.write_text("srun: error: Node failure on n2\n")
    assert allocation.blame(log) == ("node_failure", "srun: error: Node failure on n2")
    said = "srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure"
    log.write_text(f"{said}\nsrun: error: Application launch failed: Communication connection failure\n")
    assert allocation.blame(log) == ("node_failure", said)
    assert lost.Loss("node_failure", said).named_nodes() == ["n2"]
    assert lost.loss_of_state("NODE_FAIL", "n[1-2]").named_nodes() == []
    log.write_text("slurmstepd: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***\n")
    assert allocation.blame(log)[0] == "preempted"


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
    record = lost.lost_record(job, lost.Loss("launch_failed", "no such partition"), 1, None)
    assert (record.status, record.reason, record.world_size) == ("failed", "launch_failed", 2)
    assert lost.lost_record(job, lost.Loss("cancelled", "by a person"), 1, "7").status == "cancelled"
    assert lost.lost_record(job, lost.Loss("node_failure", "n1"), 1, "7").status == "failed"


def track(**more):
    return job_end.Track("k", request.Request(), "true", folder=Path("x"), name="n", **more)


OK = Record(status="ok")
KILLED, OWN = (Record(status="failed", reason=reason) for reason in ("rank_killed", "loss_nan"))
NODE = Record(status="failed", reason="node_failure", message="Node failure on n2")


@pytest.mark.parametrize(
    ("code", "record", "state", "expected"),
    [
        (None, None, None, None),  # not asked yet
        (None, None, "RUNNING", None),
        (0, OK, None, True),
        (0, OWN, None, True),  # a failure of its own is a result
        (0, KILLED, None, None),  # the scheduler may know better
        (0, KILLED, "COMPLETED", True),
        (0, KILLED, "NODE_FAIL", "node_failure"),
        (0, KILLED, "OUT_OF_MEMORY", "host_out_of_memory"),
        (0, NODE, None, "node_failure"),
        (None, OK, "NODE_FAIL", True),  # measured before the node died
        (None, None, "CANCELLED", "cancelled"),
        (130, None, None, None),
        (130, None, "PREEMPTED", "preempted"),
        (1, None, "COMPLETED", "launch_failed"),
        (0, None, "COMPLETED", None),  # the file system may be behind
        (None, None, "COMPLETED", None),
    ],
)
def test_how_a_job_ended(code, record, state, expected):
    states = None if state is None else {"7": State(state, "n1")}
    found = job_end.judge_end(track(), "7", code, (Path("r"), record), states)
    assert (found.reason if isinstance(found, lost.Loss) else found) == expected


def test_a_job_that_nobody_knows_is_lost_after_a_while():
    one = track()
    assert job_end.judge_end(one, "7", None, None, {}) is None
    one.missing_since -= job_end.MISSING_S
    assert job_end.judge_end(one, "7", None, None, {}).reason == "lost"
    assert job_end.judge_end(track(refused="no such partition"), None, None, None, None).reason == "launch_failed"


def test_records_are_read_only_of_jobs_that_may_have_ended():
    states = {"7": State("RUNNING", "n1"), "8": State("COMPLETED", "n1")}
    assert job_end.is_open(track(), "7", set(), None) and job_end.is_open(track(), "7", set(), states)
    assert job_end.is_open(track(), None, set(), states), "yet to be sent"
    assert not job_end.is_open(track(), "7", {"7"}, None) and not job_end.is_open(track(), "8", set(), states)
    assert not job_end.is_open(track(), "9", set(), states), "nobody knows it"
    assert not job_end.is_open(track(refused="no"), None, set(), None)
