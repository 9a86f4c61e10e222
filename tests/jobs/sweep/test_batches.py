"""Jobs that run several points: blocks, and single points beside them, up to a length of time."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from nightsweep.jobs.sweep import batches, design, estimate
from nightsweep.jobs.sweep.driver import Run
from nightsweep.jobs.sweep.sweep import load

BASE = {"workload": "image", "model": "mobilenet_v2", "device": "cpu", "image_size": 32, "micro_batch": 8}
PAIR = {"nhwc": {"with": {"layout": "nhwc"}}}


def sweep(tmp_path, **more):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"name": "b", "base": BASE, **more}))
    return load(Path(path))


def made(swept, minutes, seconds=lambda _: 60.0):
    return batches.batches(swept.points, swept.pairs, swept.design, minutes, seconds)


def test_points_of_one_shape_are_joined_up_to_the_time_in_the_order_of_the_file(tmp_path):
    swept = sweep(tmp_path, axes={"micro_batch": [1, 2, 3, 4, 5], "ranks_per_node": [1, 2]})
    found = made(swept, 2)
    assert [[(p.ranks_per_node, p.micro_batch) for p in batch] for batch in found] == [
        [(1, 1), (1, 2)], [(2, 1), (2, 2)], [(1, 3), (1, 4)], [(2, 3), (2, 4)],
    ]  # fmt: skip
    assert [len(batch) for batch in made(swept, 100)] == [5, 5]
    assert made(swept, 0) == made(swept, 0.5) == []


def test_a_block_is_not_divided_and_joins_others(tmp_path):
    swept = sweep(tmp_path, pairs=PAIR, include=[{"micro_batch": 9}], repeats=2)
    block = design.queues(swept.points, swept.pairs, swept.design)[0]
    assert len(block) == 4
    assert made(swept, 1) == [block]
    whole = made(swept, 9)
    assert [len(batch) for batch in whole] == [6] and whole[0][:4] == block


def test_a_random_order_of_jobs_is_one_of_batches(tmp_path):
    orders = [made(sweep(tmp_path, axes={"micro_batch": [*range(1, 9)]}, design={"seed": n}), 99)[0] for n in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1] and {*orders[0]} == {*orders[1]}


def test_blocks_that_a_round_may_add_join_nothing(tmp_path):
    precision = {"half_width": "2%", "least": 4, "most": 8}
    found = made(sweep(tmp_path, pairs=PAIR, design={"precision": precision}), 99)
    assert [[p.repeat for p in batch] for batch in found] == [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5], [6, 6, 7, 7]]


@pytest.mark.parametrize(("number", "batch_min", "expected"), [(1, 0, 10), (4, 0, 40), (2, 15, 20), (30, 15, 55)])
def test_a_job_of_a_batch_may_take_as_long_as_one_that_hangs_and_three_times_what_is_expected(
    tmp_path, number, batch_min, expected
):
    points = [dataclasses.replace(sweep(tmp_path).points[0], repeat=n) for n in range(number)]
    assert batches.minutes(points, 10, batch_min) == expected


@pytest.mark.parametrize("value", ["6.5", "-3", "15 min", "", None, 1e3])
def test_how_long_jobs_may_be_is_whole_minutes(value):
    assert batches.whole_minutes("15") == batches.whole_minutes(15) == 15
    with pytest.raises(ValueError, match="expected whole minutes"):
        batches.whole_minutes(value)


def test_a_run_knows_the_jobs_of_its_batches(tmp_path):
    swept = sweep(tmp_path, axes={"micro_batch": [1, 2, 3]}, resources={"timeout_min": 7})
    run = Run(tmp_path / "b", swept, batch_min=estimate.wall_s(swept.points[0], estimate.FORKED_START_S) * 2.5 / 60)
    first, second, third = (point.id for point in swept.points)
    assert run.queue(first) == [first, second] and run.queue(third) == [third]
    assert run.leaders == {second: first}
    assert run.minutes(third) == 7 < run.minutes(first)


def test_a_job_runs_the_points_that_it_was_planned_for_whatever_records_there_are_when_it_begins(tmp_path):
    """It reads the sweep again. A record that was there when its driver did may have been taken back."""
    swept = sweep(tmp_path, axes={"micro_batch": [1, 2, 3]})
    first, second, third = (point.id for point in swept.points)
    record = Run(tmp_path, swept).record_path(first)
    record.parent.mkdir(parents=True)
    record.touch()
    planned = Run(tmp_path, swept, batch_min=99)
    assert planned.leaders == {first: second, third: second}
    record.unlink()
    begun = Run(tmp_path, swept, batch_min=99)
    assert begun.queue(second) == planned.queue(second) == [second, first, third]
