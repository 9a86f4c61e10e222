"""`nightsweep figures` of several sets: their tables as one."""

import polars as pl

from nightsweep.analysis.report import records
from nightsweep.analysis.sweep import dataset, variance
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.publish.joined_sets import as_one
from nightsweep.jobs.host.facts import ROOT

SETS = [ROOT / "data" / name for name in ("h200-2026-11-21", "h200-2026-11-28")]


def test_tables_and_records_of_all_sets_are_there(tmp_path):
    each = [dataset.load(folder / "tables") for folder in SETS]
    with as_one(SETS) as folder:
        both = dataset.load(folder / "tables")
        found = records.read(folder / "points")
        assert sorted(record.point_id for record in found) == sorted(both["points"]["point_id"])
        assert {host.hostname for record in found for host in record.hosts} == set(both["points"]["hosts"].explode())
        assert sorted(both.names()) == sorted({name for tables in each for name in tables.names()})
        for name in ("points", "steps", "remedies"):
            assert both[name].height == sum(tables[name].height for tables in each)
        for of, own in zip(SETS, each, strict=True):
            mine = both["ranks"].filter(pl.col("point_id").str.starts_with(f"{of.name}/"))
            assert mine.with_columns(pl.col("point_id", "host").str.split("/").list.last()).equals(own["ranks"])
        hosts = [set(tables["points"]["hosts"].explode()) for tables in (*each, both)]
        assert hosts[0] & hosts[1] and len(hosts[2]) == len(hosts[0]) + len(hosts[1]), "pseudonyms are alike"
        starts = [variance.list_starts(tables)["night"].n_unique() for tables in (*each, both)]
        assert starts[2] == sum(starts[:2])
    assert not folder.exists()


def test_one_set_is_itself():
    with as_one(SETS[:1]) as folder:
        assert folder == SETS[0]


def test_sets_that_cannot_be_joined(tmp_path, capsys):
    for given, what in (
        ([SETS[0], SETS[0]], f"{SETS[0]}/tables: another set is named {SETS[0].name}, too; expected each set once"),
        (
            [SETS[0], ROOT / "data/h100-2026-11-28"],
            "points of NVIDIA H100 80GB HBM3 and NVIDIA H200; expected sets of one kind of GPU",
        ),
        ([SETS[0], tmp_path], f"{tmp_path}/tables/points.parquet: no such file; expected the results of a sweep"),
    ):
        assert main(["figures", *map(str, given), "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"nightsweep figures: {what}") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
