"""Interval sets against brute force, and the metrics of traces whose numbers are known."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analysis.metrics import intervals
from analysis.metrics.steps import activities, breakdown, timeline, trace
from analysis.readers.kineto import reader as kineto
from analysis.readers.nsys import reader as nsys
from analysis.tables import column, points
from tests.analysis.readers.test_readers import DATA, REAL, make_nsys

T0 = 1_000_000


def random_set(rng):
    starts = rng.integers(0, 60, rng.integers(0, 12))
    return np.column_stack((starts, starts + rng.integers(0, 9, len(starts))))


def members(pairs):
    return {t for s, e in pairs for t in range(s, e)}


@pytest.mark.parametrize("seed", range(50))
def test_sets(seed):
    rng = np.random.default_rng(seed)
    raw_a, raw_b = random_set(rng), random_set(rng)
    a, b = intervals.union(raw_a), intervals.union(raw_b)
    assert members(a) == members(raw_a) and (a[1:, 0] > a[:-1, 1]).all()
    assert members(intervals.intersect(a, b)) == members(a) & members(b)
    assert members(intervals.subtract(a, b)) == members(a) - members(b)
    assert members(intervals.merge(a, b)) == members(a) | members(b)
    assert members(intervals.clip(a, 10, 30)) == members(a) & set(range(10, 30))
    assert intervals.total(a) == len(members(a))


@pytest.mark.parametrize("seed", range(50))
def test_parts_add_up(seed):
    rng = np.random.default_rng(seed)
    sets = [intervals.union(random_set(rng)) for _ in range(4)]
    start, end = 5, 5 + int(rng.integers(0, 60))
    lengths = intervals.share(start, end, sets)
    left = set(range(start, end))
    for each, length in zip(sets, lengths, strict=False):
        assert length == len(left & members(each))
        left -= members(each)
    assert lengths[-1] == len(left) and sum(lengths) == end - start


def random_trace(rng, *, gpu):
    def spans(kind, names, n):
        start = rng.integers(10**18, 10**18 + 10**6, n)
        return column.conform(
            pl.DataFrame(
                {
                    "start_ns": start,
                    "end_ns": start + rng.integers(0, 10**5, n),
                    "name": rng.choice(names, n),
                    "process": [1] * n,
                    "correlation": np.arange(n) + (1000 if kind == "copies" else 0),
                    "direction": ["HtoD"] * n,
                }
            ),
            points.EVENTS[kind],
        ).collect()

    events = trace.none() | {"nvtx": spans("nvtx", ["step 1", "step 2", "step 3", "data"], 30)}
    events["runtime"] = spans("runtime", ["cudaLaunchKernel"], 40)
    if gpu:
        events |= {"kernels": spans("kernels", ["gemm", "ncclX"], 40), "copies": spans("copies", ["Memcpy"], 9)}
    else:
        events["operators"] = spans("operators", ["aten::mm", "gloo:all_reduce", "other"], 60)
    return events


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_random_traces_add_up(seed, gpu):
    events = random_trace(np.random.default_rng(seed), gpu=gpu)
    sums = breakdown.rows(events).group_by("step").agg(pl.col("duration_ns").sum())
    joined = sums.join(trace.windows(events), on="step")
    assert joined.height == sums.height > 0
    assert (joined["duration_ns"] == joined["end_ns"] - joined["start_ns"]).all()


def parts_of(events, step):
    rows = breakdown.rows(events).filter(pl.col("step") == step)
    assert rows["part"].to_list() == list(points.PARTS)
    return dict(zip(points.PARTS, rows["duration_ns"], strict=True))


@pytest.fixture
def gpu(tmp_path):
    return nsys.read(make_nsys(tmp_path / "t.sqlite")).events


def test_gpu_trace(gpu):
    assert trace.windows(gpu).rows() == [(0, T0 + 90, T0 + 195), (1, T0 + 195, T0 + 320)]
    assert parts_of(gpu, 0) == {"compute": 30, "communication": 10, "copies": 20, "data_wait": 5, "idle": 40}
    assert parts_of(gpu, 1) == {"compute": 50, "communication": 0, "copies": 15, "data_wait": 40, "idle": 20}


def test_work_launched_before_the_first_step_is_not_its_own(gpu):
    early = gpu["runtime"].head(1).with_columns(start_ns=pl.lit(T0 + 50, pl.Int64), correlation=pl.lit(77, pl.Int64))
    kernel = (
        gpu["kernels"]
        .head(1)
        .with_columns(
            start_ns=pl.lit(T0 + 60, pl.Int64), end_ns=pl.lit(T0 + 110, pl.Int64), correlation=pl.lit(77, pl.Int64)
        )
    )
    more = gpu | {"runtime": pl.concat([gpu["runtime"], early]), "kernels": pl.concat([gpu["kernels"], kernel])}
    assert trace.windows(more).rows() == [(0, T0 + 110, T0 + 195), (1, T0 + 195, T0 + 320)]


def test_step_that_launches_nothing(gpu):
    kernels, copies = gpu["kernels"].head(2), gpu["copies"].filter(pl.col("correlation") == 5)
    assert trace.windows(gpu | {"kernels": kernels, "copies": copies}).rows() == [
        (0, T0 + 90, T0 + 195),
        (1, T0 + 195, T0 + 290),
    ]


def test_activities(gpu):
    found = {(c, n): k for c, n, k, *_ in activities.rows(gpu).iter_rows()}
    assert found[("compute", "gemm()")] == 2 and found[("communication", "ncclDevKernel_AllReduce")] == 1
    assert found[("copy", "HtoD")] == 1 and found[("sync", "cudaStreamSynchronize")] == 1
    assert found[("runtime", "cudaLaunchKernel")] == 6
    moved = {(c, n): size for c, n, *_, size in activities.rows(gpu).iter_rows()}
    assert moved[("copy", "HtoD")] == gpu["copies"].filter(pl.col("direction") == "HtoD")["bytes"].sum()
    assert moved[("compute", "gemm()")] is None


def test_timeline(gpu):
    bars = timeline.relative(timeline.rows(gpu))
    kept = bars.filter(pl.col("lane") == "compute").select("name", "start_ns", "end_ns", "step").rows()
    assert kept == [("gemm()", 60, 90, 0), ("gemm()", 160, 210, 1)]
    assert bars.filter(pl.col("lane") == "range").height == 2
    assert set(bars["lane"]) == {"range", "compute", "communication", "copy"}


def test_timeline_merges_within_a_pixel(gpu):
    dense = pl.concat([gpu["kernels"].head(1)] * 100).with_columns(
        start_ns=T0 + 150 + pl.int_range(pl.len()), end_ns=T0 + 151 + pl.int_range(pl.len())
    )
    bars = timeline.rows(gpu | {"kernels": dense}).filter(pl.col("lane") == "compute")
    assert bars["end_ns"].max() - bars["start_ns"].min() <= 100 and bars.height <= 2


def test_cpu_trace():
    events = kineto.read(DATA / "kineto-cpu-r0.json.gz").events
    windows = {s: e - b for s, b, e in trace.windows(events).iter_rows()}
    for step, length in windows.items():
        parts = parts_of(events, step)
        assert sum(parts.values()) == length and parts["compute"] > 0 and parts["copies"] == 0
        data = trace.spans(trace.ranges(events, ("data",)))
        bounds = trace.steps(events).filter(pl.col("step") == step).row(0)[1:]
        assert parts["data_wait"] == intervals.total(intervals.clip(data, *bounds)) > 0


@pytest.mark.parametrize("path", [None, *sorted(REAL.glob("*.sqlite"))], ids=lambda p: p.name if p else "empty")
def test_traces_without_steps(path: Path | None):
    events = nsys.read(path).events if path else trace.none()
    assert breakdown.rows(events).is_empty() and timeline.rows(events).is_empty()
    counted = activities.rows(events).filter(pl.col("category").is_in(["compute", "communication"]))
    assert counted["count"].sum() == events["kernels"].height
