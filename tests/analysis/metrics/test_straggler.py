"""The rank that others waited for and what it did in that time, on known timelines; and ranks read in parallel."""

import functools

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.ranks import collectives, pool, straggler
from nightsweep.analysis.metrics.steps import detection, layers
from nightsweep.analysis.tables import column, traces
from tests.fakes.ranks import Timeline, read_events, unpack


def three_ranks(launch=1900, start=2000, **more):
    """Rank 1 of three; the others come at 900 and 1000."""
    ranks = [Timeline(0, process=20), Timeline(1, process=21), Timeline(2, process=22)]
    for timeline, begins in zip(ranks, (900, start, 1000), strict=True):
        timeline.collective("all_reduce", begins, 2100, at=launch - 2 if begins == start else None, **more)
    return ranks


def straggler_times(ranks, late=1):
    table = collectives.match_ranks([collectives.rank_collectives(t.events()) for t in ranks])
    frame = straggler.straggler_rows(ranks[late].events(), table, late)
    assert frame.schema == column.schema(traces.STRAGGLERS)
    return {(c, n): d for c, n, d in frame.select("instead", "name", "duration_ns").rows()}


def test_each_part_of_the_stretch_has_its_cause():
    ranks = three_ranks()
    late = ranks[1]
    late.add("runtime", "cudaMalloc", 0, 2)  # the trace begins before the stretch
    late.launch(0, "gemm", 950, 1100)
    late.launch(10, "gemm", 1050, 1150)
    late.add("copies", "Memcpy HtoD", 1140, 1200, direction="HtoD")
    late.launch(20, "broadcast", 1190, 1210)
    late.add("runtime", "cudaStreamSynchronize", 1100, 1300)
    late.add("runtime", "cudaMalloc", 1300, 1340)
    late.add("runtime", "cudaMemcpyAsync", 1340, 1350)
    late.add("runtime", "cudaFree", 1290, 1990, thread=2)  # not by the thread that launches
    late.add("nvtx", "step 3", 1000, 1500)
    late.add("nvtx", "data", 1350, 1450)
    late.add("nvtx", "h2d", 1400, 1420)
    late.add("nvtx", "backward", 1480, 1600, thread=2)
    assert straggler_times(ranks) == {
        ("compute", "gemm"): 150,
        ("copy", "HtoD"): 50,
        ("communication", "ncclDevKernel_Broadcast_RING_LL(x)"): 10,
        ("sync", "cudaStreamSynchronize"): 90,
        ("allocator", "cudaMalloc"): 40,
        ("call", "cudaMemcpyAsync"): 10,
        ("range", "data"): 80,
        ("range", "h2d"): 20,
        ("range", "step 3"): 50,
        ("elsewhere", "backward"): 100,
        ("nothing", None): 300,
        ("queued", None): 100,
    }


def test_before_its_trace_began_nothing_is_known_of_a_rank():
    ranks = three_ranks()
    ranks[1].add("nvtx", "step 3", 0, 3000)
    ranks[1].add("runtime", "cudaEventRecord", 1400, 1500)
    assert straggler_times(ranks) == {
        ("unrecorded", None): 400,
        ("call", "cudaEventRecord"): 100,
        ("range", "step 3"): 400,
        ("queued", None): 100,
    }


def test_without_the_launch_the_thread_is_not_known():
    ranks = three_ranks(communicator=None)
    ranks[1].launch(0, "gemm", 900, 1300)
    ranks[1].rows["runtime"].pop(0)
    assert straggler_times(ranks) == {("compute", "gemm"): 300, ("unknown", None): 700}


def test_who_waits_for_nobody_is_not_waited_for():
    root, late = Timeline(0, process=20), Timeline(1, process=21)
    root.collective("broadcast", 1000, 1200)
    late.launch(0, "gemm", 900, 1150)
    late.collective("broadcast", 2000, 2100)
    assert straggler_times([root, late]) == {("compute", "gemm"): 150, ("nothing", None): 50}


def test_a_rank_that_was_never_last_has_no_rows():
    assert straggler_times(three_ranks(), late=2) == {}


def test_others_waiting_is_counted_by_step_and_in_all():
    ranks = [Timeline(rank, process=20 + rank) for rank in range(3)]
    for number, starts in enumerate([(1000, 1400, 1100), (1000, 1500, 1500), (1900, 1000, 1000)]):
        for timeline, start in zip(ranks, starts, strict=True):
            at = 10_000 * number
            timeline.add("nvtx", f"step {number // 2}", at, at + 9000)
            timeline.collective("all_reduce", at + start, at + 2000)
    steps = pl.DataFrame({"step": [0, 1], "start_ns": [0, 20_000], "end_ns": [19_000, 29_000]})
    calls = [collectives.rank_collectives(t.events()) for t in ranks]
    table = collectives.match_ranks([own.with_columns(detection.steps_at(steps, own["launch_ns"])) for own in calls])
    assert straggler.waits_by_rank(table).rows() == [
        (0, None, 1800, 1),
        (1, None, 700, 1),
        (2, None, 500, 1),
        (1, 0, 700, 1),
        (2, 0, 500, 1),
        (0, 1, 1800, 1),
    ]


def test_no_collectives_wait_for_nobody():
    table = column.empty(traces.COLLECTIVES)
    assert straggler.waits_by_rank(table).is_empty()
    assert straggler.straggler_rows(Timeline().events(), table, 0).is_empty()


@pytest.mark.parametrize("seed", range(30))
def test_parts_add_up_and_agree_with_brute_force(seed):
    rng = np.random.default_rng(seed)
    frames = []
    for category in ("a", "b"):
        starts = rng.permutation(60)[:8]  # two that begin at once have no order
        frame = pl.DataFrame({"start_ns": starts, "end_ns": starts + rng.integers(0, 25, 8)})
        frames.append((category, frame.with_columns(name=pl.format("n{}", pl.int_range(pl.len())))))
    found = layers.overlay(frames, intervals.union([[0, 100]]))
    moments = np.arange(10, 50)
    of, place, length = found.during(moments, moments + 1)
    got = {int(moments[number]): found.labels[segment] for number, segment in zip(of, place, strict=True)}
    assert (length == 1).all()
    want = {}
    for t in range(10, 50):
        for category, frame in frames:
            open_ = frame.filter(pl.col("start_ns") <= t, pl.col("end_ns") > t).sort("start_ns")
            if len(open_):
                want[t] = (category, open_["name"][-1])
                break
    assert got == want
    spans = intervals.union([[5, 12], [12, 13], [30, 31], [48, 90]])
    rest = found.without(spans)
    left = set(moments.tolist()) - {t for start, end in spans.tolist() for t in range(start, end)}
    of, place, _ = rest.during(moments, moments + 1)
    got = {int(moments[number]): rest.labels[segment] for number, segment in zip(of, place, strict=True)}
    assert got == {t: label for t, label in want.items() if t in left}


def test_layers_hold_no_more_than_what_is_near():
    frame = pl.DataFrame({"start_ns": [0, 10, 20, 35], "end_ns": [10, 21, 30, 40], "name": ["w", "x", "y", "z"]})
    found = layers.overlay([("a", frame)], np.array([[10, 12], [22, 30]]))
    assert [name for _, name in found.labels] == ["x", "y"]
    assert not len(found.during(np.array([12, 50]), np.array([12, 60]))[0])


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    return [unpack(f"ddp-r{rank}", folder) for rank in (0, 1)]


def collectives_of(path, read_):
    return collectives.rank_collectives(read_(path))


def test_real_ranks_in_parallel_give_the_same_as_in_turn(ddp):
    give = functools.partial(collectives_of, read_=read_events)
    alone, together = (pool.map_in_processes(ddp, give, workers) for workers in (1, 2))
    assert [a.equals(b) for a, b in zip(alone, together, strict=True)] == [True, True]
    with pytest.raises(FileNotFoundError):
        pool.map_in_processes([*ddp, ddp[0].with_name("none")], _size, 2)


def _size(path):
    return path.stat().st_size


def test_real_late_ranks(ddp):
    events = [read_events(path) for path in ddp]
    table = collectives.match_ranks([collectives.rank_collectives(e) for e in events])
    total = straggler.waits_by_rank(table).filter(pl.col("step").is_null())
    others = table.filter(pl.col("rank") != pl.col("late_rank"))
    assert total["late_ns"].sum() == others["wait_ns"].sum() and total["collectives"].to_list() == [1, 8]
    for rank in (0, 1):
        frame = straggler.straggler_rows(events[rank], table, rank)
        own = table.filter(pl.col("rank") == rank, pl.col("late_rank") == rank)
        assert (
            frame["duration_ns"].sum()
            == own.select(
                (pl.min_horizontal("start_ns", "others_end_ns") - pl.col("others_start_ns")).clip(0).sum()
            ).item()
        )
        assert frame.group_by("step").agg(pl.col("late_ns").first() - pl.col("duration_ns").sum())["late_ns"].sum() == 0
    # Rank 0 was last once: its profiler began 35 ms after rank 1's.
    first = straggler.straggler_rows(events[0], table, 0)
    assert first["instead"][0] == "unrecorded" and 35e6 < first["duration_ns"][0] < 36e6
    # Rank 1 was last in all that follows: most of it in the backward pass, on the host.
    second = straggler.straggler_rows(events[1], table, 1).group_by("instead").agg(pl.col("duration_ns").sum())
    assert second.sort("duration_ns")["instead"][-1] == "elsewhere"
