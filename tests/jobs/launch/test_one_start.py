"""One start, timed and then traced: what it leaves, and what becomes of it where it does not come to its end."""

import errno
import shutil

import msgspec
import polars as pl
import pytest

from nightsweep.analysis.ingest import point_tables
from nightsweep.jobs.launch import launch, watchdog
from nightsweep.jobs.launch.attempt import ENDED_BEFORE, Attempt, Launcher
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.point.plan import Block
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record import untraced
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.json_files import json_line, read_json, read_lines, write_json
from nightsweep.jobs.record.launch_files import Job, RankError, RankResult, StepLine
from nightsweep.jobs.record.raw_files import MEASURED, pack, unpacked
from nightsweep.jobs.record.record import Failure, Record, Run
from nightsweep.jobs.telemetry.host_sampler import HostReader

NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 1, "device": "cpu"}
QUICK = {"warmup_steps": 1, "timed_steps": 3, "traced_steps": 3, "ranks_per_node": 2}


def nano(**settings):
    return complete(NANO | QUICK | settings)


def measure(tmp_path, point, servers=None):
    """Launch the point here; its record and folder."""
    folder = tmp_path / "points" / point.id
    folder.mkdir(parents=True)
    job = Job(sweep="t", point_id=point.id, settings=point.settings())
    launcher = Launcher(watchdog.Limits(120, 300), lambda: False, servers or Servers(fork=False))
    record = launch.launch(folder, job, launcher)
    write_json(folder / "record.json", record)
    return record, folder


def phases(folder, run, rank=0):
    return [(line.step, line.phase) for line in read_lines(folder / run / f"steps-r{rank}.jsonl", StepLine)]


# --- how a start of two runs ends, without ranks


def ended(tmp_path, monkeypatch, outcome, timed, traced, early=False, **settings):
    """How the launcher takes a start of two ranks, of which these wrote a result of the timed and of the traced run;
    and the point's folder."""

    def ranks(attempt, run_folder, order):
        for folder, written in ((run_folder, timed), (run_folder.traced, traced)):
            folder.path.mkdir(exist_ok=True)
            for rank in written:
                write_json(folder.rank_file(rank, "result.json"), RankResult(rank=rank, ended_early=early))
        return outcome

    monkeypatch.setattr(Attempt, "ranks", ranks)
    monkeypatch.setattr(launch, "uses_cuda", lambda _: False)
    return measure(tmp_path, nano(**settings))


STALLED = watchdog.Outcome("stalled", "no rank moved", Failure(rank=1))


def test_both_runs_of_a_start_that_ends_well_are_ok_and_one_begins_where_the_other_ends(tmp_path, monkeypatch):
    record, folder = ended(tmp_path, monkeypatch, watchdog.Outcome(), [0, 1], [0, 1])
    timed, traced = record.runs.timed, record.runs.traced
    assert (record.status, timed.status, traced.status, record.failure) == ("ok", "ok", "ok", None)
    assert timed.started_ns <= timed.ended_ns == traced.started_ns <= traced.ended_ns
    assert (timed.same_start, traced.same_start) == (False, True)
    assert (record.tracer.used, record.tracer.reason) == ("kineto", "in the start that was timed")
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["timed", "traced"]


@pytest.mark.parametrize("traced", [[], [0], [0, 1]])
def test_what_fails_after_all_ranks_were_timed_is_the_traced_run(tmp_path, monkeypatch, traced):
    record, _ = ended(tmp_path, monkeypatch, STALLED, [0, 1], traced)
    assert (record.status, record.reason, record.runs.timed.status) == ("ok", None, "ok")
    assert (record.runs.traced.status, record.runs.traced.reason) == ("failed", "stalled")
    assert (record.failure.run, record.failure.rank) == ("traced", 1)
    assert (record.tracer.used, record.tracer.reason) == (None, "no rank moved")


def test_a_trace_that_died_with_its_node_is_made_again(tmp_path, monkeypatch):
    """The timed steps alone were once all that the point ever had."""
    for place, (written, status) in enumerate([([0, 1], "ok"), ([0], "failed")]):
        outcome = watchdog.Outcome("node_failure", "srun: error: Node failure on n2")
        record, _ = ended(tmp_path / str(place), monkeypatch, outcome, written, [])
        assert record.status == status and untraced.lacks_trace(record) == (status == "ok")


@pytest.mark.parametrize(
    ("timed", "settings"),
    [([0], {}), ([0, 1], {"device": "cuda", "tenants": 2}), ([0, 1], {"early": True})],
    ids=["a rank", "tenants", "steps"],
)
def test_a_start_that_was_not_timed_whole_is_a_timed_run_that_failed(tmp_path, monkeypatch, timed, settings):
    """A rank's steps are missing; another tenant, which may have left at any time, failed; or a script failed in its
    timed steps."""
    record, folder = ended(tmp_path, monkeypatch, STALLED, timed, [0], **settings)
    assert (record.status, record.reason, record.failure.run) == ("failed", "stalled", "timed")
    assert record.runs.traced == Run()
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["timed"]


def test_a_script_that_ends_before_its_traced_steps_is_timed(tmp_path, monkeypatch):
    record, folder = ended(tmp_path, monkeypatch, watchdog.Outcome(), [0, 1], [1])
    assert (record.status, record.runs.timed.status, record.failure) == ("ok", "ok", None)
    assert record.runs.traced == Run(message=ENDED_BEFORE)
    assert (record.tracer.used, record.tracer.reason) == (None, ENDED_BEFORE)
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["timed"]


def test_a_second_start_of_a_kind_finds_nothing_of_the_first(tmp_path, monkeypatch):
    """As those of a search for the largest batch, one after the other."""
    found = []

    def ranks(attempt, run_folder, order):
        found.append([path.name for path in attempt.folder.iterdir()])
        run_folder.path.mkdir()
        return watchdog.Outcome()

    monkeypatch.setattr(Attempt, "ranks", ranks)
    launcher = Launcher(watchdog.Limits(120, 300), lambda: False, Servers(fork=False))
    for _ in range(2):
        Attempt(tmp_path, 1, nano(), launcher).run("search", "none", [Block("timed", 2)])
    assert found == [[], []]


def test_a_disk_that_is_full_when_ranks_are_started_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(watchdog, "Ranks", full)
    monkeypatch.setattr(launch, "uses_cuda", lambda _: False)
    record, _ = measure(tmp_path, nano())
    assert (record.status, record.reason) == ("failed", "disk_full")


def test_an_attempt_that_another_has_taken_over_leaves_nothing(tmp_path, monkeypatch):
    """As where a node is lost to Slurm alone, and locks of files do not reach it. Its record was once the point's, with
    the other's files."""

    def ranks(attempt, run_folder, order):
        run_folder.path.mkdir()
        with (attempt.folder / "attempts.jsonl").open("a") as sink:
            sink.write("{}\n")
        return watchdog.Outcome()

    point = nano(traced_steps=0)
    job = Job(sweep="t", point_id=point.id, settings=point.settings())
    launcher = Launcher(watchdog.Limits(120, 300), lambda: False, Servers(fork=False))
    monkeypatch.setattr(launch, "uses_cuda", lambda _: False)
    monkeypatch.setattr(Attempt, "ranks", ranks)
    assert launch.measure_block([(tmp_path / "p", job)], launcher) == 130
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["attempts.jsonl", "point.json"]


def test_an_attempt_that_is_taken_over_once_its_runs_are_done_is_not_kept(tmp_path, monkeypatch):
    def measured(folder, job, launcher):
        (folder / "attempts.jsonl").write_text("{}\n{}\n")
        return Record(status="ok", attempt=1)

    monkeypatch.setattr(launch, "launch", measured)
    assert launch.measure(tmp_path, None, None, leads=True).status == "cancelled"
    assert not (tmp_path / MEASURED).exists()


def test_a_trace_that_the_hook_could_not_take_is_not_the_scripts_end(tmp_path, monkeypatch):
    why = "steps are no longer watched: OSError: no space"
    settle = RunFolder.settle

    def with_reason(folder):
        write_json(folder.rank_file(1, "few.json"), {"why": why})
        return settle(folder)

    monkeypatch.setattr(RunFolder, "settle", with_reason)
    record, _ = ended(tmp_path, monkeypatch, watchdog.Outcome(), [0, 1], [1])
    assert record.runs.traced == Run(message=why) and record.status == "ok"


def test_the_folder_of_the_traced_run_is_beside_that_of_the_timed_one(tmp_path):
    assert RunFolder(tmp_path / "timed.3").traced.path == tmp_path / "traced.3"
    assert RunFolder(tmp_path / "timed").traced.path == tmp_path / "traced"
    assert RunFolder(tmp_path / "traced.3").traced.path == tmp_path / "traced.3"


# --- real ranks, on the CPU


@pytest.fixture(scope="module")
def starts(tmp_path_factory, servers):
    """Records and folders of the same point in one start and in two."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        points = {"one": nano(), "two": nano(tracer="kineto")}
        return {name: measure(tmp_path_factory.mktemp(name), point, servers) for name, point in points.items()}


@pytest.mark.slow
def test_one_start_leaves_what_two_leave_of_each_run(starts):
    left = {}
    for name, (record, folder) in starts.items():
        assert [run.status for _, run in record.runs.named()] == ["ok", "ok", "skipped"], record
        kinds = ("steps-*", "rank*.result.json", "trace-*")
        left[name] = sorted(str(path.relative_to(folder)) for kind in kinds for path in folder.glob(f"t*/{kind}"))
    assert left["one"] == left["two"] and len(left["one"]) == 10
    (_, one), (_, two) = starts.values()
    timed = [(0, "warmup"), (1, "timed"), (2, "timed"), (3, "timed")]
    assert phases(one, "timed") == phases(two, "timed") == timed
    assert phases(one, "traced") == [(4, "traced"), (5, "traced"), (6, "traced")]
    assert phases(two, "traced") == [(0, "warmup"), (1, "traced"), (2, "traced"), (3, "traced")]
    losses = [[line.loss for line in read_lines(f / "timed/steps-r1.jsonl", StepLine)] for f in (one, two)]
    assert losses[0] == losses[1]
    results = [read_json(one / run / "rank0.result.json", RankResult) for run in ("timed", "traced")]
    assert results[0].flops and results[1].flops is None
    assert results[0].window.end_ns < results[1].window.start_ns


@pytest.mark.slow
def test_the_trace_of_one_start_gives_the_tables_of_a_second_start(starts, tmp_path):
    tables = {name: point_tables.ingest(folder, tmp_path / name) for name, (_, folder) in starts.items()}
    keys = {"activities": ["category", "name", "count"], "breakdown": ["part"], "timeline": ["lane"]}
    for name, columns in keys.items():  # bars that touch are one, so that their number depends on times
        one, two = (found[name].select("rank", *columns).unique().sort(pl.all()) for found in tables.values())
        assert one.height and one.equals(two), name
    # The first traced step does not count.
    assert [sorted(set(found["breakdown"]["step"])) for found in tables.values()] == [[5, 6], [2, 3]]


@pytest.mark.slow
def test_samples_of_one_start_are_those_of_both_runs(starts, tmp_path):
    _, folder = starts["one"]
    assert list(folder.glob("timed/host-*.jsonl")) and not list(folder.glob("traced/host-*.jsonl"))
    began = min(read_json(folder / f"traced/rank{r}.result.json", RankResult).window.start_ns for r in (0, 1))
    sample = HostReader(RunFolder(folder / "timed")).read()
    with next(folder.glob("timed/host-*.jsonl")).open("a") as sink:  # on a fast machine both are over within a second
        sink.writelines(json_line(msgspec.structs.replace(sample, t_ns=began + s * 10**9)) for s in (-1, 1))
    samples = point_tables.ingest(folder, tmp_path)["host_samples"]
    assert set(samples["look"]) == {"timed", "traced"}
    assert all((t_ns >= began) == (look == "traced") for t_ns, look in samples.select("t_ns", "look").iter_rows())


@pytest.mark.slow
def test_the_archive_of_a_point_gives_its_tables(starts, tmp_path):
    record, folder = starts["one"]
    copy = tmp_path / "points" / folder.name
    shutil.copytree(folder, copy)
    write_json(copy / MEASURED, record)
    pack(copy)
    assert len([path for path in copy.rglob("*") if path.is_file()]) == 3 + 1 + 2  # JSON, archive, traces
    with unpacked(copy) as raw:
        kept, all_ = (point_tables.ingest(one, tmp_path / name) for name, one in (("kept", raw), ("all", folder)))
    assert kept.keys() == all_.keys()
    assert [name for name in kept if not kept[name].equals(all_[name])] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("exception", "rank_exception", "rank 1: DrillError"),
        ("kill", "rank_killed", "rank 1 died of signal 9 (SIGKILL)"),
        ("hang", "stalled", "no rank moved for 5 s"),
    ],
)
def test_a_rank_that_fails_in_a_traced_step_leaves_the_timed_run(tmp_path, monkeypatch, servers, fault, reason, words):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    trouble = watchdog.Ranks.trouble

    def impatient(ranks, stopped):
        """Starts take long on a busy machine; the steps do not."""
        if ranks.run_folder.traced.path.exists():
            ranks.limits = watchdog.Limits(5, 300)
        return trouble(ranks, stopped)

    monkeypatch.setattr(watchdog.Ranks, "trouble", impatient)
    record, folder = measure(tmp_path, nano(fault=f"{fault}@rank1:step5"), servers)
    assert (record.status, record.reason, record.runs.timed.status) == ("ok", None, "ok")
    traced = record.runs.traced
    assert (traced.status, traced.reason, record.failure.run) == ("failed", reason, "traced")
    assert words in traced.message and record.tracer.used is None
    for rank in (0, 1):
        assert phases(folder, "timed", rank) == [(0, "warmup"), (1, "timed"), (2, "timed"), (3, "timed")]
        result = read_json(folder / f"timed/rank{rank}.result.json", RankResult)
        assert result.window and result.flops.step
    if fault == "hang":
        assert "drill" in (folder / "timed/rank1.stacks.txt").read_text()
    else:
        assert record.failure.rank == 1
    if fault == "exception":
        assert "DrillError" in (folder / record.failure.tracebacks.first_failed).read_text()
        assert read_json(folder / "timed/rank1.error.json", RankError).reason == reason
    tables = point_tables.ingest(folder, tmp_path / "tables")
    assert tables["points"]["trace_status"].to_list() == ["failed"] and tables["points"]["status"].to_list() == ["ok"]
