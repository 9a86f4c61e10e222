"""The steps whose lengths add up to the time that passed."""

from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank

SET = Path(__file__).parents[3] / "data/h200-2026-11-27/tables"


def frame(*ranks, **more):
    rows = [(rank, step, ms) for rank, own in enumerate(ranks) for step, ms in enumerate(own)]
    return pl.DataFrame(rows, ["rank", "step", "step_ms"], orient="row").with_columns(**more)


def test_of_ranks_that_are_held_up_in_turns_none_counts_twice():
    """Each is held up once for 10 ms, and waits for the other one in its own next step."""
    found = slowest_rank(frame([20.0, 10.0, 10.0, 20.0], [10.0, 20.0, 20.0, 10.0]))
    assert found["step_ms"].sum() == 60 and found["step"].to_list() == [0, 1, 2, 3]


def test_of_ranks_that_do_not_wait_the_slower_one_counts():
    assert slowest_rank(frame([4.0, 4.0, 4.0], [9.0, 1.0, 1.0]))["rank"].to_list() == [0, 0, 0]


@pytest.mark.parametrize("cut", [[90.0], [90.0, None, 90.0]], ids=["steps", "times"])
def test_a_rank_that_lacks_some_does_not_count(cut):
    assert slowest_rank(frame(cut, [1.0, 2.0, 3.0]))["step_ms"].to_list() == [1.0, 2.0, 3.0]


def test_each_group_has_a_slowest_rank():
    both = pl.concat([frame([1.0, 1.0], [2.0, 2.0], point_id=pl.lit("b")), frame([3.0], [1.0], point_id=pl.lit("a"))])
    found = slowest_rank(both.lazy(), "point_id").collect()
    assert found.select("point_id", "rank", "step").rows() == [("a", 0, 0), ("b", 1, 0), ("b", 1, 1)]


def test_published_steps_add_up_to_the_time_that_passed():
    """By the host's clock, of points whose ranks meet in each step. The longest of all ranks in each step is up to an
    eighth more."""
    points = pl.read_parquet(SET / "points.parquet").filter(strategy="ddp_ds", status="ok", nodes=1, workload="image")
    steps = pl.read_parquet(SET / "steps.parquet").filter(phase="timed").join(points.select("point_id"), on="point_id")
    passed = steps.group_by("point_id", "rank").agg(ms=(pl.col("end_ns").max() - pl.col("start_ns").min()) / 1e6)
    passed = passed.group_by("point_id").agg(pl.col("ms").max())
    longest = steps.group_by("point_id", "step").agg(pl.col("step_ms").max()).group_by("point_id")
    found = slowest_rank(steps, "point_id").group_by("point_id").agg(pl.col("step_ms").sum())
    ratios = passed.join(found, on="point_id").join(longest.agg(each=pl.col("step_ms").sum()), on="point_id")
    off = ratios.select(found=(pl.col("step_ms") / pl.col("ms") - 1).abs(), each=pl.col("each") / pl.col("ms") - 1)
    assert off.height > 80 and off["found"].max() < 0.03 and off["each"].max() > 0.1
