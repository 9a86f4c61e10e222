"""Causes on timelines that are known: each kind has its share, and nothing else is found."""

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.diagnosis.cause import Cause, Share
from nightsweep.analysis.diagnosis.evidence import samples as window
from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.tables import column, points
from tests.analysis.diagnosis.diagnosed import (
    ADD,
    GEMM,
    IMAGE,
    MS,
    STEP,
    US,
    busy,
    causes,
    of,
    shares,
    timed,
)


def test_a_busy_gpu_is_healthy(tmp_path):
    found = verdict.judge(of(tmp_path, busy))
    assert found.healthy is True and [c for c in found.causes if c.share] == []
    assert found.step_ms == 10 and found.parts["compute"] == 10


def test_idle_while_launching_is_launch_bound(tmp_path):
    def make(run, start):
        for at in range(start, start + STEP, 100 * US):
            run.kernel(at + 60 * US, at + 100 * US, at=at + 50 * US)

    e = of(tmp_path, make)
    assert shares(e) == {"launch_bound": pytest.approx(0.58, abs=0.005)}  # 2 us are left between two kernels
    found = causes(e)["launch_bound"]
    assert found.low == pytest.approx((0.58 * 0.75 - 0.01) / 5, abs=0.01)
    assert found.high == pytest.approx(
        0.58 + 2.5 * (0.58 * 0.42 * 0.6 + 0.01), abs=0.01
    )  # what joins kernels gave more
    assert found.remedy == {"compile": "reduce-overhead"}


def test_a_compiled_model_that_is_launch_bound_may_have_breaks_in_its_graphs(tmp_path):
    def make(run, start):
        for at in range(start, start + STEP, 100 * US):
            run.kernel(at + 60 * US, at + 100 * US, at=at + 50 * US)

    advice = {
        compiler: causes(of(tmp_path / compiler, make, settings={**IMAGE, "compile": compiler}))["launch_bound"].advice
        for compiler in ("none", "default")
    }
    assert "TORCH_LOGS=graph_breaks" in advice["default"] and "a compiler" in advice["none"]


def test_a_tracer_s_own_work_is_no_cause(tmp_path):
    """A step of 10 ms under the tracer and 9.5 without it: what is idle was idle for 0.5 ms less."""

    def make(run, start):
        for at in range(start, start + STEP, 100 * US):
            run.kernel(at + 60 * US, at + 100 * US, at=at + 50 * US)

    found = shares(of(tmp_path, make, steps=timed(step=9.5)))["launch_bound"]
    assert found == pytest.approx((9.5 - 4.2) / 9.5, abs=5e-3)


def test_waiting_for_the_device_costs_the_lead_that_it_takes(tmp_path):
    """The host reads a value 4 ms into the step, has to start anew, and idles for 2 ms; the lead was 3 ms."""

    def make(run, start):
        busy(run, start, 4 * MS)
        run.called("cudaStreamSynchronize", start + MS, start + 4 * MS)
        for at in range(start + 4 * MS, start + 8 * MS, 100 * US):
            run.kernel(at + 50 * US, at + 100 * US, at=at + 45 * US)
        busy(run, start + 8 * MS, 2 * MS)

    assert shares(of(tmp_path, make)) == {"host_sync": 0.2}


def test_a_host_without_a_lead_loses_none(tmp_path):
    """The same, but the wait is short: most of the idle time would have been there without it."""

    def make(run, start):
        busy(run, start, 4 * MS)
        run.called("cudaStreamSynchronize", start + 3500 * US, start + 4 * MS)
        for at in range(start + 4 * MS, start + 8 * MS, 100 * US):
            run.kernel(at + 50 * US, at + 100 * US, at=at + 45 * US)
        busy(run, start + 8 * MS, 2 * MS)
        run.range("logging", start + 9 * MS, start + STEP)  # until the step ends

    found = shares(of(tmp_path, make))
    assert found == {"launch_bound": pytest.approx(0.15, abs=0.01), "host_sync": pytest.approx(0.05, abs=0.001)}


def test_a_pause_of_the_host_is_named_by_its_range(tmp_path):
    """Each step the host writes a checkpoint for 3 ms, which is not loading."""

    def make(run, start):
        run.range("checkpoint", start, start + 3 * MS)
        busy(run, start, STEP, 3 * MS)

    e = of(tmp_path, make)
    found = causes(e)["host_work"]
    assert shares(e) == {"host_work": pytest.approx(0.3, abs=0.01)}
    assert found.remedy == {} and "another process" in found.advice
    (pause,) = [fact for fact in found.evidence if fact.what.startswith("pause in")]
    assert (pause.what, pause.value) == ("pause in checkpoint", pytest.approx(3, abs=0.01))


def test_the_loader_s_range(tmp_path):
    def make(run, start):
        run.range("data", start, start + 6 * MS)
        busy(run, start, STEP, 6 * MS)

    e = of(tmp_path, make, settings={**IMAGE, "loader_workers": 2}, record={"hosts": [{"cpu_cores": 32}]})
    assert shares(e) == {"loader_wait": 0.6}
    assert causes(e)["loader_wait"].remedy["loader_workers"] > 2


def test_without_ranges_a_batch_s_copy_tells_the_loader(tmp_path):
    def make(run, start):
        run.copy(start + 6 * MS, start + 6100 * US, 50 << 20, at=start + 6 * MS - 5 * US)
        busy(run, start, STEP, 6100 * US)

    found = causes(of(tmp_path, make))
    assert found["loader_wait"].share == pytest.approx(0.6, abs=0.01) and found["loader_wait"].low < 0.31
    assert "loader's ranges" in found["missing_trace"].evidence[0].what


@pytest.mark.parametrize(("percent", "kind"), [(290, "cpu_preprocessing"), (90, "loader_wait")])
def test_workers_that_compute_prepare(tmp_path, percent, kind):
    def make(run, start):
        run.range("data", start, start + 6 * MS)
        busy(run, start, STEP, 6 * MS)

    hosts = pl.DataFrame({"host": ["h"] * 3, "cpu_percent": [float(percent)] * 3})
    settings = {**IMAGE, "loader_workers": 3, "resize_on": "worker"}
    e = of(tmp_path, make, settings=settings, steps=timed(6.0), hosts=hosts)
    assert shares(e) == {kind: 0.6}
    assert ("resize_on" in causes(e)[kind].remedy) == (kind == "cpu_preprocessing")


@pytest.mark.parametrize(("wait", "step", "share"), [(8.0, 18.0, 8 / 18), (8.0, 12.0, 2 / 12), (0.05, 18.0, 0)])
def test_batches_loaded_before_the_trace_hide_no_wait(tmp_path, wait, step, share):
    """Traced steps of 10 ms find their batches there; timed ones wait, and are longer, by so much at most."""
    more = {"steps": timed(wait, step), "traced_steps": timed(0.0, 10.0), "settings": {**IMAGE, "loader_workers": 2}}
    e = of(tmp_path, busy, **more)
    assert shares(e) == ({"loader_wait": round(share, 3)} if share else {})


@pytest.mark.parametrize(
    ("long", "at", "share"),
    [
        (50.0, (3, 7, 11), 10 / 20),  # every fourth step saves a checkpoint, and the traced ones do not
        (50.0, (3, 6, 11), 0),  # accidents
        (50.0, (3, 7), 0),
        (18.0, (3, 7, 11), 0),  # not twice as long as the others
    ],
)
def test_steps_that_are_long_again_and_again_are_work_of_the_host_that_a_short_trace_may_not_see(
    tmp_path, long, at, share
):
    steps = pl.concat([timed(), timed(), timed()]).with_columns(step=pl.int_range(12))
    steps = steps.with_columns(step_ms=pl.when(pl.col("step").is_in(at)).then(long).otherwise(10.0))
    e = of(tmp_path, busy, steps=steps, traced_steps=timed(), settings=IMAGE)
    assert shares(e) == ({"host_work": share} if share else {})
    if share:
        assert causes(e)["host_work"].evidence[0].value == "3 of 12 timed steps, 4 steps apart"
        seen = of(tmp_path, busy, steps=steps, traced_steps=steps, settings=IMAGE)
        assert not shares(seen)  # the trace has them in it, and no pause


def test_pageable_copies(tmp_path):
    """5 ms for 50 MB is 10 GB/s; pinned memory would give 50 at least. The host waits for it, without a lead then."""

    def make(run, start):
        run.copy(start, start + 5 * MS, 50_000_000, "pageable", at=start, called=start + 5 * MS)
        busy(run, start, STEP, 5 * MS + 500 * US, launch=5 * MS + 500 * US)

    e = of(tmp_path, make, settings=IMAGE)
    found = shares(e)
    assert found["h2d_pageable"] == pytest.approx(0.5 * 0.8 + 0.05, abs=0.01)
    assert found["h2d_exposed"] == pytest.approx(0.5 * 0.2 - 0.05, abs=0.01)  # for 0.5 ms the host launches nothing
    assert causes(e)["h2d_pageable"].remedy == {"pin_memory": True, "non_blocking": True}


def test_exposed_pinned_copies_are_hidden_as_far_as_there_is_compute(tmp_path):
    def make(run, start):
        run.copy(start, start + 8 * MS, 400_000_000, at=start)
        busy(run, start, STEP, 8 * MS)

    found = causes(of(tmp_path, make, settings={**IMAGE, "pin_memory": True}))["h2d_exposed"]
    assert found.share == pytest.approx(0.2 + 0.3, abs=1e-3)
    assert found.low == pytest.approx(0.2 - 0.6 * 0.2 * 0.8 - 0.01, abs=1e-3)
    assert found.high == pytest.approx(0.8, abs=1e-3)  # for 2 ms kernels run
    assert found.remedy == {"non_blocking": True, "device_prefetch": True}


def test_weights_on_the_host_are_no_batches(tmp_path):
    def make(run, start):
        for place in range(40):
            run.copy(start + place * 200 * US, start + (place + 1) * 200 * US, 8_000_000, at=start)
        busy(run, start, STEP, 8 * MS)

    assert shares(of(tmp_path, make)) == {"memory_pressure": pytest.approx(0.8, abs=2e-3)}


def samples(**columns):
    frame = pl.DataFrame({"sm_clock_mhz": [1900] * 10, "throttle_reasons": [0] * 10, "processes": [1] * 10} | columns)
    return column.conform(frame, points.TABLES["gpu_samples"]).collect().with_columns(top_clock_mhz=pl.lit(1980))


def test_others_on_the_gpu(tmp_path):
    found = causes(of(tmp_path, busy, samples={0: samples(processes=[2] * 10)}))["gpu_shared"]
    assert found.share == pytest.approx(0.5) and found.low == 0


@pytest.mark.parametrize(
    ("before", "after", "seen"), [(2, 2, 2), (1, 2, 1), (2, 1, 1), (2, None, 2), (None, None, None)]
)
def test_processes_are_counted_seldom(before, after, seen):
    """Readings ten samples apart, and a span of three samples between them: there is who was there both times."""
    counts = [before, *[None] * 9, after]
    log = pl.DataFrame(
        {"t_ns": [n * MS for n in range(11)], "processes": counts, "uuid": "GPU-0", "sm_clock_mhz": 1900}
    )
    log = column.conform(log, points.TABLES["gpu_samples"]).collect()
    found = window.select_spans(log, [window.Span(0, "GPU-0", 4 * MS, 6 * MS)])[0]
    assert found["processes"].to_list() == [seen] * found.height and found.height == 4


def test_work_that_does_not_begin_on_an_idle_gpu(tmp_path):
    """Launched at once and begun 4 ms later: without counters it must be others; with them, and alone, it is not."""
    e = of(tmp_path, lambda r, s: busy(r, s, STEP, 4 * MS, launch=10 * US))
    assert shares(e) == {"gpu_shared": pytest.approx(0.398, abs=0.002)}
    assert "gpu_shared" not in causes(
        of(tmp_path / "b", lambda r, s: busy(r, s, STEP, 4 * MS, launch=10 * US), samples={0: samples()})
    )


def test_heat_is_a_cause_and_the_power_cap_is_none(tmp_path):
    hot = samples(throttle_reasons=[64] * 5 + [0] * 5, sm_clock_mhz=[990] * 5 + [1980] * 5)
    assert causes(of(tmp_path, busy, samples={0: hot}))["throttled"].share == pytest.approx(0.25)
    capped = samples(throttle_reasons=[4] * 10, sm_clock_mhz=[1468] * 10)
    assert "throttled" not in causes(of(tmp_path / "b", busy, samples={0: capped}))


def test_far_cpus_are_a_remark(tmp_path):
    found = causes(of(tmp_path, busy, settings={**IMAGE, "numa": "far"}))["numa_far"]
    assert found.share == 0 and found.remedy == {"numa": "near"}


@pytest.mark.parametrize("seed", range(8))
def test_parts_add_up_and_no_time_counts_twice(tmp_path, seed):
    rng = np.random.default_rng(seed)

    def make(run, start):
        at = start
        while at < start + STEP - 600 * US:
            length, gap = (int(rng.integers(1, 400)) * US for _ in range(2))
            what = rng.integers(0, 4)
            if what == 0:
                run.copy(
                    at, at + length, 10**7, str(rng.choice(["pageable", "pinned"])), at=at - 30 * US, called=at + length
                )
            elif what == 1:
                run.called(str(rng.choice(["cudaStreamSynchronize", "cudaMalloc"])), at, at + length)
            else:
                run.kernel(at, at + length, str(rng.choice([GEMM, ADD])), at=at - int(rng.integers(5, 200)) * US)
            at += length + gap * int(rng.integers(0, 2))

    e = of(tmp_path, make)
    found = verdict.judge(e)
    assert sum(found.parts.values()) == pytest.approx(found.step_ms, abs=1e-9)
    lane = e.lanes[0]
    whole = intervals.union(lane.steps.select("start_ns", "end_ns").to_numpy())
    assert sum(intervals.total(s) for s in lane.sets.values()) == intervals.total(whole)
    assert sum(c.share for c in found.causes if c.kind != "memory_headroom") <= 1 + 1e-9


def test_causes_that_give_next_to_nothing_at_least_come_by_what_they_may_give():
    gains = [Share(0.05, 0.004, 0.1), Share(0.44, 0.0, 0.6), Share(0.03, 0.02, 0.04)]
    found = sorted((Cause(gain=gain, method="", advice="") for gain in gains), key=verdict.order)
    assert [cause.share for cause in found] == [0.03, 0.44, 0.05]
