"""The rule that finds the warm-up in a window of steps, on simulated windows."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.metrics.points import warm_up
from nightsweep.analysis.metrics.points.warm_up import WarmUp

PUBLISHED = Path(__file__).parents[3] / "data/h200-2026-11-21/tables"


def noise(seed, count, sd=0.02):
    return 100 * np.exp(np.random.default_rng(seed).normal(0, sd, count))


@pytest.mark.parametrize(("count", "most"), [(16, 0.02), (20, 0.02), (40, 0.04), (100, 0.06)])
def test_pure_noise_is_seldom_called_a_warm_up(count, most):
    found = [warm_up.find(noise(seed, count)) for seed in range(600)]
    assert np.mean([one != WarmUp(0, True) for one in found]) < most


@pytest.mark.parametrize(("before", "after"), [(110, 100), (95, 100)])
@pytest.mark.parametrize("place", [5, 8, 10])
def test_a_step_change_is_found_where_it_is(before, after, place):
    found = []
    for seed in range(200):
        times = noise(seed, 20, 0.005)
        times[:place] *= before / 100
        times[place:] *= after / 100
        found.append(warm_up.find(times))
    assert np.mean([one.steady and abs(one.first - place) <= 1 for one in found]) > 0.85


def test_a_drift_is_cut_until_what_is_left_is_steady():
    """20 % slower at first, gone with a time constant of 8 of 80 steps."""
    drift = 1 + 0.2 * np.exp(-np.arange(80) / 8)
    cut, whole = [], []
    for seed in range(100):
        times = noise(seed, 80, 0.01) * drift
        found = warm_up.find(times)
        assert 10 <= found.first <= 40
        cut.append(times[found.first :].mean() / 100 - 1)
        whole.append(times.mean() / 100 - 1)
    assert np.mean(whole) > 0.018 and np.mean(cut) < 0.006


def test_a_change_beyond_the_first_half_means_that_it_is_still_warming_up():
    times = noise(1, 20, 0.005)
    times[14:] *= 0.9
    assert warm_up.find(times) == WarmUp(0, False)
    times = noise(1, 40, 0.005)
    times[:10] *= 1.2
    times[30:] *= 0.9
    found = warm_up.find(times)
    assert 10 <= found.first <= 13 and not found.steady


@pytest.mark.parametrize("place", [0, 4, 12])
def test_a_pause_in_one_step_is_no_warm_up(place):
    times = noise(3, 20, 0.005)
    times[place] *= 5
    assert warm_up.find(times) == WarmUp(0, True)


def test_a_change_below_what_starts_differ_by_is_none():
    times = noise(4, 20, 0.0005)
    times[:8] *= 1.005
    assert warm_up.find(times) == WarmUp(0, True)


def test_few_steps_do_not_tell():
    assert warm_up.find(np.array([200.0] * 7 + [100.0] * 8)) is None
    assert warm_up.find(np.array([200.0] * 8 + [100.0] * 8)) == WarmUp(8, True)


def test_steps_that_settle_have_a_phase_of_their_own():
    slow = [{"rank": 0, "step": s, "phase": "warmup" if s < 2 else "timed", "step_ms": 1.0} for s in range(22)]
    fast = [row | {"rank": 1, "step_ms": 2.0 if row["step"] < 8 else 1.5} for row in slow]
    marked = warm_up.mark_settling(pl.DataFrame(slow + fast))
    phases = marked.filter(rank=0).sort("step")["phase"].to_list()
    assert phases == ["warmup"] * 2 + [warm_up.SETTLING] * 6 + ["timed"] * 14
    assert warm_up.of_point(marked) == WarmUp(6, True)  # found again in what is marked
    assert warm_up.mark_settling(marked).equals(marked)


def test_of_the_published_windows_one_in_eight_was_still_warming_up():
    steps = pl.read_parquet(PUBLISHED / "steps.parquet")
    found = [warm_up.of_point(part) for part in steps.partition_by("point_id")]
    known = [one for one in found if one is not None]
    counts = len(known), sum(one.first > 0 for one in known), sum(not one.steady for one in known)
    assert counts == (273, 35, 16)
