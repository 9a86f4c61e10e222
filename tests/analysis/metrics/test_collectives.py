"""Collectives of many ranks: timelines whose skew, waiting and matching are known."""

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.metrics.ranks import collectives, matching
from nightsweep.analysis.tables import column, traces
from tests.fakes.ranks import COMMUNICATOR, Timeline

MS = 1_000_000


def rank_frames(*timelines):
    return [collectives.rank_collectives(t.events()) for t in timelines]


def three_ranks(kind="all_reduce", **more):
    """Three ranks; rank 1 comes 300 ns late, and the data takes 100 ns."""
    ranks = [Timeline(rank, process=10 + rank) for rank in range(3)]
    for timeline, start in zip(ranks, (1000, 1300, 1050), strict=True):
        timeline.collective(kind, start, 1400, **more)
    return ranks


def test_skew_transfer_waiting_and_who_was_late():
    table = collectives.match_ranks(rank_frames(*three_ranks())).sort("rank")
    assert table.schema == column.schema(traces.COLLECTIVES)
    assert table["wait_ns"].to_list() == [300, 0, 250]
    for name, value in {
        "transfer_ns": 100, "skew_ns": 300, "late_rank": 1, "first_start_ns": 1000, "others_start_ns": 1050,
        "others_end_ns": 1400,
        "matched_ranks": 3, "sequence": 0, "communicator": COMMUNICATOR, "calls": 1,
    }.items():  # fmt: skip
        assert table[name].to_list() == [value] * 3, name


@pytest.mark.parametrize(
    ("kind", "total", "factor"),
    [
        ("all_reduce", 4096, 2 * 3 / 4),
        ("all_gather", 4 * 4096, 3 / 4),
        ("reduce_scatter", 4 * 4096, 3 / 4),
        ("all_to_all", 4 * 4096, 3 / 4),
        ("broadcast", 4096, 1),
        ("reduce", 4096, 1),
    ],
)
def test_bus_bandwidth_as_nccl_tests_counts_it(kind, total, factor):
    # Three ranks of a communicator of four were traced.
    table = collectives.match_ranks(rank_frames(*three_ranks(kind, size=4096, ranks=4)))
    assert set(table["collective"]) == {kind} and set(table["total_bytes"]) == {total}
    assert table["algorithm_bandwidth"].to_list() == pytest.approx([total / 100e-9] * 3)
    assert table["bus_bandwidth"].to_list() == pytest.approx([factor * total / 100e-9] * 3)


def test_an_all_to_all_in_which_ranks_send_different_amounts_is_one_of_all_of_them():
    ranks = [Timeline(rank, process=10 + rank) for rank in range(2)]
    for timeline, start, sizes in zip(ranks, (1000, 1300), ((4096, 1024), (2048, 2048)), strict=True):
        for number, size in enumerate(sizes):
            timeline.collective("all_to_all", start + 1000 * number, 1400 + 1000 * number, size=size, ranks=2)
    table = collectives.match_ranks(rank_frames(*ranks)).sort("start_ns", "rank")
    assert table["matched_ranks"].to_list() == [2] * 4 and table["late_rank"].to_list() == [1] * 4
    assert table.sort("sequence", "rank")["total_bytes"].to_list() == [2 * 4096] * 2 + [2 * 2048] * 2


def test_without_the_communicator_s_ranks_the_matched_ones_count():
    table = collectives.match_ranks(rank_frames(*three_ranks(size=600)))
    assert table["bus_bandwidth"].to_list() == pytest.approx([4 / 3 * 600 / 100e-9] * 3)


def test_launches_are_the_calls_that_a_collective_began_with():
    timeline = Timeline()
    timeline.collective("all_reduce", 500, 600, at=50)
    timeline.collective("all_reduce", 700, 800, at=150)
    (frame,) = rank_frames(timeline)
    assert frame["launch_ns"].to_list() == [52, 152]


def steps(rank, first, last, lag=0, seed=0, **more):
    """Steps of two kinds of collectives; the time between them varies, on all ranks alike."""
    gaps = np.random.default_rng(seed).integers(1 * MS, 3 * MS, 400).cumsum().tolist()
    timeline = Timeline(rank, process=10 + rank)
    for number, end in list(enumerate(gaps))[first:last]:
        kind, size = ("all_gather", 64) if number % 4 == 0 else ("all_reduce", 256 * (number % 4))
        start = end - 20_000 - (number * 7919 * (rank + 1)) % 9000
        timeline.collective(kind, start + lag, end + lag + 100 * rank, size, **more)
    return timeline


@pytest.mark.parametrize("known", [True, False], ids=["communicator", "stream"])
@pytest.mark.parametrize(("first", "last"), [(0, 40), (7, 40), (0, 33), (4, 44), (8, 36)])
def test_captures_that_begin_and_end_at_different_calls(known, first, last):
    more = {} if known else {"communicator": None, "bytes": None}
    frames = rank_frames(steps(0, 0, 40), steps(1, first, last))
    frames = [
        f.with_columns(pl.lit(None, pl.Int64 if n == "bytes" else pl.String).alias(n) for n in more) for f in frames
    ]
    table = collectives.match_ranks(frames)
    both = table.filter(pl.col("matched_ranks") == 2)
    assert len(both) == 2 * (min(last, 40) - first) and len(table) == 40 + last - first
    # Ends of one collective are 100 ns apart, of different ones a ms.
    assert (both.group_by("lane", "sequence", "collective").agg(pl.col("end_ns").max() - pl.col("end_ns").min()))[
        "end_ns"
    ].to_list() == [100] * (len(both) // 2)
    assert table.filter(pl.col("matched_ranks") == 1)["wait_ns"].null_count() == len(table) - len(both)


def test_another_order_is_not_matched():
    ranks = three_ranks()
    ranks[2] = Timeline(2, process=12)
    ranks[2].collective("all_gather", 1050, 1400)
    table = collectives.match_ranks(rank_frames(*ranks)).sort("rank")
    assert table["matched_ranks"].to_list() == [2, 2, 1] and table["sequence"].to_list() == [0, 0, None]
    assert table["late_rank"].to_list() == [1, 1, None]


def test_another_size_is_not_matched():
    ranks = three_ranks()
    ranks[1].rows["nccl_calls"][0]["bytes"] = 2048
    assert collectives.match_ranks(rank_frames(*ranks)).sort("rank")["matched_ranks"].to_list() == [2, 1, 2]


def test_a_rank_unlike_all_others_does_not_prevent_their_matching():
    odd = Timeline(0)
    odd.collective("broadcast", 1000, 2000)
    table = collectives.match_ranks(rank_frames(odd, steps(1, 0, 5), steps(2, 0, 5)))
    assert table.group_by("rank").agg(pl.col("matched_ranks").max()).sort("rank").rows() == [(0, 1), (1, 2), (2, 2)]


def test_what_lies_before_the_longest_list_is_compared_too():
    ranks = [steps(0, 4, 30), steps(1, 0, 24), steps(2, 0, 24)]
    ranks[2].rows["kernels"][1]["name"] = ranks[2].rows["kernels"][0]["name"]
    ranks[2].rows["nccl_calls"][1]["name"] = ranks[2].rows["nccl_calls"][0]["name"]
    matched = collectives.match_ranks(rank_frames(*ranks)).filter(pl.col("rank") == 1)["matched_ranks"].to_list()
    assert matched == [2, 1, 2, 2] + [3] * 20


def test_two_traces_of_one_rank_are_not_two_ranks():
    (frame,) = rank_frames(steps(3, 0, 5))
    assert set(collectives.match_ranks([frame, frame])["matched_ranks"]) == {1}


def test_clocks_off_by_seconds_match_nothing_until_they_are_aligned():
    lag = 5 * 10**9
    frames = rank_frames(steps(0, 0, 60), steps(1, 8, 60, lag=lag), steps(2, 0, 60, lag=-lag))
    assert set(collectives.match_ranks(frames)["matched_ranks"]) == {1}
    moved, offsets = matching.align(frames)
    assert offsets["rank"].to_list() == [0, 1, 2] and offsets["events"].to_list() == [60, 52, 60]
    assert offsets["offset_ns"].to_list() == [0, lag + 100, 200 - lag]
    assert offsets["residual_max_ns"].to_list() == [0, 0, 0]
    table = collectives.match_ranks(moved)
    assert table["matched_ranks"].value_counts().sort("matched_ranks").rows() == [(2, 16), (3, 156)]


def test_clocks_as_far_apart_as_utc_and_a_boot_lose_no_nanosecond():
    far = 1_795_269_761_638_233_101
    _, offsets = matching.align(rank_frames(steps(0, 0, 9), steps(1, 0, 9, lag=far)))
    assert offsets["offset_ns"][1] == far + 100


def test_what_repeats_without_end_cannot_be_aligned():
    def even(rank, first, lag):
        timeline = Timeline(rank)
        for number in range(first, 20):
            timeline.collective("all_reduce", number * MS + lag, number * MS + 50_000 + lag)
        return timeline

    frames = rank_frames(even(0, 0, 0), even(1, 3, 7 * MS // 3))
    moved, offsets = matching.align(frames)
    assert offsets.row(1) == (1, 0, None, None, None) and moved[1].equals(frames[1])
    # As many on both: the longest overlap is taken.
    assert matching.align(rank_frames(even(0, 0, 0), even(1, 0, 9 * MS)))[1]["offset_ns"][1] == 9 * MS
    # On one clock the times tell.
    assert collectives.match_ranks(rank_frames(even(0, 0, 0), even(1, 3, 40)))["matched_ranks"].sum() == 2 * 34 + 3


def test_kernels_launched_before_the_capture_belong_to_their_stream_s_communicator():
    ranks = [steps(rank, 0, 12) for rank in (0, 1)]
    del ranks[1].rows["runtime"][:2]
    frames = rank_frames(*ranks)
    assert frames[1]["communicator"].null_count() == 2 == frames[1]["thread"].null_count()
    assert set(collectives.match_ranks(frames)["matched_ranks"]) == {2}


def test_sends_of_more_than_two_ranks_are_not_matched():
    assert set(collectives.match_ranks(rank_frames(*three_ranks("send_recv")))["matched_ranks"]) == {1}
    assert set(collectives.match_ranks(rank_frames(*three_ranks("send_recv"))[:2])["matched_ranks"]) == {2}
    assert set(collectives.match_ranks(rank_frames(*three_ranks("send_recv", ranks=3))[:2])["matched_ranks"]) == {1}


def test_one_trace_of_two_processes_holds_two_ranks():
    one, two = Timeline(process=20), Timeline(process=30)
    one.collective("all_reduce", 1000, 1200, communicator=None)
    two.collective("all_reduce", 1100, 1200, communicator=None)
    two.rows["kernels"][0] |= {"stream": 15, "device": 1}  # streams are numbered by each process
    frame = pl.concat(rank_frames(one, two))
    table = collectives.match_ranks([frame])
    assert table["rank"].to_list() == [0, 1] and table["wait_ns"].to_list() == [100, 0]


def test_sizes_by_powers_of_two():
    ranks = [Timeline(rank, process=10 + rank) for rank in range(2)]
    for number, (size, late) in enumerate([(1024, 0), (2047, 300), (2048, 0), (2**31, 0)]):
        for rank, timeline in enumerate(ranks):
            timeline.collective("all_reduce", 1000 * number + late * rank, 1000 * number + 400, size)
    table = collectives.bandwidth_by_size(collectives.match_ranks(rank_frames(*ranks)))
    assert table["size_bytes"].to_list() == [1024, 2048, 2**31] and table["count"].to_list() == [2, 1, 1]
    assert table["wait_share"].to_list() == pytest.approx([300 / 1300, 0, 0])
    assert table["max_bus_bandwidth"][0] == pytest.approx(2047 / 100e-9) and table["transfer_ns"][0] == 500
    assert table["median_bus_bandwidth"][0] == pytest.approx((2047 / 100e-9 + 1024 / 400e-9) / 2)


def test_ranks_without_collectives():
    empty = rank_frames(Timeline(0), Timeline(1))
    assert collectives.match_ranks(empty).is_empty() and collectives.match_ranks([]).is_empty()
    assert collectives.bandwidth_by_size(collectives.match_ranks(empty)).is_empty()
    assert matching.align(empty)[1]["events"].to_list() == [0, 0]
    table = collectives.match_ranks(rank_frames(Timeline(0), *three_ranks()[1:]))
    assert table["matched_ranks"].to_list() == [2, 2]


@pytest.mark.parametrize("seed", range(20))
def test_waiting_against_brute_force(seed):
    rng = np.random.default_rng(seed)
    ranks = [Timeline(rank, process=10 + rank) for rank in range(rng.integers(2, 6))]
    spans = {}
    for number in range(8):
        end = 10_000 * number + 5000
        for rank, timeline in enumerate(ranks):
            start = end - int(rng.integers(100, 4000))
            spans[number, rank] = (start, end + int(rng.integers(0, 50)))
            timeline.collective("all_reduce", *spans[number, rank])
    for row in collectives.match_ranks(rank_frames(*ranks)).iter_rows(named=True):
        own = [spans[row["sequence"], rank] for rank in range(len(ranks))]
        transfer = min(e - s for s, e in own)
        assert (row["start_ns"], row["end_ns"]) == own[row["rank"]]
        assert row["transfer_ns"] == transfer and row["wait_ns"] == row["end_ns"] - row["start_ns"] - transfer
        assert row["skew_ns"] == max(own)[0] - min(own)[0] and own[row["late_rank"]][0] == max(own)[0]
        assert row["others_start_ns"] == sorted(own)[-2][0]
