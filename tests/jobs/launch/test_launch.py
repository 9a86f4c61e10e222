"""Real launches on the CPU: ranks, runs, records, and failures made on purpose."""

import gzip
import json
import subprocess
import sys

import pytest
from msgspec import to_builtins

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.flops import count

NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 2, "device": "cpu"}
QUICK = {"warmup_steps": 1, "timed_steps": 4, "traced_steps": 0, "ranks_per_node": 2}


def launch(tmp_path, *extra_args, **settings):
    """Run the point; its record and folder."""
    (found,) = launch_all(tmp_path, [settings], *extra_args)
    return found


def launch_all(tmp_path, points, *extra_args):
    """Run the points one after the other; the record and folder of each. Ranks of several are forked."""
    points = [complete(NANO | QUICK | settings) for settings in points]
    listed = [{"point_id": point.id, "settings": point.settings()} for point in points]
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"name": "t", "points": listed}))
    folders = [tmp_path / "points" / point.id for point in points]
    command = [
        sys.executable,
        "-m",
        "nightsweep.jobs.launch.launch",
        *map(str, folders),
        "--sweep",
        str(sweep),
        *extra_args,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return [(json.loads((folder / "record.json").read_text()), folder) for folder in folders]


def phases(record, look):
    """Phases of a start of ranks, in order, each once; all of the record lie end to end."""
    times = [phase["start_ns"] for phase in record["phases"]]
    assert times == sorted(times) and record["phases"][0]["phase"] == "launch"
    assert [phase["phase"] for phase in record["phases"][-2:]] == ["record", "end"]
    assert 0 <= (times[-1] - times[0]) / 1e9 - record["wall_s"] < 30  # and what the process did before
    return list(dict.fromkeys(phase["phase"] for phase in record["phases"] if phase["look"] == look))


def losses(folder, rank):
    return [json.loads(line)["loss"] for line in (folder / f"timed/steps-r{rank}.jsonl").read_text().splitlines()]


FAULTS = {
    "exception": ("rank_exception", "rank 1: DrillError"),
    "kill": ("rank_killed", "rank 1 died of signal 9 (SIGKILL)"),
    "nan": ("loss_nan", "loss is nan at step"),
}
PIPELINE = {"strategy": "pp", "grad_accum": 2, "traced_steps": 2, "trace_ranks": "1"}


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The record and folder of a point with each fault, and of those after them that have none."""
    points = {fault: {"fault": f"{fault}@rank1:step2"} for fault in FAULTS} | {
        "hang": {"fault": "hang@rank1:step2"},
        "pipeline": PIPELINE,
        "both": {"traced_steps": 2, "method": "lora"},
    }
    folder = tmp_path_factory.mktemp("several")
    return dict(zip(points, launch_all(folder, points.values(), "--stall-s", "75"), strict=True))


@pytest.mark.slow
def test_both_looks_leave_steps_samples_and_a_trace_of_each_rank(several):
    record, folder = several["both"]
    assert (record["status"], record["reason"], record["tracer"]["used"]) == ("ok", None, "kineto")
    assert record["looks"]["traced"]["status"] == "ok"
    assert len(losses(folder, 0)) == len(losses(folder, 1)) == 5
    assert all((folder / f"traced/trace-r{rank}.json.gz").stat().st_size > 1000 for rank in (0, 1))
    found = {run: json.loads((folder / f"{run}/rank0.result.json").read_text()) for run in ("timed", "traced")}
    assert found["timed"]["flops"] == to_builtins(count(complete(NANO | {"method": "lora"})))
    assert found["traced"]["flops"] is None
    assert list((folder / "timed").glob("host-*.jsonl"))
    start = ["start", "import", "process_group", "data", "model", "warmup"]
    # One start, and so phases of one.
    assert phases(record, "timed") == [*start, "timed", "results", "flops", "tracing", "traced", "teardown"]
    assert phases(record, "traced") == []
    names = [phase["phase"] for phase in record["phases"] if phase["look"] == "timed"]
    marks = [phase["start_ns"] for phase in record["phases"] if phase["look"] == "timed"]
    timed_s = (marks[names.index("results")] - marks[names.index("timed")]) / 1e9
    windows = [json.loads((folder / f"timed/rank{rank}.result.json").read_text())["window"] for rank in (0, 1)]
    begun, ended = (max(window[end] for window in windows) for end in ("start_ns", "end_ns"))  # of the slowest rank
    assert timed_s == pytest.approx((ended - begun) / 1e9, abs=0.05)
    assert record["software"]["packages"]["torch"] and record["hosts"][0]["cpu_model"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failure_is_told_with_its_rank_and_tracebacks(several, fault):
    (reason, words), (record, folder) = FAULTS[fault], several[fault]
    assert (record["status"], record["reason"]) == ("failed", reason)
    assert words in record["message"]
    paths = record["failure"]["tracebacks"]
    assert (folder / paths["rank0"]).stat().st_size
    came_to = ["process_group", "data", "model", "warmup", "timed"] + ["results"] * (reason == "loss_nan")
    assert phases(record, "timed") == ["start", "import", *came_to, "teardown"]
    assert {phase["reason"] for phase in record["phases"] if phase["look"]} == {reason}
    if reason == "rank_exception":
        assert "DrillError" in (folder / paths["first_failed"]).read_text()


@pytest.mark.slow
def test_a_rank_that_hangs_is_ended_after_the_set_time_with_everyones_stacks(several):
    record, folder = several["hang"]
    assert record["reason"] == "stalled"
    assert "drill" in (folder / "timed/rank1.stacks.txt").read_text()


def test_more_nodes_than_one_are_refused_outside_slurm(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    record, _ = launch(tmp_path, nodes=2)
    assert (record["status"], record["reason"]) == ("failed", "launch_failed")


@pytest.mark.slow
def test_a_pipeline_through_all_of_it(several):
    """Two stages, one copy of the samples; ranges of its own in the trace."""
    record, folder = several["pipeline"]
    assert record["status"] == "ok", record["message"]
    assert losses(folder, 0) == losses(folder, 1)
    rows = [json.loads((folder / f"timed/steps-r{rank}.jsonl").read_text().splitlines()[-1]) for rank in (0, 1)]
    assert [(row["samples"], row["tokens"]) for row in rows] == [(4, 128), (0, 0)]
    assert b'"pipeline"' in gzip.decompress((folder / "traced/trace-r1.json.gz").read_bytes())
    flops = [json.loads((folder / f"timed/rank{rank}.result.json").read_text())["flops"] for rank in (0, 1)]
    assert flops[0] == flops[1] and sum(f["step"] for f in flops) == count(complete(NANO | {"grad_accum": 2})).step
