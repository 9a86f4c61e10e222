"""The control of what measuring costs: its blocks, and real starts on the CPU."""

import json
import shutil
from itertools import groupby, pairwise

import pytest

from nightsweep.analysis.metrics.points import cost
from nightsweep.jobs.launch import control, launch, watchdog
from nightsweep.jobs.launch.attempt import Attempt, Launcher, RunEnd
from nightsweep.jobs.launch.starts import Servers
from nightsweep.jobs.point import plan
from nightsweep.jobs.point.plan import Block
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.launch_files import Job
from nightsweep.jobs.record.record import Run
from nightsweep.jobs.sweep.order import Order, read_order
from nightsweep.jobs.telemetry import host_sampler

NANO = {"workload": "llm", "model": "llama-nano", "seq_len": 32, "micro_batch": 1, "device": "cpu"}
QUICK = {"warmup_steps": 1, "timed_steps": 4, "traced_steps": 2}
SLACK_NS = 50_000_000
"""A signal takes a moment, the more so on a busy machine."""


def nano(**settings):
    return complete(NANO | QUICK | settings)


def measure(tmp_path, point, servers=None):
    """Launch the point here; its record and folder."""
    folder = tmp_path / "points" / point.id
    folder.mkdir(parents=True, exist_ok=True)
    job = Job(sweep="t", point_id=point.id, settings=point.settings())
    launcher = Launcher(watchdog.Limits(120, 300), lambda: False, servers or Servers())
    return launch.launch(folder, job, launcher), folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- plans


def test_the_looks_are_one_block_each_in_one_start_unless_a_second_one_is_asked_for():
    timed, traced = Block("timed", 4, sampled=True, captured=False), Block("traced", 2, sampled=True, captured=True)
    assert plan.timed_blocks(nano()) == [timed, traced]
    for second in (nano(tracer="kineto"), nano(tracer="nsys")):
        assert (plan.timed_blocks(second), plan.traced_blocks(second)) == ([timed], [traced])
    assert plan.timed_blocks(nano(traced_steps=0)) == [timed]


def test_blocks_with_and_without_the_samplers_swap_their_turns():
    blocks = plan.control_plain(7)
    none, sampler = Block("none", 7, sampled=False, captured=False), Block("sampler", 7, sampled=True, captured=False)
    assert blocks == [none, sampler, sampler, none] * (plan.ALTERNATIONS // 2)
    places = {phase: [n for n, b in enumerate(blocks) if b.phase == phase] for phase in ("none", "sampler")}
    assert sum(places["none"]) == sum(places["sampler"])  # a drift falls on both alike


def test_kineto_captures_several_times_for_as_long_as_the_traced_look_does():
    idle, capturing = Block("idle", 7, sampled=False), Block("capturing", 3, sampled=False, captured=True)
    assert plan.control_tracer(nano(traced_steps=3), 7, "kineto") == [idle, capturing] * plan.CAPTURES
    assert plan.control_tracer(nano(traced_steps=1), 7, "kineto")[1].steps == 2  # the first is left out of the ratio


def test_nsys_captures_once_at_the_end():
    blocks = plan.control_tracer(nano(), 7, "nsys")
    assert [b.captured for b in blocks] == [False] * plan.ALTERNATIONS + [True]
    assert blocks[-1] == Block("capturing", 14, sampled=False, captured=True)


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, 50), (0.3, 5), (2.0, 5), (0.0021, 239), (0.0, 4)])
def test_a_block_lasts_half_a_second_and_five_steps_at_least(step_s, steps):
    assert plan.block_steps(nano(), step_s) == steps


def test_a_step_is_the_median_of_the_timed_ones_by_the_device_where_there_is_one(tmp_path):
    (tmp_path / "timed").mkdir()
    host_s, device_s = [("warmup", 9), ("timed", 1), ("timed", 2), ("timed", 9)], [None, 0.5, 0.25, None]
    rows = [
        {"phase": phase, "start_ns": 7, "end_ns": 7 + s * 10**9, "device_ns": device and int(device * 10**9)}
        for (phase, s), device in zip(host_s, device_s, strict=True)
    ]
    (tmp_path / "timed/steps-r0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert control.step_s(tmp_path) == 0.5
    assert control.step_s(tmp_path / "nothing") == 0.0


def test_a_plan_is_the_same_on_the_other_side(tmp_path):
    for blocks in (plan.timed_blocks(nano()), plan.control_plain(9), plan.control_tracer(nano(), 9, "nsys")):
        order = Order(settings=nano().settings(), blocks=blocks)
        order.write(RunFolder(tmp_path))
        assert read_order(RunFolder(tmp_path)) == order


# --- which starts there are


class Played(list):
    """Stands for Attempt.run: notes (kind, tracer, samplers), and says what a start is told to say."""

    def __init__(self, **told):
        super().__init__()
        self.told = told

    def __call__(self, kind, tracer, blocks, *, samplers=True):
        self.append((kind, tracer, samplers))
        goes_on = kind == "timed" and any(block.phase == "traced" for block in blocks)
        return RunEnd(self.entry(kind), traced=RunEnd(self.entry("traced")) if goes_on else None)

    def entry(self, kind):
        (reason, message), now = self.told.get(kind.replace("-", "_"), (None, None)), len(self) * 10**9
        status = "failed" if reason else "ok"
        return Run(status=status, reason=reason, message=message, started_ns=now, ended_ns=now + 10**8, wall_s=0.1)


def played(tmp_path, monkeypatch, point, **told):
    starts = Played(**told)
    monkeypatch.setattr(Attempt, "run", lambda self, *args, **more: starts(*args, **more))
    record, _ = measure(tmp_path, point)
    return record, starts


def test_without_pairs_there_is_no_control(tmp_path, monkeypatch):
    record, starts = played(tmp_path, monkeypatch, nano(cost_pairs=0))
    assert starts == [("timed", "kineto", True)]
    assert record.runs.traced.status == "ok" and record.runs.control == Run()


def test_a_second_start_is_one_of_its_own(tmp_path, monkeypatch):
    record, starts = played(tmp_path, monkeypatch, nano(tracer="kineto"))
    assert starts == [("timed", "none", True), ("traced", "kineto", True)]
    assert (record.tracer.used, record.tracer.reason) == ("kineto", "the point asks for it")


def test_pairs_of_starts_take_turns_and_are_one_entry(tmp_path, monkeypatch):
    record, starts = played(tmp_path, monkeypatch, nano(cost_pairs=2))
    starts_of_control = [("plain-0", "none", True), ("tracer-0", "kineto", False)]
    starts_of_control += [("plain-1", "none", True), ("tracer-1", "kineto", False)]
    assert starts == [("timed", "kineto", True), *((f"cost-{k}", t, s) for k, t, s in starts_of_control)]
    run = record.runs.control
    assert (run.status, run.started_ns, run.ended_ns) == ("ok", 2 * 10**9, 51 * 10**8)
    assert run.wall_s == pytest.approx(3.1)


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"traced_steps": 0}, {}), ({}, {"traced": ("rank_exit", "no trace")})],
    ids=["no trace", "trace failed"],
)
def test_a_tracer_that_did_not_trace_has_no_cost(tmp_path, monkeypatch, settings, told):
    record, starts = played(tmp_path, monkeypatch, nano(cost_pairs=1, **settings), **told)
    assert [kind for kind, *_ in starts if kind.startswith("cost-")] == ["cost-plain-0"]
    assert record.runs.control.status == record.status == "ok"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"timed": ("rank_exit", "bad")}, ["timed"]),
        ({"traced": ("interrupted", "told to stop")}, ["timed"]),
        ({"cost_plain_0": ("interrupted", "told to stop")}, ["timed", "cost-plain-0"]),
        ({"cost_plain_0": ("rank_exit", "bad")}, ["timed", "cost-plain-0"]),
        ({"cost_tracer_0": ("stalled", "bad")}, ["timed", "cost-plain-0", "cost-tracer-0"]),
    ],
    ids=lambda value: "-".join(value),
)
def test_nothing_is_started_after_a_start_that_says_it_is_no_use(tmp_path, monkeypatch, told, expected):
    record, starts = played(tmp_path, monkeypatch, nano(cost_pairs=2), **told)
    assert [kind for kind, *_ in starts] == expected
    (reason,) = (reason for reason, _ in told.values())
    assert record.status == ("cancelled" if reason == "interrupted" else "failed" if "timed" in told else "ok")


def test_reports_that_the_control_leaves_are_thrown_away(tmp_path, monkeypatch):
    starts = Played(cost_tracer_0=("rank_exit", "bad"))

    def run(self, kind, *args, **more):
        (self.folder / kind).mkdir()
        (self.folder / kind / "trace-r0.nsys-rep").touch()
        return starts(kind, *args, **more)

    monkeypatch.setattr(Attempt, "run", run)
    _, folder = measure(tmp_path, nano(cost_pairs=1, tracer="kineto"))
    assert [path.parent.name for path in folder.glob("*/trace-*") if path.parent.name != "timed"] == ["traced"]


def test_nothing_of_an_earlier_attempt_passes_for_this_ones(tmp_path, monkeypatch):
    """Its launcher died before it wrote a record."""
    point = nano(cost_pairs=1)
    for kind in ("timed", "traced", "cost-plain-0", "cost-tracer-0.1"):
        (tmp_path / "points" / point.id / kind).mkdir(parents=True)
    played(tmp_path, monkeypatch, point, timed=("rank_exit", "bad"))
    assert [path.name for path in (tmp_path / "points" / point.id).iterdir() if path.is_dir()] == []


# --- real ranks, on the CPU


@pytest.fixture(scope="module")
def measured(tmp_path_factory, servers):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        monkeypatch.setattr(plan, "ALTERNATIONS", 4)  # half as many as usual, to save time
        return measure(tmp_path_factory.mktemp("control"), nano(cost_pairs=1), servers)


def spans(folder):
    """The blocks of a start on rank 0: (phase, start, end) in order of time."""
    rows = lines(folder / "steps-r0.jsonl")
    groups = [list(group) for _, group in groupby(rows, lambda row: row["block"])]
    return [(group[0]["phase"], group[0]["start_ns"], group[-1]["end_ns"]) for group in groups]


@pytest.mark.slow
def test_a_pair_of_starts_leaves_steps_of_every_phase_and_no_trace(measured):
    record, folder = measured
    assert (record.status, record.runs.control.status) == ("ok", "ok"), record.runs.control
    assert sorted(path.name for path in folder.glob("cost-*")) == ["cost-plain-0", "cost-tracer-0"]
    turns = ["none", "sampler", "sampler", "none"] * 2
    assert [phase for phase, *_ in spans(folder / "cost-plain-0")] == ["warmup", *turns]
    captures = ["idle", "capturing"] * plan.CAPTURES
    assert [phase for phase, *_ in spans(folder / "cost-tracer-0")] == ["warmup", *captures]
    assert list(folder.glob("cost-*/trace-*")) == []
    assert (folder / "traced/trace-r0.json.gz").exists()
    assert {row["condition"] for row in cost.rows(folder, record)} == {"sampler", "idle", "capturing"}


@pytest.mark.slow
def test_blocks_last_as_long_as_they_should_by_the_step_of_the_timed_run(measured):
    folder = measured[1]
    steps = sorted(r["end_ns"] - r["start_ns"] for r in lines(folder / "timed/steps-r0.jsonl") if r["phase"] == "timed")
    asked = plan.block_steps(nano(), (steps[1] + steps[2]) / 2 / 1e9)
    counts = {
        (row["phase"], len(list(group)))
        for name in ("plain", "tracer")
        for _, group in groupby(lines(folder / f"cost-{name}-0/steps-r0.jsonl"), lambda row: row["block"])
        for row in [next(group)]
    }
    assert {(phase, n + 1) for phase, n in counts} == {
        ("warmup", 1), ("none", asked), ("sampler", asked), ("idle", asked), ("capturing", 2),
    }  # fmt: skip


@pytest.mark.slow
def test_the_samplers_stand_still_while_nothing_is_to_watch_and_only_then(measured):
    _, folder = measured
    (log,) = (folder / "cost-plain-0").glob("host-*.jsonl")
    times = [row["t_ns"] for row in lines(log)]
    blocks = spans(folder / "cost-plain-0")[1:]
    alone = [(start, end) for phase, start, end in blocks if phase == "none"]
    for start, end in alone:
        assert [t for t in times if start + SLACK_NS < t < end - SLACK_NS] == []
    # Between two of them the samplers tick at their rate, at once when they are let go; a busy machine may keep one of
    # them from the processor now and then.
    late = []
    for (_, start), (end, _) in pairwise(alone):
        if end - start > 2 * SLACK_NS:  # two blocks with the samplers; none where two without them meet
            ticks = [start, *(t for t in times if start - SLACK_NS <= t <= end + SLACK_NS), end]
            late.append(
                max(b - a for a, b in pairwise(ticks)) > host_sampler.INTERVAL_S * 1e9 + 5 * SLACK_NS or len(ticks) < 3
            )
    assert late and not all(late)


@pytest.mark.slow
def test_no_sampler_runs_beside_the_tracer(measured):
    _, folder = measured
    assert list((folder / "cost-tracer-0").glob("host-*.jsonl")) == []
    (told,) = (folder / "cost-tracer-0").glob("samplers-*.json")
    assert json.loads(told.read_text()) == {"pids": []}
    assert list((folder / "timed").glob("host-*.jsonl"))  # where they do


@pytest.mark.slow
def test_a_control_that_fails_leaves_the_point_ok_and_says_why(tmp_path, monkeypatch, servers, measured):
    """A fault in a step that the timed run, here one from before, does not have: a sweep may not ask for it."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    before, run = measured, Attempt.run

    def shorter(self, kind, *args, **more):
        if kind != "timed":
            return run(self, kind, *args, **more)
        shutil.copytree(before[1] / "timed", self.folder / "timed")
        return RunEnd(before[0].runs.timed)

    monkeypatch.setattr(Attempt, "run", shorter)
    point = nano(cost_pairs=1, traced_steps=0, ranks_per_node=2, fault="exception@rank1:step6")
    record, folder = measure(tmp_path, point, servers)
    assert (record.status, record.reason, record.runs.timed.status) == ("ok", None, "ok")
    run = record.runs.control
    assert (run.status, run.reason) == ("failed", "rank_exception")
    assert run.message.startswith("rank 1: DrillError")
    assert (record.failure.run, record.failure.rank) == ("control", 1)
    assert "DrillError" in (folder / record.failure.tracebacks.first_failed).read_text()
    assert [path.name for path in folder.glob("cost-*")] == ["cost-plain-0"]
