"""Numbers in words: of a small sweep and of one of a whole cluster."""

import pytest

from nightsweep.analysis.sweep.labels import decimal, hours, short_number


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (0.03251, "0.0325"), (999.4, "999"), (999.6, "1,000"), (279620.4, "279,620")]
)
def test_numbers_have_three_digits_and_no_exponent(number, text):
    assert short_number(number) == text and short_number(-number) == (f"-{text}" if number else text)


def test_bytes_and_hours_take_no_exponent_either():
    assert [decimal(n) for n in (999, 999.7, 999_999, 2.31e10, 4.5e15)] == [
        "999 B",
        "1 kB",
        "1 MB",
        "23.1 GB",
        "4,500 TB",
    ]
    assert [hours(3600 * h) for h in (0.00001, 0.25, 12345)] == ["0.000010", "0.25", "12,345"]
