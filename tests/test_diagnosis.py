"""Causes on timelines that are known: each kind has its share, and nothing else is found."""

import numpy as np
import polars as pl
import pytest

from analysis import tables
from analysis.diagnosis import judge
from analysis.metrics import intervals
from tests.diagnosed import ADD, GEMM, MS, US, Run, causes, evidence, steps_of

STEP = 10 * MS
SIMT = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"
IMAGE = {"workload": "image", "model": "resnet50", "device": "cuda", "micro_batch": 64}


def busy(run, start, until=STEP, since=0, piece=MS, launch=None, **more):
    """Large kernels one after the other, all launched when the first of them starts (`launch`: or when else)."""
    for at in range(start + since, start + until, piece):
        run.kernel(at, min(at + piece, start + until), at=start + (since if launch is None else launch), **more)


def of(folder, make, count=5, ranks=1, **more):
    return evidence([steps_of(count, STEP, make, rank) for rank in range(ranks)], folder, **more)


def shares(e):
    return {kind: round(cause.share, 3) for kind, cause in causes(e).items() if cause.share}


def test_a_busy_gpu_is_healthy(tmp_path):
    found = judge.judged(of(tmp_path, busy))
    assert found.healthy is True and [c for c in found.causes if c.share] == []
    assert found.step_ms == 10 and found.parts["compute"] == 10


def test_idle_while_launching_is_launch_bound(tmp_path):
    def make(run, start):
        for at in range(start, start + STEP, 100 * US):
            run.kernel(at + 60 * US, at + 100 * US, at=at + 50 * US)

    e = of(tmp_path, make)
    assert shares(e) == {"launch_bound": 0.6}
    found = causes(e)["launch_bound"]
    assert found.low == pytest.approx(0.3) and found.high == pytest.approx(0.6) and found.remedy == {"cuda_graph": True}


def test_a_tracer_s_own_work_is_no_cause(tmp_path):
    """A step of 10 ms under the tracer and 7 without it: what is idle was idle for 3 ms less."""

    def make(run, start):
        for at in range(start, start + STEP, 100 * US):
            run.kernel(at + 60 * US, at + 100 * US, at=at + 50 * US)

    timed = pl.DataFrame(
        {"rank": [0] * 4, "step": range(4), "step_ms": [7.0] * 4, "data_ms": [0.0] * 4, "alloc_retries": [0] * 4}
    )
    assert shares(of(tmp_path, make, steps=timed))["launch_bound"] == pytest.approx(3 / 7, abs=1e-3)


def test_waiting_for_the_device_costs_the_lead_that_it_takes(tmp_path):
    """The host reads a value 4 ms into the step, has to start anew, and the GPU is idle for 2 ms; it had a lead of 3 ms."""

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

    assert shares(of(tmp_path, make)) == {"launch_bound": 0.15, "host_sync": 0.05}


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

    timed = pl.DataFrame(
        {"rank": [0] * 4, "step": range(4), "step_ms": [10.0] * 4, "data_ms": [6.0] * 4, "alloc_retries": [0] * 4}
    )
    hosts = pl.DataFrame({"host": ["h"] * 3, "cpu_percent": [float(percent)] * 3})
    settings = {**IMAGE, "loader_workers": 3, "resize_on": "worker"}
    e = of(tmp_path, make, settings=settings, steps=timed, hosts=hosts)
    assert shares(e) == {kind: 0.6}
    assert ("resize_on" in causes(e)[kind].remedy) == (kind == "cpu_preprocessing")


def test_pageable_copies(tmp_path):
    """5 ms for 50 MB is 10 GB/s; pinned memory would give 25 at least. The host waits for the copy and its lead is gone."""

    def make(run, start):
        run.copy(start, start + 5 * MS, 50_000_000, "pageable", at=start, called=start + 5 * MS)
        busy(run, start, STEP - 500 * US, 5 * MS + 500 * US)
        run.kernel(start + 9500 * US, start + STEP)

    e = of(tmp_path, make, settings=IMAGE)
    found = shares(e)
    assert found["h2d_pageable"] == pytest.approx(0.5 * 0.6 + 0.05, abs=0.01)
    assert found["h2d_exposed"] == pytest.approx(0.5 * 0.4, abs=0.01)
    assert causes(e)["h2d_pageable"].remedy == {"pin_memory": True, "non_blocking": True}


def test_exposed_pinned_copies_are_hidden_as_far_as_there_is_compute(tmp_path):
    def make(run, start):
        run.copy(start, start + 8 * MS, 400_000_000, at=start)
        busy(run, start, STEP, 8 * MS)

    found = causes(of(tmp_path, make, settings={**IMAGE, "pin_memory": True}))["h2d_exposed"]
    assert found.share == pytest.approx(0.2 + 0.3) and found.high == pytest.approx(0.8)
    assert found.remedy == {"non_blocking": True, "device_prefetch": True}


def test_weights_on_the_host_are_no_batches(tmp_path):
    def make(run, start):
        for place in range(40):
            run.copy(start + place * 200 * US, start + (place + 1) * 200 * US, 8_000_000, at=start)
        busy(run, start, STEP, 8 * MS)

    assert shares(of(tmp_path, make)) == {"memory_pressure": 0.8}


def test_products_without_tensor_cores(tmp_path):
    """fp32 on an H200: 66.9 of TF32's 494.7 TFLOP/s."""
    e = of(
        tmp_path,
        lambda r, s: busy(r, s, name=SIMT),
        settings=IMAGE,
    )
    assert shares(e) == {"tensor_cores_unused": round(1 - 66.9 / 494.7, 3)}
    assert causes(e)["tensor_cores_unused"].remedy == {"precision": "tf32"}


def test_splitting_and_vector_products_could_not_use_them(tmp_path):
    e = of(tmp_path, lambda r, s: busy(r, s, name="void cublasLt::splitKreduce_kernel<32, 16, int, float, float>"))
    assert shares(e) == {}


def test_transposes(tmp_path):
    def make(run, start):
        busy(run, start, 7 * MS)
        run.kernel(start + 7 * MS, start + STEP, "void cudnn::engines_precompiled::nchwToNhwcKernel<__half>(x)", start)

    e = of(tmp_path, make, settings={**IMAGE, "layout": "nchw"})
    assert shares(e) == {"layout_transposes": 0.3} and causes(e)["layout_transposes"].remedy == {"layout": "nhwc"}


def test_neighbours_that_could_be_one_kernel(tmp_path):
    """Four elementwise kernels of 1 ms in a row: three of them, of which three quarters."""

    def make(run, start):
        busy(run, start, 6 * MS)
        busy(run, start, STEP, 6 * MS, name=ADD)

    e = of(tmp_path, make, settings=IMAGE)
    assert shares(e) == {"recompute_or_unfused": 0.225}
    assert causes(of(tmp_path / "b", make, settings={**IMAGE, "compile": "default"})).keys() == {"missing_counters"}


@pytest.mark.parametrize(("batch", "kind"), [(8, "small_batch"), (64, "low_occupancy")])
def test_kernels_that_do_not_reach_all_sms(tmp_path, batch, kind):
    e = of(
        tmp_path,
        lambda r, s: busy(r, s, blocks=33),
        settings={**IMAGE, "micro_batch": batch},
        record={"hosts": [{"gpus": [{"memory_bytes": 140 << 30}]}]},
        results=[{"peak_reserved_bytes": 10 << 30}],
    )
    found = causes(e)
    assert found[kind].share == pytest.approx(0.75) and {"small_batch", "low_occupancy"} & found.keys() == {kind}
    if kind == "small_batch":
        assert found[kind].remedy == {"micro_batch": 64}


def test_recomputed_activations_while_memory_is_empty(tmp_path):
    settings = {"workload": "llm", "model": "llama-1b", "activation_checkpointing": True, "compile": "default"}
    facts = {"flops": {"step": 75, "hardware_step": 100}, "peak_reserved_bytes": 20 << 30}
    hosts = {"hosts": [{"gpus": [{"memory_bytes": 140 << 30}]}]}
    e = of(tmp_path, busy, settings=settings, results=[facts], record=hosts)
    assert shares(e) == {"recompute_or_unfused": 0.25}
    assert causes(e)["recompute_or_unfused"].remedy == {"activation_checkpointing": False}


def test_memory_taken_and_given_back(tmp_path):
    def make(run, start):
        busy(run, start, STEP, 3 * MS)
        run.called("cudaFree", start, start + 3 * MS - 20 * US)

    e = of(tmp_path, make, settings={**IMAGE, "empty_cache": True})
    assert shares(e)["allocator_churn"] == pytest.approx(0.298, abs=0.003)
    assert causes(e)["allocator_churn"].remedy == {"empty_cache": False}
    tried = pl.DataFrame(
        {"rank": [0] * 4, "step": range(4), "step_ms": [10.0] * 4, "data_ms": [0.0] * 4, "alloc_retries": range(4)}
    )
    found = causes(of(tmp_path / "b", make, settings=IMAGE, steps=tried))
    assert found["memory_pressure"].share == pytest.approx(0.298, abs=0.003) and "allocator_churn" not in found


def test_room_for_a_larger_batch_saves_optimizer_time(tmp_path):
    def make(run, start):
        busy(run, start, 6 * MS)
        run.range("optimizer", start + MS, start + 2 * MS)
        run.kernel(start + 6 * MS, start + STEP, "multi_tensor_apply_kernel<FusedAdamMathFunctor>", start + 1500 * US)

    facts, hosts = {"peak_reserved_bytes": 10 << 30}, {"hosts": [{"gpus": [{"memory_bytes": 140 << 30}]}]}
    e = of(tmp_path, make, settings={**IMAGE, "compile": "default"}, results=[facts], record=hosts)
    assert shares(e) == {"memory_headroom": round(0.4 * 7 / 8, 3)}
    assert causes(e)["memory_headroom"].remedy == {"micro_batch": 512}


LINKED = {"hosts": [{"gpus": [{"memory_bytes": 140 << 30}] * 2, "topology": "GPU0\tX\tNV18\nGPU1\tNV18\tX"}]}


def reducing(start_of, end, size, at=5 * MS):
    """Ranks of which each begins its all-reduce at a time of its own; computing before."""

    def make(run, start):
        busy(run, start, at)
        run.reduce(start + start_of(run.rank), start + end, size)
        busy(run, start, STEP, end)

    return make


def test_a_fast_link_that_nothing_hides(tmp_path):
    """0.5 GB in 2 ms is 250 GB/s on the bus of two ranks: no slow link. The GPU could compute meanwhile."""
    e = of(tmp_path, reducing(lambda _: 5 * MS, 7 * MS, 500_000_000), ranks=2, record=LINKED)
    assert shares(e) == {"exposed_communication": 0.2}


def test_a_slow_link(tmp_path):
    """16 MiB and more at 10 GB/s, where NVLink's 450 would let 315 through."""
    e = of(tmp_path, reducing(lambda _: 5 * MS, 7 * MS, 20_000_000), ranks=2, record=LINKED)
    found = causes(e)
    assert found["slow_interconnect"].share == pytest.approx(0.2 * (1 - 10 / 315), abs=0.001)
    assert found["exposed_communication"].share < 0.01 if "exposed_communication" in found else True


def test_small_messages(tmp_path):
    """20 reductions of 100 us and 4 kB each: as one they would take 100 us."""

    def make(run, start):
        busy(run, start, 5 * MS)
        for place in range(20):
            run.reduce(start + 5 * MS + place * 100 * US, start + 5 * MS + (place + 1) * 100 * US, 4096)
        busy(run, start, STEP, 7 * MS)

    found = shares(of(tmp_path, make, ranks=2, record=LINKED))
    assert found["small_messages"] == pytest.approx(0.2 * 19 / 20, abs=0.001)


def test_a_late_rank_is_named_with_what_it_does(tmp_path):
    """Rank 1 loads for 3 ms longer; rank 0 waits for it in the all-reduce."""

    def make(run, start):
        if run.rank:
            run.range("data", start, start + 3 * MS)
        since = 3 * MS * run.rank
        busy(run, start, 5 * MS + since, since)
        run.reduce(start + 5 * MS + since, start + 8500 * US, 400_000_000)
        busy(run, start, STEP, 8500 * US)

    found = causes(of(tmp_path, make, ranks=2, record=LINKED))
    assert found["straggler"].rank == 1 and found["straggler"].share == pytest.approx(0.3, abs=0.01)
    assert "loader_wait" not in found  # rank 0, which waits, has none


def test_ranks_that_take_turns(tmp_path):
    def make(run, start):
        late = 2 * MS * ((start // STEP + run.rank) % 2)
        busy(run, start, 4 * MS + late, late)
        run.reduce(start + 4 * MS + late, start + 7 * MS, 400_000_000)
        busy(run, start, STEP, 7 * MS)

    found = causes(of(tmp_path, make, count=9, ranks=2, record=LINKED))
    assert found["straggler"].rank is None and found["straggler"].share == pytest.approx(0.1, abs=0.02)


def test_no_collectives_no_word_of_communication(tmp_path):
    assert not [c for c in causes(of(tmp_path, busy)).values() if c.cause == "communication"]


def test_one_rank_of_several_tells_too_little(tmp_path):
    e = of(tmp_path, reducing(lambda _: 5 * MS, 7 * MS, 500_000_000))
    found = causes(e)
    assert found["exposed_communication"].low == 0 and "straggler" not in found
    assert any("other ranks" in fact.what for fact in found["missing_trace"].evidence)


def samples(**columns):
    frame = pl.DataFrame({"sm_clock_mhz": [1900] * 10, "throttle_reasons": [0] * 10, "processes": [1] * 10} | columns)
    return tables.conform(frame, tables.TABLES["gpu_samples"]).collect().with_columns(top_clock_mhz=pl.lit(1980))


def test_others_on_the_gpu(tmp_path):
    found = causes(of(tmp_path, busy, samples={0: samples(processes=[2] * 10)}))["gpu_shared"]
    assert found.share == pytest.approx(0.5) and found.low == 0


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


def test_pipelines_wait_for_their_stages(tmp_path):
    settings = {"workload": "llm", "model": "llama-1b", "strategy": "pp", "ranks_per_node": 2, "grad_accum": 2}
    e = of(tmp_path, reducing(lambda rank: (5 + 3 * rank) * MS, 9 * MS, 400_000_000), ranks=2, settings=settings)
    found = causes(e)
    assert found["pipeline_bubble"].remedy == {"grad_accum": 4} and "straggler" not in found


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
    found = judge.judged(e)
    assert sum(found.parts.values()) == pytest.approx(found.step_ms, abs=1e-9)
    lane = e.lanes[0]
    whole = intervals.union(lane.steps.select("start_ns", "end_ns").to_numpy())
    assert sum(intervals.total(s) for s in lane.sets.values()) == intervals.total(whole)
    assert sum(c.share for c in found.causes if c.kind != "memory_headroom") <= 1 + 1e-9


def test_a_loader_outside_of_the_steps_ranges_counts(tmp_path):
    """Ranges of steps that leave the loader out: a step reaches to the start of the next."""
    run = Run()
    for number in range(5):
        start = 10 * MS + number * STEP
        run.step(number, start, start + 4 * MS)
        busy(run, start, 4 * MS)
        run.range("dataloader", start + 4 * MS, start + STEP)
    e = evidence([run], tmp_path)
    assert judge.judged(e).step_ms == pytest.approx(10 * 4 / 4, rel=0.2) and shares(e)["loader_wait"] > 0.4
