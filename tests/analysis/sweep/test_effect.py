"""Effects over nights: what the error of a difference is from."""

import polars as pl
import pytest

from nightsweep.analysis.sweep.effect import Side, pool_nights


def runs(*nights):
    """Values by night, each of another repeat."""
    rows = [(f"p{night}-{n}", night, n, value) for night, own in enumerate(nights) for n, value in enumerate(own)]
    return pl.DataFrame(rows, schema=["point_id", "night", "repeat", "ms"], orient="row")


def test_nights_that_agree_are_pooled_with_their_starts():
    a, b = runs([1.0, 1.2], [1.1, 1.3]), runs([0.9, 1.1], [1.0, 1.2])
    side = Side.between([(1, a), (-1, b)], "ms")
    assert side.mean == pytest.approx(0.1) and side.freedom == 5
    assert side.variance == pytest.approx(4 * 0.02 / 5 / 2)


def test_of_nights_that_disagree_the_nights_are_the_repeats():
    """0.1 in one night and 0.5 in the other, where starts of a night differ by 0.002."""
    a, b = runs([1.1, 1.102, 1.098], [1.5, 1.502, 1.498]), runs([1.0, 1.002, 0.998], [1.0, 1.002, 0.998])
    side = Side.between([(1, a), (-1, b)], "ms")
    assert side.mean == pytest.approx(0.3) and side.freedom == 1
    assert side.variance == pytest.approx(0.2**2)


def test_one_night_or_one_start_a_night_has_nothing_to_be_told_apart():
    assert pool_nights(0.0, 0, 4.0, 6) == (4.0, 6)
    assert pool_nights(3.0, 2, 0.0, 0) == (3.0, 2)
