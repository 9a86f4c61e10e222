"""The path that decides how long steps take: of timelines where it is known, and marked in the bars of a point."""

import polars as pl
import pytest

from nightsweep.analysis.diagnosis import verdict
from nightsweep.analysis.metrics.steps import timeline
from nightsweep.analysis.tools.derive import make
from tests.analysis.diagnosis.diagnosed import LAUNCH, MS, STEP, US, busy, of
from tests.bench.many_ranks import make_point

STEPS = 5


def shares(tmp_path, make, ranks=1):
    """By rank and lane: the share of the time from the first piece of work to the last that the path is there."""
    found = verdict.judge(of(tmp_path, make, ranks=ranks))
    spans, work = found.path.spans, found.evidence.what_if.graph.work
    began, ended = int(work.start.min()), int(work.end.max())
    inside = spans.with_columns(pl.col("start_ns", "end_ns").clip(began, ended))
    sums = inside.group_by("rank", "lane").agg((pl.col("end_ns") - pl.col("start_ns")).sum() / (ended - began))
    return {(rank, lane): share for rank, lane, share in sums.iter_rows() if share > 0.02}


def test_the_path_is_on_the_device_where_that_is_always_busy(tmp_path):
    assert shares(tmp_path, busy) == {(0, "compute"): pytest.approx(1, abs=0.02)}


def test_the_path_is_on_the_host_where_the_device_waits_for_launches(tmp_path):
    def make(run, start):
        for at in range(start, start + STEP, MS):
            run.kernel(at + LAUNCH, at + LAUNCH + 100 * US, at=at)

    assert shares(tmp_path, make) == {(0, "call"): pytest.approx(1, abs=0.03)}


def test_the_path_goes_to_the_rank_that_the_others_wait_for(tmp_path):
    """Rank 1 computes for 9 ms of a step and rank 0 for 3; the reduction then takes both 1 ms, which counts on both."""

    def make(run, start):
        length = 9 * MS if run.rank else 3 * MS
        busy(run, start, length)
        run.reduce(start + length, start + STEP, 100_000_000)

    found = shares(tmp_path, make, ranks=2)
    assert found.pop((0, "communication"), 0) <= 0.12
    assert found == {(1, "compute"): pytest.approx(0.9, abs=0.03), (1, "communication"): pytest.approx(0.1, abs=0.02)}


def test_what_nothing_explains_is_a_share_of_the_whole_path(tmp_path):
    """Every 10 ms a kernel is launched that begins 8 later: the path is 40 of the host, these 8, and 1 of the last."""

    def make(run, start):
        run.kernel(start + 8 * MS, start + 9 * MS, at=start)

    assert verdict.judge(of(tmp_path, make)).path.unexplained == pytest.approx(8 / 49, abs=0.001)


def bars(*rows):
    columns = ["rank", "lane", "name", "start_ns", "end_ns"]
    return pl.DataFrame(rows, columns, orient="row").with_columns(step=0, trace_zero_ns=1000)


def test_a_bar_is_cut_where_the_path_comes_and_goes():
    own = bars(
        (0, "range", "forward", 0, 90),
        (0, "compute", "a", 0, 40),
        (0, "compute", "b", 50, 90),
        (1, "copy", "c", 0, 9),
        (2, "copy", "d", 0, 9),
    )
    spans = pl.DataFrame(
        {"rank": [0, 0, 0], "lane": ["compute"] * 3, "start_ns": [1010, 1030, 1050], "end_ns": [1020, 1060, 1055]}
    )
    marked = timeline.mark_path(own, spans, {0, 1}).select("name", "start_ns", "end_ns", "on_path").rows()
    assert marked == [
        ("forward", 0, 90, None), ("a", 0, 10, False), ("a", 10, 20, True), ("a", 20, 30, False), ("a", 30, 40, True),
        ("b", 50, 60, True), ("b", 60, 90, False), ("c", 0, 9, False), ("d", 0, 9, None),
    ]  # fmt: skip


def test_the_bars_of_a_point_are_marked_on_each_rank_s_own_clock(tmp_path):
    """Of two ranks, whose traces' clocks are 7 ms apart, the second is slow: its device is on the path from the step's
    first work to its last, but for short lags."""
    make_point(tmp_path / "point", 2, 1)
    own = make(tmp_path / "point", tmp_path / "out", 1).tables["timeline"]
    phases, rest = own.filter(pl.col("lane") == "range"), own.filter(pl.col("lane") != "range")
    assert phases["on_path"].null_count() == phases.height > 0 and rest["on_path"].null_count() == 0
    on = rest.filter("on_path").sort("start_ns")
    gaps = (on["start_ns"] - on["end_ns"].cum_max().shift()).clip(0).sum()
    slow = rest.filter(pl.col("lane") != "call", rank=1)
    length = slow["end_ns"].max() - slow["start_ns"].min()
    assert on["rank"].unique().to_list() == [1] and gaps < 0.2 * length
    assert on["start_ns"].min() == slow["start_ns"].min() and on["end_ns"].max() == slow["end_ns"].max()
