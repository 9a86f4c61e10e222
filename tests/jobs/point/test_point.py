"""The contract: ids do not move, and what is written from jobs/point/point.py is fresh."""

from pathlib import Path

import pytest

from nightsweep.jobs.point.point import ID_LENGTH, complete, defaults

ROOT = Path(__file__).parents[3]
IMAGE = {"workload": "image", "model": "resnet50"}
LLM = {"workload": "llm", "model": "llama-1b", "strategy": "zero2", "precision": "bf16", "nodes": 4, "learning_rate": 1}


@pytest.mark.parametrize(("settings", "expected"), [(IMAGE, "37d637f428d5"), (LLM, "690094c8b7b7")])
def test_id_is_pinned(settings, expected):
    assert complete(settings).id == expected


@pytest.mark.parametrize("settings", [IMAGE, LLM])
def test_a_default_said_aloud_is_the_same_point(settings):
    assert complete(defaults(settings["workload"]) | settings) == complete(settings)
    assert complete(defaults(settings["workload"]) | settings).id == complete(settings).id


def test_id_follows_content():
    ids = {complete(IMAGE | {"repeat": n}).id for n in range(50)}
    assert len(ids) == 50
    assert all(len(i) == ID_LENGTH for i in ids)


def test_order_of_settings_does_not_matter():
    assert complete(dict(reversed(LLM.items()))).id == complete(LLM).id
