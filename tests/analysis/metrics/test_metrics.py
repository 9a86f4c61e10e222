"""Interval sets against brute force, and the metrics of traces whose numbers are known."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.ingest import engine
from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.steps import activities, detection, parts, selection, timeline
from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import DEVICES, EVENTS
from nightsweep.analysis.tables.part_names import GROUPS
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
                    "thread": [1] * n,
                    "device": [0] * n,
                    "correlation": np.arange(n) + (1000 if kind == "copies" else 0),
                    "direction": ["HtoD"] * n,
                }
            ),
            EVENTS[kind],
        ).collect()

    events = {kind: column.empty(columns) for kind, columns in EVENTS.items()}
    events["nvtx"] = spans("nvtx", ["step 1", "step 2", "step 3", "data"], 30)
    events["runtime"] = spans("runtime", ["cudaLaunchKernel"], 40)
    if gpu:
        events |= {"kernels": spans("kernels", ["gemm", "ncclX"], 40), "copies": spans("copies", ["Memcpy"], 9)}
    else:
        events["operators"] = spans("operators", ["aten::mm", "gloo:all_reduce", "other"], 60)
    return events


def analyse(events):
    """All tables of a rank with these events."""
    own = {kind: frame.drop("rank") for kind, frame in events.items()}
    return engine.process_tables(own, column.empty(DEVICES), 0, "report")


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_random_traces_add_up(seed, gpu):
    found = analyse(random_trace(np.random.default_rng(seed), gpu=gpu))
    summed = parts.group_lengths(found["step_parts"], "step").group_by("step").agg(pl.col("duration_ns").sum())
    joined = summed.join(found["windows"].filter("counted"), on="step")
    assert joined.height == summed.height > 0
    assert (joined["duration_ns"] == joined["end_ns"] - joined["start_ns"]).all()


def groups_of(found, step):
    rows = parts.group_lengths(found["step_parts"].filter(pl.col("step") == step), "step")
    assert sorted(rows["part"]) == sorted(GROUPS)
    return dict(rows.select("part", "duration_ns").iter_rows())


@pytest.fixture
def gpu(tmp_path):
    return nsys.read(make_nsys(tmp_path / "t.sqlite")).events


def windows(events):
    return analyse(events)["windows"].select("step", "start_ns", "end_ns").rows()


def test_gpu_trace(gpu):
    assert windows(gpu) == [(0, T0 + 90, T0 + 195), (1, T0 + 195, T0 + 320)]
    found = analyse(gpu)
    assert found["windows"]["counted"].to_list() == [False, True]
    # What ends the first gap is launched 5 ns into it: until then the thread waits for data.
    assert groups_of(found, 1) == {"compute": 50, "communication": 0, "copies": 15, "data_wait": 5, "idle": 55}
    assert set(found["step_parts"]["step"]) == {1}


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
    assert windows(more) == [(0, T0 + 110, T0 + 195), (1, T0 + 195, T0 + 320)]


@pytest.mark.parametrize(("missing", "counted"), [(0, True), (5, False)])
def test_a_last_step_whose_work_is_cut_off_does_not_count(missing, counted):
    """Four steps of ten launches; the capture ends before the last `missing` kernels have run."""
    steps = pl.DataFrame({"step": range(4), "start_ns": range(0, 400, 100), "end_ns": range(100, 500, 100)})
    calls = pl.Series(range(0, 400, 10))
    launched = pl.DataFrame({"launch_ns": calls, "start_ns": calls + 50, "end_ns": calls + 60}).head(40 - missing)
    steps = steps.with_columns(pl.col("step").cast(pl.Int32))
    found = detection.windows(steps, launched, calls)
    assert found["counted"].to_list() == [False, True, True, counted]


@pytest.mark.parametrize(("ends", "busy", "counted"), [(100, 10, True), (80, 10, False), (80, 98, True)])
def test_a_last_step_whose_end_is_not_seen_does_not_count(ends, busy, counted):
    """Four steps, 100 from start to start: ranges that follow on each other or end at 80; if the device is busy beyond
    the start of the next, a step ends with its work, the last one too."""
    starts = pl.Series(range(0, 400, 100))
    steps = pl.DataFrame({"step": range(4), "start_ns": starts, "end_ns": starts + ends})
    launched = pl.DataFrame({"launch_ns": starts, "start_ns": starts + 5, "end_ns": starts + 5 + busy})
    found = detection.windows(steps.with_columns(pl.col("step").cast(pl.Int32)), launched, starts)
    assert found["counted"].to_list() == [False, True, True, counted]
    lengths = found.filter("counted")["end_ns"] - found.filter("counted")["start_ns"]
    assert lengths.to_list() == [100] * len(lengths)


def test_step_that_launches_nothing(gpu):
    kernels, copies = gpu["kernels"].head(2), gpu["copies"].filter(pl.col("correlation") == 5)
    assert windows(gpu | {"kernels": kernels, "copies": copies}) == [
        (0, T0 + 90, T0 + 195),
        (1, T0 + 195, T0 + 290),
    ]


def test_activities_are_those_that_the_counted_steps_launched(gpu):
    found = analyse(gpu)
    rows = activities.rows(found, found["windows"])
    counted = {(c, n): k for c, n, k, *_ in rows.iter_rows()}
    # The second step launched the last kernel and two copies; what the first launched ran in its window, too.
    assert counted[("compute", "gemm()")] == 1 and ("communication", "ncclDevKernel_AllReduce") not in counted
    assert counted[("copy", "HtoD")] == 1 and counted[("copy", "other")] == 1 and ("copy", "DtoD") not in counted
    assert counted[("runtime", "cudaLaunchKernel")] == 3 and counted[("sync", "cudaStreamSynchronize")] == 1
    moved = {(c, n): size for c, n, *_, size in rows.iter_rows()}
    assert moved[("copy", "HtoD")] == gpu["copies"].filter(pl.col("direction") == "HtoD")["bytes"].sum()
    assert moved[("compute", "gemm()")] is None


def test_timeline(gpu):
    found = analyse(gpu)
    bars = timeline.set_zero(timeline.rows(found, found["windows"]))
    kept = bars.filter(pl.col("lane") == "compute").select("name", "start_ns", "end_ns", "step").rows()
    assert kept == [("gemm()", 55, 105, 1)]
    assert bars.filter(pl.col("lane") == "range").height == 0  # its range of data began before it
    assert set(bars["lane"]) == {"call", "compute", "copy"}
    calls = bars.filter(pl.col("lane") == "call")
    assert set(calls["name"]) <= set(gpu["runtime"]["name"].cast(pl.String)) and not calls.is_empty()


def test_timeline_merges_within_a_pixel(gpu):
    found = analyse(gpu)
    dense = pl.concat([found["kernels"].head(1)] * 100).with_columns(
        start_ns=T0 + 200 + pl.int_range(pl.len()), end_ns=T0 + 201 + pl.int_range(pl.len())
    )
    bars = timeline.rows(found | {"kernels": dense}, found["windows"]).filter(pl.col("lane") == "compute")
    assert bars["end_ns"].max() - bars["start_ns"].min() <= 100 and bars.height <= 2


def test_cpu_trace():
    events = kineto.read(DATA / "kineto-cpu-r0.json.gz").events
    found = analyse(events)
    counted = found["windows"].filter("counted")
    assert counted.height == 2 and found["windows"].height == 3
    data = selection.covered_time(selection.phase_ranges(events).filter(pl.col("name") == "data"))
    for step, start, end, first, last in counted.select(
        "step", "start_ns", "end_ns", "host_start_ns", "host_end_ns"
    ).iter_rows():
        own = groups_of(found, step)
        assert sum(own.values()) == end - start and own["compute"] > 0 and own["copies"] == 0
        assert own["data_wait"] == intervals.total(intervals.clip(data, first, last)) > 0


@pytest.mark.parametrize("path", [None, *sorted(REAL.glob("*.sqlite"))], ids=lambda p: p.name if p else "empty")
def test_traces_without_steps(path: Path | None):
    events = nsys.read(path).events if path else {kind: column.empty(columns) for kind, columns in EVENTS.items()}
    found = analyse(events)
    rows = activities.rows(found, found["windows"])
    counted = rows.filter(pl.col("category").is_in(["compute", "communication"]))
    if set(found["windows"]["source"]) <= {"none"}:
        assert counted["count"].sum() == events["kernels"].height + events["graphs"].height
    else:
        assert 0 < counted["count"].sum() <= events["kernels"].height + events["graphs"].height
