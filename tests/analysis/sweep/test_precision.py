"""How well ratios of pairs are known: Student's t over blocks, looked at several times."""

import math

import numpy as np
import pytest

from nightsweep.analysis.sweep.precision import mean, needed, ratio
from nightsweep.jobs.sweep.design import CONFIDENCE


def test_what_falls_on_a_whole_block_is_not_in_its_ratio():
    host = {0: 1.0, 1: 1.02, 2: 3.0, 3: 3.06}
    found = ratio({n: 10 * h for n, h in host.items()}, {n: 8 * h for n, h in host.items()})
    assert found.value == pytest.approx(0.8) and found.number == 2 and found.noise.sd == pytest.approx(0, abs=1e-12)


def test_starts_of_one_block_are_no_replicates():
    found = ratio(dict.fromkeys(range(6), 10.0), {0: 8.0, 1: 8.4, 2: 9.0, 3: 9.4, 4: 7.0, 5: 7.4})
    logs = [np.mean([math.log(a / 10), math.log(b / 10)]) for a, b in ((8, 8.4), (9, 9.4), (7, 7.4))]
    half = 4.302653 * np.std(logs, ddof=1) / math.sqrt(3)  # t of 2 degrees of freedom at 97.5 %
    assert found.number == 3 and found.half_width == pytest.approx(math.expm1(half), rel=1e-5)
    low, high = found.interval
    assert low * high == pytest.approx(found.value**2)


def test_a_repeat_that_one_point_lacks_does_not_count():
    assert ratio({0: 10.0, 1: 10.0, 2: 10.0}, {1: 8.0, 2: 8.0, 3: 1.0}).value == pytest.approx(0.8)
    assert ratio({0: 10.0}, {1: 8.0}) is None and mean([]) is None


def test_one_block_or_start_tells_no_interval():
    assert ratio({0: 10.0, 1: 10.0}, {0: 8.0, 1: 8.1}).half_width == math.inf
    assert mean([10.0]).half_width == math.inf


def test_what_is_needed_is_enough_and_no_less_would_be():
    for sd, half in ((0.012, 0.02), (0.048, 0.02), (0.1, 0.05)):
        number = needed(sd, half, 1000)
        enough, fewer = (mean(list(np.exp(_spread(sd, n)))).half_width for n in (number, number - 1))
        assert enough <= half * 1.0001 < fewer
    assert needed(0.5, 0.01, 40) == 40


def _spread(sd, number):
    values = np.linspace(-1, 1, number)
    return values * sd / np.std(values, ddof=1)


@pytest.mark.parametrize("sd", [0.012, 0.03, 0.08])
def test_the_interval_where_one_stops_holds_at_95_percent(sd):
    """Blocks of a real ratio of 0.95, looked at as a sweep does it: after 5, then three times as often as it asks."""
    random, inside, tries = np.random.default_rng(7), 0, 2000
    for _ in range(tries):
        logs = list(math.log(0.95) + sd * random.standard_normal(5))
        for _ in range(3):
            known = mean(list(np.exp(logs)), CONFIDENCE)
            if known.half_width <= 0.02 or len(logs) >= 60:
                break
            further = max(1, needed(known.noise.sd, 0.02, 60, CONFIDENCE) - len(logs))
            logs += list(math.log(0.95) + sd * random.standard_normal(min(further, 60 - len(logs))))
        low, high = mean(list(np.exp(logs)), CONFIDENCE).interval
        inside += low <= 0.95 <= high
    assert inside / tries >= 0.95


def test_a_difference_of_5_percent_is_found_in_nine_of_ten_tries():
    """With as many blocks as a half width of 2 % asks for."""
    random, found, tries, sd = np.random.default_rng(3), 0, 500, 0.02
    for _ in range(tries):
        logs = math.log(0.95) + sd * random.standard_normal(needed(sd, 0.02, 100, CONFIDENCE))
        found += mean(list(np.exp(logs)), CONFIDENCE).interval[1] < 1
    assert found / tries >= 0.9
