"""Rounds of repeats: which starts follow what is known so far, and the table of pairs."""

import dataclasses

import numpy as np
import pytest

from nightsweep.analysis.sweep.pair_rows import Start, beside
from nightsweep.analysis.tools import repeats
from nightsweep.analysis.tools.expected_starts import lines
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.sweep.design import Precision
from nightsweep.jobs.sweep.sweep import load

A = complete({"workload": "image", "model": "mobilenet_v2", "device": "cpu", "layout": "nchw"})
B = dataclasses.replace(A, layout="nhwc")
C = dataclasses.replace(A, micro_batch=16)
WANTED = Precision(half_width=0.02, least=4, most=20)
PAIR = [("layout", A.id, B.id)]


def repeated(point, count):
    return [dataclasses.replace(point, repeat=n) for n in range(count)]


def times(sd, count, level=10.0, seed=0):
    values = level * np.exp(sd * np.random.default_rng(seed).standard_normal(count))
    return {n: Start(float(ms), "h1") for n, ms in enumerate(values)}


def test_a_pair_that_is_known_well_enough_is_not_started_again():
    starts = {A.id: times(0, 6), B.id: times(0, 6, 8.0)}
    new, looks = repeats.due(repeated(A, 6) + repeated(B, 6), PAIR, WANTED, starts)
    assert new == [] and [(look.what, look.starts, look.enough) for look in looks] == [("layout", 6, True)]


@pytest.mark.parametrize(("sd", "added"), [(0.006, 4), (0.05, 14)])
def test_further_starts_come_in_whole_blocks_up_to_the_most(sd, added):
    starts = {A.id: times(0, 6), B.id: times(sd, 6, seed=2)}
    new, looks = repeats.due(repeated(A, 6) + repeated(B, 6), PAIR, WANTED, starts)
    assert not looks[0].enough
    assert {(p.layout, p.repeat) for p in new} == {(s, n) for s in ("nchw", "nhwc") for n in range(6, 6 + added)}


def test_the_most_is_the_end():
    starts = {A.id: times(0, 20), B.id: times(0.2, 20)}
    new, looks = repeats.due(repeated(A, 20) + repeated(B, 20), PAIR, WANTED, starts)
    assert new == [] and not looks[0].enough


def test_a_point_in_no_pair_is_known_by_its_time():
    new, looks = repeats.due(
        repeated(C, 4), PAIR, WANTED, {C.id: {n: Start(9.0 + 2 * (n % 2), "h1") for n in range(4)}}
    )
    assert [look.what for look in looks] == [C.id] and [p.repeat for p in new] == list(range(4, 4 + len(new)))
    assert len(new) == 16  # up to the most


def test_what_never_ran_well_is_not_tried_again():
    new, looks = repeats.due(repeated(A, 4) + repeated(B, 4), PAIR, WANTED, {A.id: times(0, 4)})
    assert new == [] and looks[0].half_width is None and not looks[0].enough


def test_the_work_grows_with_the_points(monkeypatch):
    """It grew with their square: a round of 2,000 points took half an hour."""
    asked = []
    first_repeat = repeats.first_repeat
    monkeypatch.setattr(repeats, "first_repeat", lambda point: asked.append(point) or first_repeat(point))
    listed = [one for size in range(20) for one in repeated(dataclasses.replace(A, micro_batch=1 + size), 3)]
    _, looks = repeats.due(listed, [], WANTED, {})
    assert {look.starts for look in looks} == {3} and len(looks) == 20 and len(asked) <= 2 * len(listed)


def test_one_block_alone_asks_for_another():
    starts = {A.id: times(0, 2), B.id: times(0, 2)}
    new, _ = repeats.due(repeated(A, 2) + repeated(B, 2), PAIR, WANTED, starts)
    assert sorted(p.repeat for p in new) == [2, 2, 3, 3]


def test_what_is_expected_is_said_before_the_sweep_runs(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(
        "name: d\nbase: {workload: image, model: resnet50}\npairs: {nhwc: {with: {layout: nhwc}}}\n"
        "include: [{micro_batch: 128}]\ndesign: {precision: {half_width: 5%, least: 6, most: 40}}\n"
    )
    sweep = load(path)
    head, *expected = lines(sweep, sweep.design.precision)
    assert head == "precision: half widths of 5 %, 6 to 40 starts each; 2 points in pairs, 1 alone"
    assert expected[0] == "  expected where the GPU decides (starts differ by 0.5 %): 6 in pairs, 6 alone"
    assert expected[1].endswith("(starts differ by 6.1 %): 26 in pairs, 13 alone")
    assert expected[2].endswith("more than 40 in pairs, 27 alone")


def test_a_block_that_went_on_on_another_host_does_not_count():
    one = {n: Start(10.0, "h1") for n in range(4)}
    other = {n: Start(8.0, "h1" if n < 2 else "h2") for n in range(4)}
    assert beside({A.id: one, B.id: other}, A.id, B.id, 0.95).number == 1


def test_what_was_disturbed_does_not_count_and_is_started_again():
    starts = {A.id: times(0, 4), B.id: {n: one._replace(disturbed=True) for n, one in times(0, 4).items()}}
    new, looks = repeats.due(repeated(A, 4) + repeated(B, 4), PAIR, WANTED, starts)
    assert sorted(p.repeat for p in new) == [4, 4, 5, 5] and looks[0].half_width is None
    lone = {C.id: {n: one._replace(disturbed=n > 0) for n, one in times(0.1, 4).items()}}
    new, _ = repeats.due(repeated(C, 4), PAIR, WANTED, lone)
    assert [p.repeat for p in new] == [4]
