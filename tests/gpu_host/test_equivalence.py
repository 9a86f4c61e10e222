"""The experiment on forked ranks: its order, its points, and what it concludes."""

import json
from itertools import islice

import pytest

from jobs.point.point import complete
from tests.gpu_host import equivalence
from tests.gpu_host.core_speed import is_launch_bound


def test_sides_take_turns_that_swap():
    found = list(islice(equivalence.schedule(), 4 * len(equivalence.CASES)))
    sides = [[side for pair, case, side in found if pair == number] for number in (0, 1)]
    assert sides[0] == ["new", "forked", "forked", "new"] * 2
    assert sides[1] == ["forked", "new", "new", "forked"] * 2


@pytest.mark.parametrize("case", equivalence.CASES)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_its_points_are_valid(case, device):
    point = equivalence.point(case, device)
    assert complete(point.settings()) == point
    assert is_launch_bound(point) == (case == "launch-bound")


def starts(tmp_path, ratio, spread):
    """A file of 30 pairs of one case."""
    path = tmp_path / "starts.jsonl"
    lines = []
    for pair in range(30):
        off = 1 + spread * (-1) ** pair
        for side, ms in (("new", 10.0), ("forked", 10.0 * ratio * off)):
            lines.append({"gpu": 0, "pair": pair, "case": "GPU-bound", "side": side, "s": 5.0, "step_ms": ms,
                          "in_pieces": ms, "allocated": 7, "reserved": 8, "losses": [1.0]})  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("ratio", "spread", "expected"),
    [(1.0, 0.01, "equivalent"), (1.008, 0.01, "not shown"), (1.0, 0.05, "not shown"), (1.02, 0.0001, "not shown")],
)
def test_equal_is_what_is_shown_to_be_within_one_percent(tmp_path, capsys, ratio, spread, expected):
    equivalence.tell([starts(tmp_path, ratio, spread)])
    said = capsys.readouterr().out.splitlines()
    assert " 30 pairs " in said[0] and expected in said[0]
    assert said[4].endswith("equal in 30 of 30 pairs; new among new 15 of 15")
