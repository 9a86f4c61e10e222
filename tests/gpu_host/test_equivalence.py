"""The experiment on forked ranks: its order, its points, its turns, and what it concludes."""

import json
import threading
from itertools import islice
from types import SimpleNamespace

import pytest

from nightsweep.jobs.point.point import complete
from tests.gpu_host import baton, equivalence


def test_sides_begin_in_turns():
    found = list(islice(equivalence.schedule(), 2 * (len(equivalence.CASES) + 1)))
    for case in equivalence.CASES:
        begins = [first for _, name, first in found if name == case]
        assert len(begins) == (4 if case == "launch-bound" else 2)
        assert begins.count("new") == begins.count("forked")


@pytest.mark.parametrize("case", equivalence.CASES)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_its_points_are_valid_and_made_of_whole_slices(case, device):
    point = equivalence.point(case, device)
    assert complete(point.settings()) == point
    assert point.timed_steps % equivalence.CASES[case].steps == 0


def test_ranks_take_turns_slice_by_slice(tmp_path):
    """Two loops whose steps only say that they ran: never both in a slice, the one that is to begin first."""
    pair, ran = tmp_path / "0", []
    baton.prepare(pair, baton.Turns(first="forked", steps=3, lead=1))
    made = SimpleNamespace(Loop=Loop, synchronize=lambda device: None)
    baton.take_turns(made)
    sides = [threading.Thread(target=made.Loop(side, ran).run, args=(folder(pair, side), 9)) for side in baton.SIDES]
    for side in sides:
        side.start()
    for side in sides:
        side.join(20)
    timed = [side for side, number in ran if number >= Loop.point.warmup_steps]
    assert timed == (["forked"] * 3 + ["new"] * 3) * 3
    for side in baton.SIDES:
        assert json.loads((pair / side / "timed" / baton.FILE).read_text()) == [2.0] * 3


def folder(pair, side):
    path = pair / side / "timed"
    path.mkdir(parents=True)
    return SimpleNamespace(path=path)


class Loop:
    """As much of nightsweep.jobs.rank.loop.Loop as turns see. A step takes 2 ms."""

    point, device = SimpleNamespace(warmup_steps=2), None

    def __init__(self, side, ran):
        self.side, self.ran = side, ran

    def one_step(self, step):
        self.ran.append((self.side, step.number))
        return step

    def run(self, _, timed):
        for number in range(self.point.warmup_steps + timed):
            phase = "warmup" if number < self.point.warmup_steps else "timed"
            span = {"start_ns": number * 2_000_000, "end_ns": (number + 1) * 2_000_000}
            self.one_step(SimpleNamespace(number=number, phase=phase, events=[], **span))


def pairs(tmp_path, ratio, spread, second=1.0):
    """A file of 30 pairs of one case; whoever comes second takes so many times as long."""
    path, lines = tmp_path / "pairs.jsonl", []
    for number in range(30):
        first = "new" if number // 2 % 2 else "forked"
        off = (1 + spread * (-1) ** number) * (second if first == "new" else 1 / second)
        sides = {"new": [10.0, 20.0, 11.0], "forked": [10.0 * ratio * off, 20.0 * ratio * off, 99.0]}
        rest = {"allocated": 7, "reserved": 8, "losses": [1.0]}
        line = {"gpu": 0, "number": number, "case": "GPU-bound", "first": first, "s": 5.0}
        lines.append(line | {side: rest | {"slices": slices} for side, slices in sides.items()})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("ratio", "spread", "expected"),
    [(1.0, 0.01, "equivalent"), (1.008, 0.01, "not shown"), (1.0, 0.05, "not shown"), (1.02, 0.0001, "not shown")],
)
def test_equal_is_what_is_shown_to_be_within_one_percent(tmp_path, capsys, ratio, spread, expected):
    equivalence.tell([pairs(tmp_path, ratio, spread)])
    said = capsys.readouterr().out.splitlines()
    assert " 30 pairs " in said[0] and expected in said[0]
    assert said[3].endswith("equal in 30 of 30 pairs; new among new 15 of 15")
    assert said[1].endswith("MB above the lowest: new 30x0, forked 30x0")


def test_an_effect_of_coming_second_is_not_that_of_forking(tmp_path, capsys):
    equivalence.tell([pairs(tmp_path, 1.0, 0.001, second=1.05)])
    said = capsys.readouterr().out.splitlines()[0]
    assert "equivalent" in said and "sd of a pair 0.1" in said
