"""The executor's parts without a cluster: what a job asks for, and what the scheduler's words mean."""

import os
import pickle
import stat
import time
from pathlib import Path

import pytest
from snakemake_executor_plugin_submitit import hook, job_end, refusal, request, waiting
from snakemake_executor_plugin_submitit.hook import Hook, Loss
from snakemake_executor_plugin_submitit.journal import Entry, Journal, NotPrivate
from snakemake_executor_plugin_submitit.query import Unreachable
from snakemake_executor_plugin_submitit.scheduler import State, forget_allocation, parse
from snakemake_executor_plugin_submitit.settings import ExecutorSettings
from submitit import SlurmExecutor


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


def test_setup_reaches_the_batch_script():
    settings = ExecutorSettings(setup="module load cuda\n\nexport A=1")
    assert request.from_job({}, 1, settings).setup == ("module load cuda", "export A=1")


def test_states_of_arrays():
    found = parse("7_[1-3,5%2]|PENDING||Resources\n7_0|CANCELLED by 0|n1|None\n8|NODE_FAIL|n[1-2]|x\n9_4|RUNNING|n3|\n")
    assert {i for i, s in found.items() if s.active} == {"7_1", "7_2", "7_3", "7_5", "9_4"}
    assert found["7_0"].name == "CANCELLED" and found["8"].nodes == "n[1-2]"
    assert set(parse("7_[0-6:3,9]|PENDING||")) == {"7_0", "7_3", "7_6", "7_9"}


@pytest.mark.parametrize(
    ("state", "reason", "again"),
    [("NODE_FAIL", "node_failure", True), ("PREEMPTED", "preempted", True), ("TIMEOUT", "time_limit", False),
     ("OUT_OF_MEMORY", "host_out_of_memory", False), ("CANCELLED", "cancelled", False)],
)  # fmt: skip
def test_what_a_final_state_means(state, reason, again):
    loss = job_end.loss_of_state(state, "n1")
    assert (loss.reason, loss.again) == (reason, again) and "n1" in loss.message


def test_states_that_say_nothing_against_a_result():
    assert job_end.loss_of_state("COMPLETED", "n1") is None and job_end.loss_of_state("FAILED", "n1") is None


POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [("Unable to contact slurm controller (connect failure)", Unreachable, ""),
     ("Socket timed out on send/recv operation", Unreachable, ""),
     ("Message receive failure", Unreachable, ""),
     ("Communication connection failure", Unreachable, ""),
     ("I/O error writing script/environment to file", Unreachable, ""),
     ("Unable to create job record, try again", Unreachable, ""),
     ("Controller is in standby mode, try a different controller", Unreachable, ""),
     ("Please give a time limit with -t and try again", refusal.Refused, "runtime"),
     (f"QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {POLICY}", refusal.TooMany, ""),
     (f"AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: {POLICY}", refusal.TooMany, ""),
     (POLICY, refusal.TooMany, ""),
     ("Slurm temporarily unable to accept job, sleeping and retrying", refusal.TooMany, ""),
     ("Batch job submission failed: Invalid job array specification", refusal.TooMany, ""),
     (f"QOSMaxWallDurationPerJobLimit\nsbatch: error: {POLICY}", refusal.Refused, "runtime"),
     ("invalid partition specified: gpus", refusal.Refused, "submitit-partition"),
     ("Invalid account or account/partition combination specified", refusal.Refused, "submitit-account"),
     ("Invalid generic resource (gres) specification", refusal.Refused, "gpus_per_node"),
     ("Memory specification can not be satisfied\nsbatch: error: Requested node configuration is not available",
      refusal.Refused, "mem_mb"),
     ("Invalid feature specification", refusal.Refused, "submitit-constraint")],
)  # fmt: skip
def test_what_sbatch_says(text, kind, key):
    error = refusal.error_of(f"sbatch: error: {text}")
    assert type(error) is kind and "sbatch" not in str(error) and "\n" not in str(error)
    if kind is refusal.Refused:
        assert key in refusal.change(str(error), {})
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
    assert "may never start" in queue.lines(["PartitionConfig"])[0]
    assert "takes no jobs now" in queue.lines(["PartitionDown"])[0]


def test_a_record_that_someone_removed_is_told_from_one_that_is_late(tmp_path, monkeypatch):
    """The job ended well: its record may be late for two minutes, and is gone after that. The clock is ahead."""
    ahead = time.time() + 1000
    monkeypatch.setattr("time.time", lambda: ahead)
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


def track(**more):
    return job_end.Track("k", request.Request(), "true", folder=Path("x"), name="n", **more)


NODE = Loss("node_failure", "Node failure on n2", again=True)


def test_an_enclosing_allocation_is_forgotten(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SBATCH_PARTITION", "CUDA_VISIBLE_DEVICES", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    forget_allocation()
    assert "SLURM_CONF" in os.environ
    assert not {"SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SBATCH_PARTITION", "CUDA_VISIBLE_DEVICES"} & set(os.environ)


def test_gpus_of_this_host_stay_without_an_allocation(monkeypatch):
    """But nothing that sbatch would take before what the script says."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    forget_allocation()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0" and "SBATCH_PARTITION" not in os.environ


class Told(Hook):
    """A workflow whose jobs say this of their end."""

    def __init__(self, verdict):
        self.told = verdict

    def verdict(self, job):
        return self.told


@pytest.mark.parametrize(
    ("code", "verdict", "state", "expected"),
    [
        (None, "missing", None, None),  # not asked yet
        (None, "missing", "RUNNING", None),
        (0, "ok", None, True),
        (0, "failed", None, True),  # a failure of its own is a result
        (0, "doubtful", None, None),  # the scheduler may know better
        (0, "doubtful", "COMPLETED", True),
        (0, "doubtful", "NODE_FAIL", "node_failure"),
        (0, "doubtful", "OUT_OF_MEMORY", "host_out_of_memory"),
        (0, NODE, None, "node_failure"),
        (None, "ok", "NODE_FAIL", True),  # measured before the node died
        (None, "missing", "CANCELLED", "cancelled"),
        (130, "missing", None, None),
        (130, "missing", "PREEMPTED", "preempted"),
        (1, "missing", "COMPLETED", "launch_failed"),
        (0, "missing", "COMPLETED", None),  # the file system may be behind
        (None, "missing", "COMPLETED", None),
        (0, None, None, True),  # of a workflow that keeps no account
        (1, None, None, None),
        (1, None, "COMPLETED", "failed"),
        (1, None, "NODE_FAIL", "node_failure"),
        (None, None, "FAILED", "failed"),
    ],
)
def test_how_a_job_ended(code, verdict, state, expected):
    states = None if state is None else {"7": State(state, "n1")}
    found = job_end.judge_end(track(), "7", code, Told(verdict), None, states)
    assert (found.reason if isinstance(found, Loss) else found) == expected


def test_a_job_that_nobody_knows_is_lost_after_a_while():
    one = track()
    assert job_end.judge_end(one, "7", None, Hook(), None, {}) is None
    one.missing_since -= job_end.MISSING_S
    assert job_end.judge_end(one, "7", None, Hook(), None, {}).reason == "lost"
    refused = track(refused="no such partition")
    assert job_end.judge_end(refused, None, None, Hook(), None, None).reason == "launch_failed"


def test_records_are_read_only_of_jobs_that_may_have_ended():
    states = {"7": State("RUNNING", "n1"), "8": State("COMPLETED", "n1")}
    assert job_end.is_open(track(), "7", set(), None) and job_end.is_open(track(), "7", set(), states)
    assert job_end.is_open(track(), None, set(), states), "yet to be sent"
    assert not job_end.is_open(track(), "7", {"7"}, None) and not job_end.is_open(track(), "8", set(), states)
    assert not job_end.is_open(track(), "9", set(), states), "nobody knows it"
    assert not job_end.is_open(track(refused="no"), None, set(), None)


def test_what_is_older_than_its_inputs_is_wanted_again(tmp_path):
    result = tmp_path / "x/7_0_0_result.pkl"
    result.parent.mkdir()
    result.write_bytes(pickle.dumps(("success", 0)))
    record, made = tmp_path / "source", tmp_path / "made"
    for path in (record, made):
        path.touch()
    entry = Entry(str(made), "x", result.parent, 0, 1, "7_0", 0)
    os.utime(record, (0, 0))
    assert not job_end.is_wanted_again(entry, [record])
    os.utime(made, (0, 0))
    os.utime(record)
    assert job_end.is_wanted_again(entry, [record])


def test_a_rule_may_share_nodes_where_the_profile_does_not():
    settings = ExecutorSettings(exclusive=True)
    assert request.from_job({}, 1, settings).exclusive and not request.from_job({"exclusive": 0}, 1, settings).exclusive


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_jobs_and_their_results_lie_where_nobody_else_can_put_any(tmp_path, open_umask):
    journal = Journal(tmp_path / "submitit")
    journal.intend("x", ["a"], [0])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "submitit", journal.folder)] == [0o700] * 2


def test_a_planted_job_of_an_earlier_driver_is_not_taken_over(tmp_path, open_umask):
    planted = Journal(tmp_path / "submitit")
    planted.intend("x", ["a"], [0])
    planted.accept("x", ["7"])
    folder = planted.folder / "x"
    folder.mkdir()
    (folder / "7_0_result.pkl").write_bytes(pickle.dumps(("success", 0)))
    with pytest.raises(NotPrivate, match=r"/x: others may write to it"):
        Journal(tmp_path / "submitit").load_unfinished()
    folder.chmod(0o755)
    assert set(Journal(tmp_path / "submitit").load_unfinished()) == {"a"}


@pytest.mark.parametrize("name", ["no.module:Hook", "os:missing", "os:getcwd", "not a name"])
def test_a_hook_that_is_none_is_refused_in_a_line(name):
    with pytest.raises(ValueError, match=rf"^submitit-hook: {name}: [^\n]*$"):
        hook.load(name)
