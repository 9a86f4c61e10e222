"""Differences of starts: identical ones are seldom called different, and real ones are found with enough repeats."""

import math
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.ingest.point_tables import as_table
from nightsweep.analysis.sweep import dataset, starts
from nightsweep.analysis.sweep.starts import Noise, Starts
from nightsweep.jobs.host.facts import ROOT

PUBLISHED = ROOT / "data/h200-2026-11-21/tables"


def called(rng, sd, counts, ratio=1.0, times=2000, noise=None):
    """The share of pairs of settings with so many starts, the second `ratio` times as slow, that are called different:
    by `noise`, else by their own repeats."""
    found = 0
    for _ in range(times):
        a, b = (np.exp(rng.normal(math.log(by), sd, n)) for by, n in zip((1.0, ratio), counts, strict=True))
        half = (noise or starts.own_noise(a, b)).half(counts)
        found += abs(np.log(b).mean() - np.log(a).mean()) > half
    return found / times


@pytest.mark.parametrize("kind", [*starts.TABLE], ids=str)
def test_identical_single_starts_are_called_different_once_in_twenty(kind):
    sd, freedom = starts.TABLE[kind]
    assert called(np.random.default_rng(0), sd, (1, 1), noise=Noise(sd, freedom, "")) < 0.06


@pytest.mark.parametrize("counts", [(2, 2), (3, 3), (5, 2), (10, 10)])
def test_the_interval_of_repeats_covers_no_difference_in_19_of_20(counts):
    assert called(np.random.default_rng(1), 0.08, counts) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(("sd", "needed"), [(0.012, 4), (0.027, 9), (0.048, 23)])
def test_a_difference_of_5_percent_is_found_with_enough_starts(sd, needed):
    """So many on each side find it in nine of ten tries."""
    assert called(np.random.default_rng(2), sd, (needed, needed), 1.05) > 0.9


def test_of_the_published_runs_identical_pairs_are_called_different_once_in_twenty():
    """By steps it was every second one: 250 of 472."""
    tables = dataset.load(PUBLISHED)
    own = Starts.of(tables["points"], tables.scan("steps"))
    assert own.frame["sm_active"].null_count() < own.frame.height
    different, pairs = own.identical_pairs()
    assert pairs == 472 and different / pairs < 0.056


@pytest.mark.parametrize("name", ["h200-2026-11-27", "h200-2026-11-28", "h100-2026-11-28"])
def test_nor_are_those_of_other_published_sets(name):
    tables = dataset.load(ROOT / "data" / name / "tables")
    different, pairs = Starts.of(tables["points"], tables.scan("steps")).identical_pairs()
    assert pairs >= 14 and different <= 0.05 * pairs


def test_what_decides_chooses_the_noise():
    for one_host in (True, False):
        sds = [starts.known_noise(active, one_host=one_host).sd for active in (95.0, 70.0, 10.0)]
        assert all(calm < noisy for calm, noisy in pairwise(sds))
    assert starts.known_noise(None, one_host=True).sd < starts.known_noise(None, one_host=False).sd


def frames(times):
    """A data set of settings with starts whose mean steps are these, ms."""
    rows = [(f"p{n}-{k}", n + 1, ms) for n, group in enumerate(times) for k, ms in enumerate(group)]
    columns = {"point_id": [r[0] for r in rows], "micro_batch": [r[1] for r in rows], "status": "ok"}
    points = pl.DataFrame({**columns, "started_at": "2026-01-01T00:00:00", "hosts": [["n"]] * len(rows)})
    steps = [{"point_id": i, "phase": "timed", "step": s, "step_ms": ms} for i, _, ms in rows for s in range(3)]
    return as_table("points", points), pl.DataFrame(steps).with_columns(rank=0, start_ns=0, end_ns=1)


def test_starts_that_were_disturbed_tell_nothing_of_others():
    points, steps = frames([[1.0, 1.1, 1.2, 9.0], [1.0, 7.0]])
    points = points.with_columns(disturbed=pl.Series([None, False, False, True, None, True]))
    own = Starts.of(points, steps)
    assert sorted(own.repeats("p0-0")) == [1.0, 1.1, 1.2]
    assert own.repeats("p0-3")[0] == 9.0 and sorted(own.repeats("p0-3")) == [1.0, 1.1, 1.2, 9.0]
    assert "3 and 1 repeats" in own.noise("p0-0", "p1-0").source
    assert own.identical_pairs()[1] == 3


def test_a_start_without_times_tells_nothing():
    points, steps = frames([[1.0, 1.1, 1.2], [1.0, 7.0]])
    times = pl.when(pl.col("point_id") == "p0-1").then(None).otherwise("step_ms")
    own = Starts.of(points, steps.with_columns(step_ms=times))
    assert sorted(own.repeats("p0-0")) == [1.0, 1.2] and own.repeats("p0-1") == []
    assert "2 and 2 repeats" in own.noise("p0-0", "p1-0").source and own.identical_pairs()[1] == 2


def test_repeats_of_two_points_of_the_same_settings_count_once():
    points, steps = frames([[1.0, 1.1, 1.2], [1.0]])
    points = points.with_columns(disturbed=pl.Series([True, False, False, False]))
    own = Starts.of(points, steps)
    found = own.noise("p0-0", "p0-1")
    assert (found.freedom, found.source) == (2, "3 repeats of these settings")
    assert "1 and 3 repeats" in own.noise("p1-0", "p0-0").source


def test_the_nearest_repeats_tell():
    few, some, many = [[1.0], [1.0]], [[1.0, 1.1, 1.2], [1.0]], [[1.0], [2.0], *([[3.0, 3.1, 3.2]] * 3)]
    assert "H200s" in Starts.of(*frames(few)).noise("p0-0", "p1-0").source
    assert "3 and 1 repeats" in Starts.of(*frames(some)).noise("p0-0", "p1-0").source
    many[3] = [4.0, 4.1, 4.2]
    assert "like runs" in Starts.of(*frames(many)).noise("p0-0", "p1-0").source
