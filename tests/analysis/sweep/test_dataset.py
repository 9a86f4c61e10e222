"""Points of data sets that are older than a setting, and what makes no other configuration."""

import polars as pl

from nightsweep.analysis.sweep import blocks, dataset
from nightsweep.jobs.host.facts import ROOT

OLD = ROOT / "data/h200-2026-11-21/tables"


def test_points_older_than_a_setting_have_its_default():
    old = pl.read_parquet(OLD / "points.parquet")
    assert old["augment"].null_count() == old.height
    for points in (dataset.load(OLD)["points"], dataset.with_defaults(old.drop("augment", "nccl_transport"))):
        found = points.group_by("workload").agg(pl.col("augment", "nccl_transport").unique()).sort("workload")
        assert found.rows() == [("image", ["none"], ["auto"]), ("llm", [None], ["auto"])]


def test_how_many_steps_are_timed_makes_no_other_configuration():
    points = dataset.load(OLD)["points"].filter(pl.col("workload") == "image").head(1)
    longer = points.with_columns(timed_steps=pl.col("timed_steps") * 2, repeat=1, point_id=pl.lit("other"))
    larger = points.with_columns(micro_batch=pl.col("micro_batch") * 2, repeat=1, point_id=pl.lit("another"))
    found = blocks.add_blocks(pl.concat([points, longer, larger], how="vertical_relaxed"), ())["block"].to_list()
    assert found[0] == found[1] != found[2]
