"""Points of scripts in the tables: their axes, labels and order, and what of them is published."""

import json

import polars as pl
import pytest

from nightsweep.analysis.readers import point_files
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tools.publish.allowed import Kind
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from nightsweep.jobs.point.point import complete

AXES = [
    {"batch": 64, "env.X": "b", "model": "big"},
    {"batch": 8, "env.X": "b"},
    {"batch": 8, "env.X": "a", "amp": "--amp"},
]


def rows():
    points = [complete({"workload": "command", "command": "src/train.py", "compile": None, **own}) for own in AXES]
    return [
        {**point_files.settings_columns(point.settings()), "point_id": point.id, "status": "ok"} for point in points
    ]


def test_a_scripts_axes_are_one_column_whatever_their_names():
    found = point_files.frame(rows(), "points")
    assert found["model"].to_list() == ["train.py"] * 3
    assert [json.loads(text) for text in found["variables"]] == [dict(sorted(own.items())) for own in AXES]
    assert found["strategy"].null_count() == found["micro_batch"].null_count() == 3


@pytest.mark.parametrize(
    ("command", "model"),
    [
        ("-m pkg.train --lr 1", "pkg.train"),  # which was called -m
        ("'my scripts/train it.py' --data x.py", "train it.py"),
        ("python -u -m pkg.train", "pkg.train"),
        ("-m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("pytest -m slow bench.py", "bench.py"),
        ("bash run.sh -m big", "bash"),
        ("python -c 'import a.py'", "python"),
    ],
)
def test_a_script_s_model_is_what_is_run(command, model):
    point = complete({"workload": "command", "command": command})
    assert point_files.settings_columns(point.settings())["model"] == model


def test_labels_name_the_axes_that_vary_and_numbers_have_their_order():
    found = dataset.with_config(point_files.frame(rows(), "points").with_columns(repeat=pl.lit(0, pl.Int64)))
    assert found["config"].n_unique() == 3
    assert set(found["config"]) == {"batch 64, X b, model big", "batch 8, X b", "amp --amp, batch 8, X a"}
    same = point_files.frame(rows()[1:2] * 2, "points").with_columns(repeat=pl.Series([0, 1]))
    assert set(dataset.with_config(same)["config"]) == {"train.py"}


def test_published_axes_keep_numbers_and_our_own_words():
    text = json.dumps({"batch": 64, "env.NCCL_ALGO": "Ring", "zyxw_secret": "/home/zyxw", "flag": True, "none": None})
    found = json.loads(Anonymizer([], []).text(Kind.AXES, text, "variables"))
    assert "zyxw" not in json.dumps(found)
    assert found["batch"] == 64 and found["flag"] is True and found["none"] is None
    assert found["axis1"] == "value1"
