"""Pairs in blocks and rounds of repeats, through Snakemake: a script that sleeps, so that starts are short."""

import json
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.tools.cli import main
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.raw_files import ARCHIVE
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep import design
from nightsweep.jobs.sweep.sweep import load
from tests.workflow.test_ending import snakemake

SWEEP = """
name: beside
base: {workload: command, command: "job.py {ms}", launcher: none, device: cpu, traced_steps: 0, ms: 100}
pairs:
  slower: {with: {ms: 1000}}
design: {seed: 4, precision: {half_width: 1%, least: 3, most: 6}}
"""
TABLE = "results/beside/tables/pairs.parquet"


def quiet_repeats():
    """Repeats of which neither start was disturbed, by other tests on this machine."""
    points = pl.read_parquet("results/beside/tables/points.parquet")
    own = points.group_by("repeat").agg(pl.len(), pl.col("disturbed").any())
    return own.filter(pl.col("len") == 2, ~pl.col("disturbed").fill_null(False))["repeat"].to_list()


def started(folder, point):
    return read_json(folder / f"results/beside/points/{point.id}/record.json", Record).started_at


@pytest.mark.slow
def test_a_pair_is_started_until_it_is_known_or_the_most_is_reached(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sweep.yaml").write_text(SWEEP)
    Path("job.py").write_text("import sys, time\ntime.sleep(float(sys.argv[1]) / 1000)\n")
    done = snakemake(tmp_path, TABLE)
    assert done.returncode == 0 and "12 of 12 points ok" in done.stderr, done.stderr
    assert "Warning" not in done.stderr
    sweep = load(Path("sweep.yaml"))
    assert len(sweep.points) == 8
    for block in design.queues(sweep.points, sweep.pairs, sweep.design):
        times = [started(tmp_path, point) for point in block]
        assert times == sorted(times)
    counted = quiet_repeats()
    blocks = len({repeat // 2 for repeat in counted})
    rows = pl.read_parquet(TABLE).to_dicts()
    assert len(rows) == min(len(counted), 1)  # none where other tests disturbed every start
    for found in rows:
        assert (found["pair"], found["starts"], found["blocks"]) == ("slower", len(counted), blocks)
        assert 1.3 < found["ratio"] < 10 and found["wanted"] == 0.01
        assert blocks < 2 or found["ratio_low"] < found["ratio"] < found["ratio_high"]
    looks = [json.loads(Path(f"results/beside/repeats/1pct-3-6/round{n}.json").read_text()) for n in (1, 2, 3, 4)]
    assert [[look["starts"] for look in one["looks"]] for one in looks] == [[4], [6], [6], [6]]
    assert [len(one["points"]) for one in looks] == [4, 0, 0, 0]
    points = pl.read_parquet("results/beside/tables/points.parquet")
    assert points.height == 12 and points["round"].null_count() == 12  # all are the sweep's own

    # Another precision has rounds of its own, and what is measured counts for it.
    Path("sweep.yaml").write_text(SWEEP.replace("half_width: 1%", "half_width: 90%").replace("most: 6", "most: 4"))
    done = snakemake(tmp_path, "points", TABLE)
    assert done.returncode == 0 and "8 of 8 points ok" in done.stderr, done.stderr
    rows = pl.read_parquet(TABLE).to_dicts()
    assert [(row["starts"], row["wanted"]) for row in rows] == [(n, 0.9) for n in [len(quiet_repeats())] if n]

    # A led point that is set aside: its block runs again, and what is measured in it stays. More starts than were asked
    # for before, whose blocks are measured in part.
    leader, led = design.queues(sweep.points, sweep.pairs, sweep.design)[0][:2]
    record = Path(f"results/beside/points/{led.id}/record.json")
    content = json.loads(record.read_text()) | {"status": "failed", "reason": "lost", "message": "gone"}
    record.write_text(json.dumps(content))
    (record.parent / ARCHIVE).unlink()
    before = started(tmp_path, leader)
    Path("sweep.yaml").write_text(
        SWEEP.replace("design: {seed: 4, precision: {half_width: 1%, least: 3, most: 6}}", "repeats: 7")
    )
    assert main(["retry", "sweep.yaml"]) == 0 and f"{led.id} lost" in capsys.readouterr().out
    done = snakemake(tmp_path, "points")
    assert done.returncode == 0 and "14 of 14 points ok" in done.stderr, done.stderr
    assert started(tmp_path, leader) == before and started(tmp_path, led) > before
