"""Two real runs of two H200s, DDP and ZeRO-3 (nsys 2025.3.2): their collectives, rank by rank."""

import math

import polars as pl
import pytest

from nightsweep.analysis.metrics.ranks import collectives, matching
from tests.fakes.ranks import read_events, unpack


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    names = ("ddp-r0", "ddp-r1", "zero3-r0", "zero3-r1")
    return {name: collectives.rank_collectives(read_events(unpack(name, folder))) for name in names}


@pytest.mark.parametrize(("strategy", "count"), [("ddp", 9), ("zero3", 82)])
def test_real_ranks_are_matched_call_by_call(real, strategy, count):
    frames = [real[f"{strategy}-r{rank}"] for rank in (0, 1)]
    assert all(frame["bytes"].null_count() == 0 == frame["launch_ns"].null_count() for frame in frames)
    table = collectives.match_ranks(frames)
    assert table["matched_ranks"].to_list() == [2] * (2 * count)
    pairs = table.filter(pl.col("collective").is_in(matching.SYNCHRONIZING)).group_by("collective", "sequence")
    assert pairs.agg(apart=pl.col("end_ns").max() - pl.col("end_ns").min())["apart"].max() < 5000
    _, offsets = matching.align(frames)
    assert abs(offsets["offset_ns"][1]) < 1000 and offsets["residual_ns"][1] < 1000


def test_real_bandwidth_grows_with_the_size_and_stays_below_nvlink(real):
    sizes = collectives.bandwidth_by_size(collectives.match_ranks([real["zero3-r0"], real["zero3-r1"]]))
    gathered = sizes.filter(pl.col("collective") == "all_gather")
    assert gathered["median_bus_bandwidth"].is_sorted() and gathered["count"].sum() == 78
    assert sizes["max_bus_bandwidth"].max() < 450e9 and sizes["wait_share"].min() > 0.8
    (scattered,) = sizes.filter(pl.col("collective") == "reduce_scatter")["size_bytes"]
    assert scattered == 2 ** math.floor(math.log2(2 * 918_656))


def test_real_rank_that_lacks_the_first_calls_is_still_matched(real):
    whole = collectives.match_ranks([real["zero3-r0"], real["zero3-r1"]])
    cut = collectives.match_ranks([real["zero3-r0"], real["zero3-r1"].slice(30)])
    assert cut["matched_ranks"].value_counts().sort("matched_ranks").rows() == [(1, 30), (2, 104)]
    both = cut.filter(pl.col("matched_ranks") == 2).join(whole, on=["rank", "start_ns"], suffix="_whole")
    assert both["wait_ns"].equals(both["wait_ns_whole"].alias("wait_ns")) and len(both) == 104


def test_real_clocks_off_by_seconds(real):
    off = real["ddp-r1"].with_columns(pl.col("launch_ns", "start_ns", "end_ns") + 3 * 10**9)
    moved, offsets = matching.align([real["ddp-r0"], off])
    assert offsets["offset_ns"][1] == pytest.approx(3 * 10**9, abs=1000)
    assert set(collectives.match_ranks(moved)["matched_ranks"]) == {2}
