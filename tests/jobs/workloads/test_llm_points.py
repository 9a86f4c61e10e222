"""Real points of each method on CPU ranks."""

import json

import pytest

from jobs.point.point import complete
from jobs.rank.flops import count
from tests.jobs.launch.test_launch import NANO, launch, losses


def result(folder, rank=0):
    return json.loads((folder / f"timed/rank{rank}.result.json").read_text())


def rows(folder):
    return [json.loads(line) for line in (folder / "timed/steps-r0.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dpo", {"strategy": "zero3", "loss_chunks": 3}),
        ("dpo_qlora", {"ranks_per_node": 1, "activation_checkpointing": True, "checkpoint_every": 2}),
    ],
)
def test_a_point_trains(tmp_path, method, settings):
    record, folder = launch(tmp_path, method=method, timed_steps=3, learning_rate=3e-3, **settings)
    assert record["status"] == "ok", record["message"]
    found = losses(folder, 0)
    assert len(set(found)) == 4
    told = result(folder)
    assert (told["trainable_parameters"] < told["parameters"] / 4) is method.endswith("lora")
    plain = {"method": method, "loss_chunks": settings.get("loss_chunks", 0)}  # no strategy changes the count
    assert told["flops"]["step"] == count(complete(NANO | plain)).step > 0
    if method.startswith("dpo"):
        assert found[0] == pytest.approx(0.693147, abs=1e-3)
        assert told["reward_margin"] != 0 and told["reward_accuracy"] in (0.0, 0.5, 1.0)
        assert rows(folder)[0]["tokens"] == 2 * 2 * 32


@pytest.mark.slow
def test_steps_tell_the_tokens_that_are_no_padding(tmp_path):
    for number, size in enumerate((20, 30, 25, 28)):
        (tmp_path / f"{number}.txt").write_text("x" * size)
    record, folder = launch(
        tmp_path, sequences="padded", data=str(tmp_path), ranks_per_node=1, micro_batch=2, timed_steps=3
    )
    assert record["status"] == "ok", record["message"]
    pairs = [row["tokens"] for row in rows(folder)]
    assert [a + b for a, b in zip(pairs[::2], pairs[1::2], strict=True)] == [103, 103]
