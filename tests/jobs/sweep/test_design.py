"""The order of points: blocks of pairs, the points that lead them, and the first starts of a precision."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from nightsweep.jobs.sweep import design, rounds
from nightsweep.jobs.sweep.driver import Run
from nightsweep.jobs.sweep.sweep import SweepError, load

BASE = {"workload": "image", "model": "mobilenet_v2", "device": "cpu", "image_size": 32, "micro_batch": 8}
PAIRS = {"nhwc": {"with": {"layout": "nhwc"}}, "workers": {"with": {"loader_workers": 1}}}


def sweep(tmp_path, **more):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "d", "base": BASE, **more}))
    return load(Path(path))


def queues(made, measured=()):
    return design.led(design.queues(made.points, made.pairs, made.design), lambda point_id: point_id in measured)


def test_pairs_that_share_a_point_share_its_blocks_each_there_and_back(tmp_path):
    made = sweep(tmp_path, pairs=PAIRS, repeats=4, design={"seed": 1})
    assert len(made.points) == 12
    found = queues(made)
    assert len(found) == 2
    for leader, block in found.items():
        switches = [(point.layout, point.loader_workers) for point in block]
        assert block[0].id == leader and len(block) == 6
        assert switches == switches[::-1] and len({*switches}) == 3
        assert [point.repeat % 2 for point in block] == [0] * 3 + [1] * 3
    assert {point.id for block in found.values() for point in block} == {point.id for point in made.points}
    led = design.leaders(found)
    assert len(led) == 10 and not led.keys() & found.keys() and {*led.values()} == found.keys()


def test_an_odd_number_of_starts_ends_with_half_a_block(tmp_path):
    found = queues(sweep(tmp_path, pairs={"nhwc": PAIRS["nhwc"]}, repeats=3))
    assert sorted(len(block) for block in found.values()) == [2, 4]


def test_points_that_need_other_allocations_are_in_no_block_together(tmp_path):
    pairs = {"ranks": {"with": {"ranks_per_node": 2}}, **PAIRS}
    found = queues(sweep(tmp_path, pairs=pairs))
    assert [{point.ranks_per_node for point in block} for block in found.values()] == [{1}]
    assert [len(block) for block in found.values()] == [3]


def test_a_pair_one_point_of_which_is_excluded_is_in_no_block(tmp_path):
    assert queues(sweep(tmp_path, pairs={"nhwc": PAIRS["nhwc"]}, exclude=[{"layout": "nhwc"}])) == {}


@pytest.mark.parametrize(
    "counted", [{"repeats": 2}, {"design": {"precision": {"half_width": "2%", "least": 3, "most": 4}}}]
)
def test_a_start_that_is_excluded_is_in_no_block(tmp_path, counted):
    made = sweep(tmp_path, pairs={"nhwc": PAIRS["nhwc"]}, exclude=[{"layout": "nhwc", "repeat": 1}], **counted)
    ids = {point.id for block in queues(made).values() for point in block}
    assert {point.id for point in made.points} <= ids
    assert not any(point.layout == "nhwc" and point.repeat == 1 for block in queues(made).values() for point in block)


def test_the_first_point_without_a_record_leads_and_the_others_keep_their_order(tmp_path):
    made = sweep(tmp_path, pairs=PAIRS, repeats=2)
    (block,) = queues(made).values()
    ids = [point.id for point in block]
    for measured in range(len(ids)):
        (again,) = queues(made, ids[:measured]).values()
        assert [p.id for p in again] == [ids[measured], *ids[:measured], *ids[measured + 1 :]]
    assert [p.id for p in next(iter(queues(made, ids).values()))] == ids


def test_without_a_seed_blocks_have_the_order_of_the_file(tmp_path):
    found = queues(sweep(tmp_path, pairs={"nhwc": PAIRS["nhwc"]}, repeats=8))
    assert [[point.layout for point in block] for block in found.values()] == [["nchw", "nhwc", "nhwc", "nchw"]] * 4


def test_the_order_is_random_but_the_same_each_time(tmp_path):
    made = sweep(tmp_path, repeats=30, design={"seed": 1})
    order = [made.design.draw(point.id) for point in made.points]
    assert order != sorted(order) and len({*order}) == 30
    assert order == [made.design.draw(point.id) for point in made.points]
    other = dataclasses.replace(made.design, seed=2)
    assert order != [other.draw(point.id) for point in made.points]
    run = Run(tmp_path, made)
    assert order == [run.priority(point.id) for point in made.points]


def test_without_a_seed_jobs_have_the_order_of_the_file(tmp_path):
    run = Run(tmp_path, sweep(tmp_path, axes={"micro_batch": [9, 2, 7]}, repeats=2, pairs=PAIRS))
    priorities = [run.priority(point_id) for point_id in run.own]
    assert priorities == sorted({*priorities}, reverse=True) and run.in_order == [*run.own]
    assert max(priorities) == 1 and min(priorities) > run.priority("of a round") == 0


def test_orders_of_blocks_differ(tmp_path):
    found = queues(sweep(tmp_path, pairs={"nhwc": PAIRS["nhwc"]}, repeats=40, design={"seed": 1}))
    assert {block[0].layout for block in found.values()} == {"nchw", "nhwc"}


PRECISION = {"half_width": "2%", "least": 5, "most": 40}


def test_a_precision_starts_with_its_least_and_blocks_are_whole(tmp_path):
    alone = sweep(tmp_path, design={"precision": PRECISION})
    assert len(alone.points) == 5 and alone.repeat_rounds == 4 and alone.design.seed == 0
    paired = sweep(tmp_path, pairs={"nhwc": PAIRS["nhwc"]}, design={"precision": PRECISION})
    assert len(paired.points) == 12
    assert len(queues(paired)) == 20  # all that may come, so that later rounds find theirs
    assert sweep(tmp_path).repeat_rounds == 0


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            {"design": {"precision": PRECISION}, "repeats": 2},
            "repeats: design.precision counts the starts; expected one",
        ),
        ({"design": {"precision": PRECISION | {"least": 41}}}, "design.precision.least: 41 is more than most, 40"),
        ({"design": {"precision": PRECISION | {"least": 2}}}, "design.precision.least: 2 is less than 3"),
        ({"design": {"precision": PRECISION | {"most": 1001}}}, "design.precision.most: 1001 is more than 1000"),
        (
            {"design": {"precision": PRECISION | {"half_width": 0.02}}},
            "design.precision.half_width: 0.02 is not a text",
        ),
        ({"design": {"precision": PRECISION | {"half_width": "0%"}}}, "'0%' is not a percentage above 0%, as 2%"),
        ({"design": {"precision": {"least": 5, "most": 6}}}, "design.precision.half_width: is required"),
        ({"design": {"seed": -1}}, "design.seed: -1 is less than 0"),
        ({"design": {"order": "random"}}, "design.order: unknown key"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path, content, line):
    with pytest.raises(SweepError) as error:
        sweep(tmp_path, **content)
    assert len(error.value.errors) == 1 and line in error.value.errors[0]


@pytest.mark.parametrize(
    ("file", "preset", "points"),
    [
        ({"design": {"precision": PRECISION}}, {"repeats": 1}, 1),
        ({"repeats": 2}, {"design": {"precision": PRECISION}}, 5),
        ({"design": {"precision": PRECISION}}, {"design": {"seed": 3}}, 5),
    ],
)
def test_a_preset_counts_the_starts_in_place_of_the_file(tmp_path, file, preset, points):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "d", "base": BASE, **file, "presets": {"p": preset}}))
    assert len(load(path, "p").points) == points


def test_the_most_starts_count_for_the_limit_of_points(tmp_path):
    with pytest.raises(SweepError, match="101000 points are more than 100000"):
        sweep(tmp_path, axes={"micro_batch": list(range(1, 102))}, design={"precision": PRECISION | {"most": 1000}})


def test_a_round_that_is_written_anew_is_read_anew(tmp_path):
    for point_id in ("aaa", "bbb"):
        rounds.write(tmp_path, rounds.REMEDIES, 1, {"name": "s", "points": [{"point_id": point_id, "settings": {}}]})
        path = rounds.file(tmp_path, rounds.REMEDIES, 1)
        assert rounds.ids(path) == [point_id] and rounds.load(path) is rounds.load(path)
