"""The trace engine: parts that add up, projections against a slow and simple count, and what must not matter."""

import itertools

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from nightsweep.analysis.ingest import engine
from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.launches import range_tree
from nightsweep.analysis.metrics.steps import detection
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import EVENTS
from nightsweep.analysis.tables.part_names import HIDDEN, PARTS
from tests.fakes.timelines import random_trace
from tests.labelled import packed
from tests.labelled.score import KEPT

SEEDS = range(12)


def analyse(trace):
    return engine.process_tables(trace.events, trace.devices, 0, "random")


def contains(mark, call):
    inside = mark["start_ns"] <= call["start_ns"] and call["end_ns"] <= mark["end_ns"]
    return inside and call["thread"] == mark["thread"]


def simple_projections(trace):
    """What nvtx_gpu is to say, by looking at every activity for every range."""
    events = trace.events
    calls = {}
    for call in events["runtime"].iter_rows(named=True):
        calls.setdefault(call["correlation"], call)
    activities = pl.concat([events[k].select("start_ns", "end_ns", "correlation") for k in ("kernels", "copies")])
    out = []
    for mark in events["nvtx"].iter_rows(named=True):
        own, launched = [], set()
        for start, end, correlation in activities.iter_rows():
            call = calls.get(correlation)
            if call and contains(mark, call):
                own.append((start, end))
                launched.add(correlation)
        if own:
            first, last = min(s for s, _ in own), max(e for _, e in own)
            busy = intervals.total(intervals.union(own))
            row = (mark["start_ns"], mark["end_ns"], str(mark["name"]), mark["thread"])
            out.append((*row, first, last, last - first, busy, len(launched), len(own)))
    return sorted(out)


@pytest.mark.parametrize("crossing", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_projections(seed, crossing):
    trace = random_trace(seed, crossing)
    columns = ["start_ns", "end_ns", "name", "thread", "gpu_start_ns", "gpu_end_ns", "gpu_span_ns", "gpu_busy_ns"]
    found = analyse(trace)["nvtx_gpu"].select(*columns, "launches", "activities")
    assert sorted(found.with_columns(pl.col("name").cast(pl.String)).rows()) == simple_projections(trace)


@pytest.mark.parametrize("seed", range(200))
def test_trees_of_ranges_that_cross_touch_and_coincide(seed):
    """Parents, depths and what crosses, each looked for among all ranges."""
    rng = np.random.default_rng(seed)
    thread, start = rng.integers(0, 2, 40), rng.integers(0, 25, 40)
    end = start + rng.integers(0, 9, 40)
    tree = range_tree.build(thread, start, end)
    rows = [(int(thread[r]), int(start[r]), int(end[r])) for r in tree.row]

    def holds(outer, inner):
        (t, a, b), (of, c, d) = outer, inner
        return t == of and a < b and b >= d and b > c  # of ranges in order of start, the outer one first

    for place, own in enumerate(rows):
        around = [p for p in range(place) if holds(rows[p], own)]
        assert tree.parent[place] == max(around, default=-1)
        above = tree.parent[place]
        assert tree.depth[place] == (0 if above < 0 else tree.depth[above] + 1)
    crossed = [p for p, (t, _, b) in enumerate(rows) if any(of == t and c < b < d for of, c, d in rows[p + 1 :])]
    assert tree.crossed.tolist() == crossed


@pytest.mark.parametrize("seed", SEEDS)
def test_paths(seed):
    """The path of a call names the ranges of its thread that contain it, outermost first."""
    trace = random_trace(seed)
    marks = (
        trace.events["nvtx"]
        .sort("start_ns", pl.col("end_ns"), descending=[False, True], maintain_order=True)
        .rows(named=True)
    )
    for call in analyse(trace)["runtime"].iter_rows(named=True):
        around = [str(m["name"]) for m in marks if contains(m, call)]
        assert (call["nvtx_path"] or "") == "/".join(around)


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_add_up(seed):
    found = analyse(random_trace(seed))
    rows = found["step_parts"].group_by("step", maintain_order=True).agg("part", "duration_ns")
    assert found["windows"].height == 4 and found["windows"]["source"].unique().to_list() == ["nvtx"]
    counted = {row["step"]: row for row in found["windows"].filter("counted").iter_rows(named=True)}
    assert rows["step"].to_list() == list(counted) == found["windows"]["step"].to_list()[1:]
    spans = found["parts"].filter(pl.col("part").cast(pl.String) != HIDDEN).sort("start_ns")
    # One after the other, without a gap, from the first step that counts to the end of the last one.
    assert spans["start_ns"].to_list()[1:] == spans["end_ns"].to_list()[:-1]
    for step, names, lengths in rows.iter_rows():
        parts = dict(zip(names, lengths, strict=True))
        hidden = parts.pop(HIDDEN)
        start, end = counted[step]["start_ns"], counted[step]["end_ns"]
        assert tuple(parts) == PARTS and min(lengths) >= 0
        assert sum(parts.values()) == end - start and hidden <= parts["compute"]
        cut = spans.with_columns(pl.col("start_ns", "end_ns").clip(start, end), pl.col("part").cast(pl.String))
        inside = cut.group_by("part").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
        assert dict(inside.iter_rows()) | {n: 0 for n in PARTS if parts[n] == 0} == parts


@pytest.mark.parametrize("seed", SEEDS)
def test_busy_is_a_union(seed):
    found = analyse(random_trace(seed))
    ranges = found["nvtx_gpu"]
    assert (ranges["gpu_busy_ns"] <= ranges["gpu_span_ns"]).all() and (ranges["gpu_busy_ns"] >= 0).all()
    kernels, copies = found["kernels"], found["copies"]
    total = sum(int((f["end_ns"] - f["start_ns"]).sum()) for f in (kernels, copies))
    steps = ranges.filter(pl.col("name").cast(pl.String).str.starts_with("step "))
    assert steps["gpu_busy_ns"].sum() <= total


@pytest.mark.parametrize("by", [10**15, -500])
@pytest.mark.parametrize("seed", [0, 1])
def test_shifting_all_times_changes_nothing(seed, by):
    trace = random_trace(seed)
    moved = {k: f.with_columns(pl.col("start_ns", "end_ns") + by) for k, f in trace.events.items()}
    one, other = analyse(trace), analyse(type(trace)(moved, trace.devices))
    for name in ("step_parts", "kernel_sum", "api_sum", "nvtx_sum", "nvtx_gpu_sum"):
        assert one[name].equals(other[name]), name
    for name in ("nvtx_gpu", "windows", "parts", "kernels"):
        times = [c for c in one[name].columns if c.endswith("_ns") and c not in ("gpu_span_ns", "gpu_busy_ns")]
        assert one[name].with_columns(pl.col(times) + by).equals(other[name]), name


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_order_of_rows_changes_nothing(seed):
    trace = random_trace(seed)
    mixed = {k: f.sample(fraction=1, shuffle=True, seed=seed) for k, f in trace.events.items()}
    one, other = analyse(trace), analyse(type(trace)(mixed, trace.devices))
    for name in ("step_parts", "parts", "windows", "kernel_sum", "api_sum", "nvtx_sum", "nvtx_gpu_sum", "paper_calls"):
        assert_frame_equal(one[name], other[name])  # but for the last digits of means
    for name in ("kernels", "copies", "runtime", "nvtx_gpu"):
        texts = [c for c, kind in one[name].schema.items() if kind == pl.Categorical()]
        frames = [f[name].with_columns(pl.col(texts).cast(pl.String)) for f in (one, other)]
        keys = [
            "start_ns",
            "end_ns",
            *(c for c in ("stream", "correlation", "thread", "depth") if c in frames[0].columns),
        ]
        assert frames[0].sort(keys, nulls_last=True).equals(frames[1].sort(keys, nulls_last=True)), name


def test_steps_by_the_period_of_launches():
    trace = random_trace(0)
    names = ["gemm", "add", "mul", "norm", "gemm", "relu", "softmax", "copy"]
    rows = [
        {
            "start_ns": s + 5,
            "end_ns": s + 8,
            "name": names[k],
            "device": 0,
            "stream": 7,
            "process": 77,
            "correlation": s,
        }
        for n in range(6)
        for k in range(len(names))
        for s in [n * 1000 + k * 10 + (0 if k < 3 else 400)]  # the longest pause is before the fourth launch
    ]
    kernels = pl.DataFrame(rows, schema_overrides={"start_ns": pl.Int64})
    calls = kernels.select(
        "process",
        "correlation",
        start_ns=pl.col("start_ns") - 5,
        end_ns=pl.col("start_ns") - 3,
        thread=1,
        name=pl.lit("cudaLaunchKernel"),
    )
    events = dict(trace.events)
    events = {k: f.clear() for k, f in events.items()}
    events["kernels"] = column.conform(kernels, EVENTS["kernels"]).collect()
    events["runtime"] = column.conform(calls, EVENTS["runtime"]).collect()
    found = analyse(type(trace)(events, trace.devices))
    assert found["windows"]["source"].unique().to_list() == ["launches"]
    starts = found["windows"]["host_start_ns"].to_list()
    assert [b - a for a, b in itertools.pairwise(starts)] == [1000] * (len(starts) - 1) and len(starts) >= 5
    assert starts[0] % 1000 == (430 if starts[0] % 1000 > 300 else 0)
    counted = found["windows"].filter("counted")
    assert (counted["end_ns"] - counted["start_ns"]).to_list() == [1000] * 4


def test_a_step_by_period_is_as_long_as_its_range(tmp_path):
    """A checkpoint is saved after the last launch of each step: the ranges of the steps have it."""
    trace = engine.read_trace(packed.unpacked(KEPT / "saves_fields", tmp_path) / "traced/trace-r0.json")
    ranges = trace.events["nvtx"]
    bare = ranges.filter(~ranges["name"].cast(pl.String).str.contains(detection.NUMBERED))
    assert bare.height == ranges.height - 4
    length = {}
    for own in (ranges, bare):
        windows = analyse(type(trace)(trace.events | {"nvtx": own}, trace.devices))["windows"].filter("counted")
        length[windows["source"][0]] = (windows["end_ns"] - windows["start_ns"]).mean()
    assert length["launches"] == pytest.approx(length["nvtx"], rel=0.02)


def test_numbers_that_start_anew():
    """Two epochs of steps 0 and 1: four steps, in their order."""
    trace = random_trace(0)
    names = trace.events["nvtx"]["name"].cast(pl.String).replace({"step 2": "step 0", "step 3": "step 1"})
    marks = trace.events["nvtx"].with_columns(name=names.cast(pl.Categorical()))
    found = analyse(type(trace)({**trace.events, "nvtx": marks}, trace.devices))
    assert found["windows"]["step"].to_list() == [0, 1, 2, 3]
    assert found["windows"]["host_start_ns"].to_list() == [0, 1000, 2000, 3000]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace-r3.sqlite", 3),
        ("trace_rank12.json.gz", 12),
        ("t-r1_pqtdir", 1),
        ("resnet50.sqlite", None),
        ("r.json", None),
    ],
)
def test_rank_in_the_name(name, rank):
    assert engine.rank_of(random_trace(0), name) == rank


def test_a_trace_without_steps_is_one():
    trace = random_trace(0)
    events = {k: f if k != "nvtx" else f.clear() for k, f in trace.events.items()}
    found = analyse(type(trace)(events, trace.devices))
    assert found["windows"].select("step", "source").rows() == [(0, "none")]
    assert found["step_parts"].filter(pl.col("part") != HIDDEN)["duration_ns"].sum() == (
        found["windows"]["end_ns"][0] - found["windows"]["start_ns"][0]
    )
