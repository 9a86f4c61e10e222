"""Replays: of timelines whose outcome is known, and of recorded runs that are told in another way."""

import re
import time

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.evidence import named_pauses, sources
from nightsweep.analysis.diagnosis.replay import changes, edit, host, rank_changes, times
from nightsweep.analysis.diagnosis.replay.build import build
from nightsweep.analysis.diagnosis.replay.what_if import SAME, WhatIf
from nightsweep.analysis.ingest import trace_tables
from tests.analysis.diagnosis.diagnosed import LAUNCH, MS, STEP, US, busy, causes, evidence, of, steps_of
from tests.fakes.ranks import unpack


def loading(run, start):
    """6 ms of a step pass before the batch is there."""
    run.range("data", start, start + 6 * MS)
    busy(run, start, STEP, 6 * MS)


def what_if(tmp_path, make, **more):
    return of(tmp_path, make, **more).what_if


def test_without_a_change_a_replay_gives_the_measured_times(tmp_path):
    graph = what_if(tmp_path, loading, ranks=2).graph
    again = times.replay(graph)
    assert again.work_start.tolist() == graph.work.start.tolist() and again.work_end.tolist() == graph.work.end.tolist()
    assert again.call_start.tolist() == graph.calls.start.tolist()
    assert again.call_end.tolist() == graph.calls.end.tolist()


def test_a_faster_device_helps_no_more_than_the_host_lets_it(tmp_path):
    """The host launches a piece each ms, 0.9 ms of which it computes: twice as fast, the GPU waits for the host."""

    def make(run, start):
        for at in range(start, start + STEP, MS):
            run.kernel(at + LAUNCH, at + LAUNCH + 900 * US, at=at)

    found = what_if(tmp_path, make)
    half = found.graph.work.duration // 2
    assert found.after(lambda graph: edit.change_work(graph, half > 0, duration=half)) > 0.95 * STEP
    assert found.gain(changes.without_launches) == pytest.approx(0.1, abs=0.01)


def test_a_call_is_made_as_long_as_some_of_what_it_launches_is(tmp_path):
    """Two kernels of each call, as of a graph: without the second the call is as long as before, without both it is not
    made."""

    def make(run, start):
        for at in range(start, start + STEP, 2 * MS):
            run.kernel(at + LAUNCH, at + MS, at=at)
            run.kernel(at + MS, at + 2 * MS - LAUNCH, at=at)

    graph = what_if(tmp_path, make).graph
    all_of_it, launching = np.ones(len(graph.work.start)), np.unique(graph.work.call[graph.counted_work])
    assert len(launching) * 2 == graph.counted_work.sum()
    second = np.append(False, graph.work.call[1:] == graph.work.call[:-1])
    one, none = (changes.with_messages(graph, all_of_it, np.where(gone, 0.0, 1.0)) for gone in (second, all_of_it > 0))
    assert (one.calls.least == graph.calls.least).all() and (one.calls.gap == graph.calls.gap).all()
    assert (graph.calls.least[launching] > 0).all() and (none.calls.least[launching] == 0).all()


def test_what_two_changes_give_together(tmp_path):
    """Of a step 6 ms are loading. The GPU's 4 ms at half their time give nothing first, and 2 ms afterwards."""
    found = what_if(tmp_path, loading)
    half = found.graph.work.duration // 2

    def faster(graph):
        return edit.change_work(graph, half > 0, duration=half)

    assert found.gain(changes.without_loading) == pytest.approx(0.6, abs=1e-3)
    assert found.gain(changes.without_loading, then=faster) == pytest.approx(0.2, abs=1e-3)


def test_a_change_on_one_rank(tmp_path):
    """Rank 1 loads for 6 ms, and both meet at the end of the step: on rank 0 there is nothing to gain."""

    def make(run, start):
        since = 6 * MS if run.rank else 0
        if run.rank:
            run.range("data", start, start + since)
        busy(run, start, 3 * MS + since, since)
        run.reduce(start + 3 * MS + since, start + STEP, 100_000_000)

    found = what_if(tmp_path, make, ranks=2)
    alone = [found.gain(edit.on_rank(changes.without_loading, rank)) for rank in (0, 1)]
    assert alone == [0.0, pytest.approx(found.gain(changes.without_loading))] and alone[1] > 0.5


def test_a_tracer_s_part_is_found_from_the_untraced_step(tmp_path):
    """100 launches a step that a tracer made 5 us longer each: without it the host-bound step takes 9.5 ms. Where the
    step was no shorter without it, a tracer can have added no more than the device hides: here 1 %, not 3.5 us each."""

    def make(run, start):
        for at in range(start, start + STEP, 100 * US):
            run.kernel(at + 10 * US, at + 60 * US, at=at)

    found = what_if(tmp_path, make)
    assert found.untraced(9.5 * MS).step_ns == pytest.approx(9.5 * MS, rel=1e-3)
    assert found.untraced(STEP).step_ns == pytest.approx(SAME * STEP, rel=1e-3)
    assert found.untraced(2 * STEP).step_ns == pytest.approx(SAME * STEP, rel=1e-3)


@pytest.mark.parametrize(
    ("device", "driven"),
    [
        (lambda n: n % 2, 2),  # DataParallel's threads launch in turns
        (lambda n: n >= 50, 1),  # layers that are spread over devices
        (lambda n: n == 30, 1),  # a stray kernel, as of a tensor that was made on the first device
    ],
)
def test_a_process_drives_devices_at_once_where_it_launches_for_them_in_turns(tmp_path, device, driven):
    def make(run, start):
        for n, at in enumerate(range(start, start + STEP, 100 * US)):
            run.kernel(at + 10 * US, at + 60 * US, at=at, device=int(device(n)))

    found = what_if(tmp_path, make)
    assert rank_changes.devices_at_once(found.graph) == {0: driven}
    assert found.gain(rank_changes.with_process_for_each_device) == pytest.approx(0.5 * (driven > 1), abs=0.02)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The tables of two ranks of DDP, recorded on H200s, and the diagnosis of these."""
    folder = tmp_path_factory.mktemp("ddp")
    traces = [unpack(f"ddp-r{rank}", folder) for rank in (0, 1)]
    trace_tables.write_all(traces, folder / "tables")
    return folder / "tables"


def retold(folder, target, **changed):
    """The tables with some of them changed, by name."""
    target.mkdir()
    for path in folder.glob("*.parquet"):
        frame = pl.read_parquet(path)
        changed.get(path.stem, changed.get("every", lambda frame: frame))(frame).write_parquet(target / path.name)
    return sources.from_tables(target)


def ranked(e):
    return [(cause.kind, round(cause.share, 3)) for cause in verdict.judge(e).causes if cause.share]


def swapped(frame):
    names = [name for name in ("rank", "late_rank") if name in frame.columns]
    return frame.with_columns((1 - pl.col(name)).alias(name) for name in names)


def later(frame):
    moments = [name for name in frame.columns if re.match(r"((host|launch|others|first)_)?(start|end)?_?ns$", name)]
    return frame.with_columns(pl.col(moments) + 10**15)


def test_ranks_have_no_order_and_clocks_no_beginning(recorded, tmp_path):
    plain = sources.from_tables(recorded)
    for name, change in (("swapped", swapped), ("later", later)):
        assert ranked(retold(recorded, tmp_path / name, every=change)) == ranked(plain)
    other = retold(recorded, tmp_path / "again", every=swapped)
    ranks = {(cause.kind, cause.rank) for cause in verdict.judge(plain).causes}
    assert {(kind, None if rank is None else 1 - rank) for kind, rank in ranks} == {
        (cause.kind, cause.rank) for cause in verdict.judge(other).causes
    }


def coarse(frame):
    """By a clock of microseconds, as until Kineto had one of nanoseconds."""
    moments = [name for name in frame.columns if re.match(r"((host|launch|others|first)_)?(start|end)?_?ns$", name)]
    return frame.with_columns(pl.col(moments) // 1000 * 1000)


def test_a_coarse_clock_tells_the_same(recorded, tmp_path):
    plain = dict(ranked(sources.from_tables(recorded)))
    found = dict(ranked(retold(recorded, tmp_path / "coarse", every=coarse)))
    assert next(iter(found)) == next(iter(plain)) == "launch_bound"
    for kind in plain.keys() | found.keys():
        assert found.get(kind, 0.0) == pytest.approx(plain.get(kind, 0.0), abs=0.01), kind


def test_a_call_without_length_follows_the_last_that_has_ended():
    """Beside one of another thread that has not: were it to follow none, no change would make it earlier."""
    start, end = np.array([0, 5, 20, 20, 30]), np.array([10, 100, 20, 20, 40])
    after, gap = host._order(np.zeros(5, np.int64), start, end)
    assert after.tolist() == [-1, -1, 0, 2, 3] and gap.tolist() == [0, 0, 10, 0, 10]


def test_other_names_of_ranges_change_nothing(recorded, tmp_path):
    names = pl.col("name").cast(pl.String)
    step = names.str.contains(r"^step \d+$")

    def renamed(frame):
        told = pl.when(step).then(names).otherwise(names + " of mine")
        return frame.with_columns(told.cast(pl.Categorical()).alias("name"))

    first = ranked(sources.from_tables(recorded))[0]
    found = ranked(retold(recorded, tmp_path / "renamed", nvtx=renamed))[0]
    assert found[0] == first[0] == "launch_bound" and found[1] == pytest.approx(first[1], abs=0.03)


def test_one_rank_of_two_says_what_it_lacks(recorded, tmp_path):
    def alone(frame):
        return frame.filter(pl.col("rank") == 0) if "rank" in frame.columns else frame

    e = retold(
        recorded,
        tmp_path / "alone",
        every=alone,
        collectives=lambda f: alone(f).with_columns(
            late_rank=pl.lit(None, pl.Int64), matched_ranks=pl.lit(None, pl.Int64), transfer_ns=pl.lit(None, pl.Int64)
        ),
    )
    found = causes(e)
    assert ranked(e)[0][0] == "launch_bound" and "straggler" not in found
    assert any("other ranks" in fact.what for fact in found["missing_trace"].evidence)


def test_a_million_pieces_of_work_take_seconds(tmp_path):
    """Built and run: 4.2 s on two cores of a laptop's speed; a tenth of it here, for machines that do more."""
    count, rng = 100_000, np.random.default_rng(0)
    launch, length = np.cumsum(rng.integers(4_000, 9_000, count)), rng.integers(1_000, 9_000, count)
    done = np.cumsum(length)
    start = np.maximum.accumulate(launch + LAUNCH - (done - length)) + done - length
    e = of(tmp_path, busy)
    events = dict(e.lanes[0].events)
    kernels = pl.DataFrame(
        {"start_ns": start, "end_ns": start + length, "launch_ns": launch, "launch_end_ns": launch + 3}
    )
    kernels = kernels.with_columns(device=0, stream=7, thread=1, category=pl.lit("gemm"), name=pl.lit("k"))
    calls = {"start_ns": launch, "end_ns": launch + 3_000, "correlation": np.arange(count)}
    events["runtime"] = pl.DataFrame(calls).with_columns(thread=1, name=pl.lit("cudaLaunchKernel", pl.Categorical()))
    events["kernels"] = kernels
    edges = np.linspace(0, launch[-1] + 3_000, 6).astype(np.int64)
    bounds = {"start_ns": edges[:-1], "end_ns": edges[1:], "host_start_ns": edges[:-1], "host_end_ns": edges[1:]}
    windows = pl.DataFrame({"step": range(5), **bounds}).with_columns(rank=0, device=0, counted=pl.col("step") > 0)
    begun = time.perf_counter()
    found = WhatIf(build({0: events}, windows))
    assert times.replay(found.graph).work_start.tolist() == start.tolist()
    assert time.perf_counter() - begun < 5


def test_what_comes_after_the_last_step_that_counts_is_no_call_of_a_step(tmp_path):
    """Each step pauses for 3 ms, launches seven kernels and waits once. A step whose work is cut off does not count,
    and a wait for all ends the capture."""

    def make(run, start):
        busy(run, start, STEP, 3 * MS, launch=3 * MS)
        run.called("cudaStreamSynchronize", run.free, start + STEP)

    run, last = steps_of(5, STEP, make), 10 * MS + 5 * STEP
    run.step(5, last, last + STEP)
    for at in range(last + 3 * MS, last + STEP, MS):
        run.launched("cudaLaunchKernel", at, at)
    run.called("cudaDeviceSynchronize", last + STEP + 3 * MS, last + STEP + 8 * MS)
    e = evidence([run], tmp_path)
    asks = e.what_if.graph.calls.synchronizes
    assert (e.traced_count, e.what_if.calls_a_step(asks)[0], e.what_if.calls_a_step(~asks)[0]) == (4, 1, 7)
    assert named_pauses.longest(e.lanes, e.what_if.graph) == [("no range, before cudaLaunchKernel", 3.0)]


def test_calls_a_step_of_a_process_that_drives_two_devices_are_of_both(tmp_path):
    def make(run, start):
        for number in range(4):
            run.kernel(start + number * MS, start + (number + 1) * MS)
            run.rows["kernels"][-1]["device"] = number % 2
        run.called("cudaStreamSynchronize", run.free, start + STEP)

    e = evidence([steps_of(5, STEP, make)], tmp_path)
    asks = e.what_if.graph.calls.synchronizes
    assert (len(e.lanes), e.what_if.calls_a_step(asks)[0], e.what_if.calls_a_step(~asks)[0]) == (2, 1, 4)


def test_a_call_that_waits_for_long_may_return_later(tmp_path):
    """Steps of 10 ms, 9 of them a kernel. The call that waits for it returns so long after its end."""

    def waits(late):
        def make(run, start):
            run.kernel(start + 100 * US, start + 9 * MS)
            run.called("cudaStreamSynchronize", run.free, start + 9 * MS + late)

        e = evidence([steps_of(5, STEP, make)], tmp_path / str(late))
        calls = e.what_if.graph.calls
        return (calls.waits_for[calls.synchronizes] >= 0).all()

    assert waits(50 * US) and waits(150 * US) and not waits(250 * US)
