"""Real points of each method on CPU ranks."""

import json

import pytest

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.flops import count
from tests.jobs.launch.test_launch import NANO, launch_all, losses


def result(folder, rank=0):
    return json.loads((folder / f"timed/rank{rank}.result.json").read_text())


def rows(folder):
    return [json.loads(line) for line in (folder / "timed/steps-r0.jsonl").read_text().splitlines()]


METHODS = {
    "dpo": {"strategy": "zero3", "loss_chunks": 3},
    "dpo_qlora": {"ranks_per_node": 1, "activation_checkpointing": True, "checkpoint_every": 2},
}
PADDED = {"sequences": "padded", "ranks_per_node": 1, "micro_batch": 2}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """The record and folder of each point."""
    folder = tmp_path_factory.mktemp("llm")
    for number, size in enumerate((20, 30, 25, 28)):
        (folder / f"{number}.txt").write_text("x" * size)
    points = {name: {"method": name, "learning_rate": 3e-3, **settings} for name, settings in METHODS.items()}
    points["padded"] = {**PADDED, "data": str(folder)}
    found = launch_all(folder, [{"timed_steps": 3, **settings} for settings in points.values()])
    assert [record["message"] for record, _ in found] == [None] * 3
    return dict(zip(points, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_point_trains(launched, method):
    record, folder = launched[method]
    assert record["status"] == "ok"
    found = losses(folder, 0)
    assert len(set(found)) == 4
    told = result(folder)
    assert (told["trainable_parameters"] < told["parameters"] / 4) is method.endswith("lora")
    plain = {"method": method, "loss_chunks": METHODS[method].get("loss_chunks", 0)}  # no strategy changes the count
    assert told["flops"]["step"] == count(complete(NANO | plain)).step > 0
    assert found[0] == pytest.approx(0.693147, abs=1e-3)
    assert told["reward_margin"] != 0 and told["reward_accuracy"] in (0.0, 0.5, 1.0)
    assert rows(folder)[0]["tokens"] == 2 * 2 * 32


@pytest.mark.slow
def test_steps_tell_the_tokens_that_are_no_padding(launched):
    record, folder = launched["padded"]
    assert record["status"] == "ok"
    pairs = [row["tokens"] for row in rows(folder)]
    assert [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)] == [103, 103]
