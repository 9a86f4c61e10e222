"""What rules rest on, by itself: pauses, kernels with few blocks, layouts, buckets, intervals."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.cause import Share, replayed
from nightsweep.analysis.diagnosis.causes import communication, monitoring
from nightsweep.analysis.diagnosis.evidence import batch, kernel_savings, messages, sources
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence
from nightsweep.analysis.diagnosis.replay import pauses
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.record.launch_files import WHOLE_RUN, RankResult, Window
from tests.analysis.diagnosis.diagnosed import LAUNCH, MS, STEP, Run, busy, causes, evidence, of, shares
from tests.labelled import packed, score, scripts


@pytest.mark.parametrize(
    ("framework", "operators", "gap", "loading", "works"),
    [
        (False, 0, 2 * MS, 0, True),
        (True, 0, 40 * MS, 0, False),
        (True, 40, 40 * MS, 0, True),
        (True, 8, 40 * MS, 0, False),  # the thread waits for a core, once
        (True, 40, 10 * MS, 0, False),  # these launch
        (True, 40, 40 * MS, 30 * MS, False),
    ],
)
def test_many_long_operators_in_a_pass_are_work_of_the_host(tmp_path, framework, operators, gap, loading, works):
    graph = of(tmp_path, busy).what_if.graph
    like = np.ones(len(graph.calls.start), np.int64)
    calls = dataclasses.replace(
        graph.calls,
        framework=like * framework > 0,
        noted=like * (1 + operators),
        gap=like * gap,
        loading_gap=like * loading,
    )
    assert pauses.working(dataclasses.replace(graph, calls=calls)).all() == works


@pytest.mark.parametrize(("source", "waits"), [("pageable", True), ("pinned", False)])
def test_a_call_that_copies_a_pinned_batch_waits_for_nothing_however_long_it_takes(tmp_path, source, waits):
    """A kernel ends by chance while it runs."""

    def make(run, start):
        run.kernel(start, start + 2 * MS, at=start)
        run.copy(start + 2 * MS, start + 2 * MS + 4_000, 40_000, source, at=start + 1_960_000, called=start + 2_010_000)
        busy(run, start, 10 * MS, 3 * MS)

    graph = of(tmp_path, make).what_if.graph
    copying = graph.calls.name.str.contains("Memcpy").to_numpy() & graph.counted_calls
    assert copying.any() and (graph.calls.waits_for[copying] >= 0).all() == waits


@pytest.mark.parametrize(("few", "small"), [([True, True, False], True), ([True, False, False], False)])
def test_few_kernels_with_few_blocks_make_no_small_batch(few, small):
    """However long they take."""
    e = SimpleNamespace(savings=[pl.DataFrame({"few": few})])
    assert batch._most_are_small(e) == small


def kernels(**times):
    """Of each name one that takes so long, in %, one after the other."""
    kinds = {"conv": "convolution", "layer_norm_kernel": "normalisation"}
    ends = np.cumsum(list(times.values()))
    return pl.DataFrame(
        {
            "name": [NAMES.get(name, name) for name in times],
            "category": [kinds.get(name, "memory") for name in times],
            "start_ns": ends - list(times.values()),
            "end_ns": ends,
            "est_sm_efficiency": [1.0] * len(times),
        }
    )


NAMES = {"copy": "void at::native::elementwise_kernel<128, 4, nocast<direct_copy_kernel_cuda"}


@pytest.mark.parametrize(
    ("times", "copies"),
    [
        ({"conv": 60, "layer_norm_kernel": 20, "nchwToNhwcKernel": 10, "copy": 10}, 1),
        ({"conv": 60, "layer_norm_kernel": 20, "other": 10, "copy": 10}, 0),  # all of it is in NHWC
        ({"conv": 5, "layer_norm_kernel": 20, "nchwToNhwcKernel": 10, "copy": 65}, 0),  # a transformer of pictures
    ],
)
def test_copies_change_the_layout_beside_convolutions_that_are_in_nchw(times, copies):
    assert kernel_savings._layout_savings(kernels(**times))[list(times).index("copy")] == copies


def test_an_interval_that_begins_at_nothing_still_does():
    assert replayed(0.02).within(0.5, 2) == Share(0.02, 0.0, pytest.approx(0.0635, abs=1e-3))
    assert Share(0.4, 0.2, 0.5).within(0.5, 2) == Share(0.4, pytest.approx(0.3), pytest.approx(0.6))
    assert Share(0.8, 0.7, 0.95).within(1, 3) == Share(0.8, pytest.approx(0.7), 1.0)


def test_an_interval_ends_at_what_can_be_gained_at_most_but_never_below_its_share():
    assert [Share(0.4, 0.2, 0.6).at_most(most).high for most in (0.7, 0.5, 0.3)] == [0.6, 0.5, 0.4]


def test_buckets_smaller_than_usual_are_enlarged_first(tmp_path):
    e = sources.gather([packed.unpacked(score.KEPT / "buckets_gpt_loop", tmp_path)])
    (cause,) = communication.exposed_communication(e)
    assert cause.remedy == {"ddp_bucket_mb": 25}
    usual = sources.gather([packed.unpacked(score.KEPT / "healthy_nanogpt_ddp", tmp_path)])
    assert not communication._in_small_buckets(usual)


@pytest.mark.parametrize(("sending", "told"), [(4, {"no_sync": True}), (1, {"comm_hook": "bf16"})])
def test_a_script_that_averages_in_its_last_pass_alone_is_not_told_to(tmp_path, sending, told):
    """Four passes of 2 ms: messages take half of each of the last ones."""

    def make(run, start):
        for number in range(4):
            begins = start + 2 * number * MS
            busy(run, begins, MS)
            if number >= 4 - sending:
                run.reduce(begins + MS, begins + 2 * MS, 100_000_000, at=begins + MS - LAUNCH)
            run.add("nvtx", "backward", begins, begins + 2 * MS)

    script = {"workload": "command", "command": "train.py", "launcher": "torchrun", "ranks_per_node": 2}
    results = [{"places": {"DistributedDataParallel": {"train.py:3": 1}}, "passes": 4}]
    (cause,) = communication.exposed_communication(of(tmp_path, make, ranks=2, settings=script, results=results))
    assert cause.remedy == told


@pytest.mark.parametrize("places", [{}, {"DistributedDataParallel": {"train.py:3": 1}}])
def test_only_a_script_that_has_ddp_is_told_to_set_what_is_ddps(tmp_path, places):
    def make(run, start):
        busy(run, start, 5 * MS)
        for at in range(start + 5 * MS, start + 7 * MS, MS // 10):
            run.reduce(at, at + MS // 10, 4096)
        run.reduce(start + 7 * MS, start + 9 * MS, 20_000_000)
        busy(run, start, 10 * MS, 9 * MS)

    script = {"workload": "command", "command": "train.py", "launcher": "torchrun", "ranks_per_node": 2}
    e = of(tmp_path, make, ranks=2, settings=script, results=[{"places": places}])
    causes = [*communication.small_messages(e), *communication.slow_interconnect(e)]
    told = [{"ddp_bucket_mb": 25}, {"comm_hook": "bf16"}]
    assert [cause.remedy for cause in causes] == (told if places else [{}, {}])


def test_an_all_to_all_is_as_large_for_a_rank_that_sends_little():
    """Of two ranks one sends twice 12.5 MB, half of it to itself, the other next to nothing."""
    columns = {"start_ns": [5], "collective": ["all_to_all"], "bytes": [50_000], "total_bytes": [25_000_000]}
    sent = pl.DataFrame({**columns, "ranks": [2], "matched_ranks": [2]})
    steps = pl.DataFrame({"start_ns": [0], "end_ns": [10]})
    found = messages.calls(SimpleNamespace(steps=steps, collectives=sent))
    assert found.select("bytes", "on_bus").row(0) == (12_500_000, 12_500_000)
    unmatched = sent.with_columns(total_bytes=pl.lit(None, pl.Int64))
    assert messages.calls(SimpleNamespace(steps=steps, collectives=unmatched))["bytes"][0] == 50_000


def test_lines_of_a_script_are_told_with_what_they_were_counted_in(tmp_path):
    def make(run, start):
        run.copy(start, start + 5 * MS, 50_000_000, "pageable", at=start, called=start + 5 * MS)
        busy(run, start, STEP, 5 * MS + 500_000, launch=5 * MS + 500_000)

    places = {"copy to the GPU": {"train.py:7": 2}, "DataLoader": {"train.py:3": 1}}
    found = causes(
        of(tmp_path, make, settings={"workload": "command", "command": "train.py"}, results=[{"places": places}])
    )
    told = [(fact.what, fact.value, fact.unit) for fact in found["h2d_pageable"].evidence[-2:]]
    assert told == [
        ("DataLoader: train.py:3", 1, "time in the run"),
        ("copy to the GPU: train.py:7", 2, "times in one step"),
    ]


def test_a_first_cause_is_as_good_as_the_label_where_its_remedy_gave_as_much():
    run = next(run for run in scripts.load() if run.name == "empty_cache_trainer")
    found = {"causes": [{"kind": "launch_bound", "share": 0.4, "remedy": {"compile": "reduce-overhead"}}]}
    fixes, tried = score.measured(), score.measured(score.TRIED, "tried")
    assert "messages_adapters" not in tried  # it crashed
    assert score.as_good(run, found, fixes, tried)
    assert not score.as_good(run, found, fixes, {run.name: fixes[run.name] - 0.06})
    assert not score.as_good(run, {"causes": [{**found["causes"][0], "remedy": {}}]}, fixes, tried)


def test_what_is_tried_comes_on_top_of_what_is_slow(tmp_path):
    run = next(run for run in scripts.load() if run.name == "norms_simclr")
    slow, tried = (run.point(side, tmp_path, tmp_path) for side in ("slow", "tried"))
    assert (slow.command, slow.compile) == (tried.command, None) and tried.compile == "reduce-overhead"


def test_a_line_for_each_kind():
    lines = list(score.by_kind([("host_sync", 0.1, True, 0.2), ("host_sync", -0.2, False, 0.1)]))
    assert lines == ["host_sync                 1 of  2 as predicted; measured less predicted, median: -5; half width, "
                     "median: 15"]  # fmt: skip


@pytest.mark.parametrize(
    ("note", "advice"),
    [
        ("no steps were found in the script: timed as a whole", "have the script's steps found"),
        ("the script's 5 steps were too few: timed as a whole", "let the script take more than 28 steps (5 of warm-up"),
    ],
)
def test_a_script_without_steps_and_one_with_too_few_have_their_own_advice(note, advice):
    result = RankResult(rank=0, window=Window(start_ns=0, end_ns=1), step_source=WHOLE_RUN, notes=[note])
    settings = {"workload": "command", "command": "t.py", "timed_steps": 20, "traced_steps": 3}
    found = Evidence(point=complete(settings), results=(result,), absent={"trace": "there is none"})
    (cause,) = monitoring.missing_trace(found)
    assert cause.advice.startswith(advice) and not cause.remedy


@pytest.mark.parametrize(("count", "length", "wait"), [(5, 10, 0.6), (3, 10, 0.6), (2, 4, 0.0)])
def test_a_loader_outside_of_the_steps_ranges_counts(tmp_path, count, length, wait):
    """Ranges of steps that leave the loader out: a step reaches to the start of the next, which the last does not
    have. Where that is the only one to count, the diagnosis says so."""
    run = Run()
    for number in range(count):
        start = 10 * MS + number * STEP
        run.step(number, start, start + 4 * MS)
        busy(run, start, 4 * MS)
        run.range("dataloader", start + 4 * MS, start + STEP)
    e = evidence([run], tmp_path)
    assert verdict.judge(e).step_ms == length and shares(e).get("loader_wait", 0.0) == wait
    assert ("trace of the next step" in e.absent) == (count == 2)
    told = {cause.kind: cause.advice for cause in verdict.judge(e).causes}
    assert told.get("missing_trace", "").startswith("trace three steps at least") == (count == 2)


@pytest.mark.parametrize(("traced", "remedy"), [(2, {"traced_steps": 3}), (3, {})])
def test_where_the_only_step_that_counts_has_no_end_three_are_to_be_traced(traced, remedy):
    point = complete({"workload": "image", "model": "mobilenet_v2", "traced_steps": traced})
    (cause,) = monitoring.missing_trace(Evidence(point=point, absent={"trace of the next step": "is not seen"}))
    assert cause.remedy == remedy and cause.advice.startswith("trace three steps at least")
