"""The figure of scaling: what is compared with what, and where the loss is."""

import polars as pl
import pytest

from nightsweep.analysis.figures import captions, scaling
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables.part_names import GROUPS
from tests.analysis.figures.made_up import made_up, texts


@pytest.fixture(scope="module")
def sweep() -> dataset.Tables:
    return made_up()


def test_speed_up_is_over_the_fewest_ranks_of_its_own_group(sweep):
    frame = scaling.speed_ups(sweep)
    assert frame["world"].to_list() == [1, 2] * 4
    base = frame.filter(pl.col("world") == 1)
    assert set(base["median_up"]) == {1.0}
    for row in frame.filter(pl.col("world") == 2).iter_rows(named=True):
        assert row["median_up"] == pytest.approx(2 / 1.15)
        assert row["efficiency"] == pytest.approx(1 / 1.15)


def test_a_strategy_that_ran_on_no_one_rank_is_compared_with_another_that_did(sweep):
    lone = (pl.col("strategy") == "fsdp2") & (pl.col("ranks_per_node") == 1)
    tables = dataset.Tables({"points": sweep["points"].filter(~lone)})
    found = scaling.speed_ups(tables).filter(pl.col("strategy") == "fsdp2").to_dicts()
    assert [row["world"] for row in found] == [1, 2]
    assert found[1]["efficiency"] == pytest.approx(1 / 1.15)
    assert scaling.scaling_points(tables).filter(pl.col("strategy") == "fsdp2", pl.col("world") == 1).height == 3
    other = tables["points"].with_columns(
        micro_batch=pl.when(strategy="fsdp2").then(8).otherwise("micro_batch"),
    )
    assert "fsdp2" not in scaling.speed_ups(dataset.Tables({"points": other}))["strategy"]


def test_what_scaling_loses_is_told_by_part(sweep):
    found = scaling.losses(sweep).filter(pl.col("workload") == "image")
    assert found.select("world", "nodes", "n").unique().rows() == [(2, 1, 3)]
    shares = dict(found.filter(pl.col("precision") == "bf16").select("part", "share").iter_rows())
    assert shares.pop("communication") == pytest.approx(12 / (60 + 3 + 8 + 10))
    assert shares == dict.fromkeys(set(GROUPS) - {"communication"}, pytest.approx(0))
    untraced = dataset.Tables({"points": sweep["points"]})
    assert scaling.losses(untraced).is_empty() and len(scaling.FAMILY.draw(untraced).axes) == 1


def test_each_panel_says_what_it_leaves_out(sweep, monkeypatch):
    assert "The first" not in texts(scaling.FAMILY.draw(sweep))
    monkeypatch.setattr(scaling, "MOST", 3)
    monkeypatch.setattr(scaling, "MOST_LOST", 2)
    shown = texts(scaling.FAMILY.draw(sweep))
    assert "The first 3 of 4" in shown and "The first 2 of 4" in shown


def test_runs_of_a_night_without_the_fewest_ranks_are_not_counted(sweep):
    """Two and eight ranks of another night, in which none ran on one."""
    first, later = (pl.lit(f"2026-11-{day}T00:00:00Z").alias("started_at") for day in ("01", "09"))
    two = sweep["points"].filter(pl.col("world_size") == 2, workload="image", repeat=0).with_columns(later)
    others = [
        two.with_columns(
            pl.lit(n, pl.Int64).alias("world_size"),
            pl.lit(n, pl.Int64).alias("ranks_per_node"),
            point_id=pl.col("point_id") + f"-{n}",
        )
        for n in (2, 8)
    ]
    points = pl.concat([sweep["points"].with_columns(first), *others])
    shown, before = (
        captions.parts(scaling.FAMILY, dataset.Tables({"points": p}))[0] for p in (points, sweep["points"])
    )
    assert shown == before and "1 and 2 ranks" in shown


def test_no_scaling_without_two_counts_of_ranks(sweep):
    alone = dataset.Tables({"points": sweep["points"].filter(pl.col("ranks_per_node") == 1)})
    assert "No two points differ only in their number of ranks or nodes." in texts(scaling.FAMILY.draw(alone))


def test_ranks_on_more_nodes_stand_beside_those_on_one(sweep):
    """Two ranks on two nodes, 1.3 times as slow as two on one."""
    two = sweep["points"].filter(pl.col("ranks_per_node") == 2, pl.col("workload") == "image")
    apart = two.with_columns(
        point_id="n" + pl.col("point_id").str.slice(1),
        nodes=pl.lit(2, pl.Int64),
        ranks_per_node=pl.lit(1, pl.Int64),
        samples_per_s=pl.col("samples_per_s") / 1.3,
    )
    both = dataset.Tables({"points": pl.concat([sweep["points"], apart])})
    found = scaling.speed_ups(both).filter(pl.col("workload") == "image", pl.col("precision") == "bf16")
    assert found.select("world", "nodes").rows() == [(1, 1), (2, 1), (2, 2)]
    assert found["efficiency"].to_list() == pytest.approx([1, 1 / 1.15, 1 / 1.15 / 1.3])
    assert "2 ranks, 2 nodes" in texts(scaling.FAMILY.draw(both))
    # without one rank, two on one node are the base of two on two
    more = dataset.Tables({"points": both["points"].filter(pl.col("world_size") == 2, pl.col("workload") == "image")})
    assert scaling.speed_ups(more)["efficiency"].to_list() == pytest.approx([1, 1 / 1.3] * 2)
    assert "2 ranks, 2 nodes" in texts(scaling.FAMILY.draw(more))
