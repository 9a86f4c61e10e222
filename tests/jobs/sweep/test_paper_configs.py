"""The sweeps of the paper: what they hold, and that points once measured stay the same points."""

from pathlib import Path

import pytest

from nightsweep.jobs.sweep.estimate import estimate
from nightsweep.jobs.sweep.sweep import load

CONFIG = Path(__file__).parents[3] / "config"
GPUS = 4


@pytest.fixture(scope="module", params=["paper-image", "paper-llm"])
def sweeps(request):
    file = CONFIG / f"{request.param}.yaml"
    return load(file), load(file, "hour")


def test_the_hour_is_a_part_of_the_whole_and_fits_four_gpus(sweeps):
    whole, hour = sweeps
    assert {point.id for point in hour.points} <= {point.id for point in whole.points}
    assert estimate(hour.points).gpu_hours < GPUS
    assert max(point.world_size for point in hour.points) <= GPUS


def test_every_point_has_three_repeats_and_some_have_traces(sweeps):
    for sweep in sweeps:
        counts = [sum(point.repeat == number for point in sweep.points) for number in range(3)]
        assert len(set(counts)) == 1
        assert sum(counts) == len(sweep.points)
        assert any(point.traced_steps for point in sweep.points)


def test_points_of_the_first_campaign_are_still_these_points():
    known = {
        "paper-image": {"b6f0c5d55662", "41239bb51d77", "f8df85ba0ebe", "b14a957fd820", "90e1ba7a2244", "4b205c3348d0"},
        "paper-llm": {"dcdf900b9cd9", "b85cd3b504ca", "296e6ae22c62", "00797fa51362", "81f9e5f3a137", "b7df2094a6d5"},
    }
    for name, ids in known.items():
        assert ids <= {point.id for point in load(CONFIG / f"{name}.yaml").points}
