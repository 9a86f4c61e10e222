"""Components of variance are those that starts are made with, and what starts cannot tell is not said to be 0."""

import math

import numpy as np
import polars as pl
import pytest
import scipy

from nightsweep.analysis.sweep import dataset, mean_precision, variance
from nightsweep.analysis.sweep.starts import TABLE
from nightsweep.analysis.sweep.variance import CONFIGURATION, HOST, NIGHT, START, WITHIN, components
from nightsweep.jobs.host.facts import ROOT

PUBLISHED = ROOT / "data/h200-2026-11-21/tables"
SDS = {CONFIGURATION: 0.8, NIGHT: 0.10, HOST: 0.06, WITHIN: 0.04, START: 0.03}


def simulated(sds=SDS, configurations=20, nights=8, hosts=2, starts=2, seed=0):
    """Starts of every configuration on every host of every night."""
    rng = np.random.default_rng(seed)
    made = {name: rng.normal(0, sd, 2000) for name, sd in sds.items()}
    rows = []
    for c in range(configurations):
        for n in range(nights):
            for h in range(hosts):
                for _ in range(starts):
                    places = {CONFIGURATION: c, NIGHT: n, HOST: n * hosts + h, WITHIN: c * nights + n, START: len(rows)}
                    log = sum(made[name][place] for name, place in places.items())
                    rows.append((f"c{c}", n, f"h{n}-{h}", 100 * math.exp(log)))
    return pl.DataFrame(rows, schema=["settings", "night", "host", "ms"], orient="row")


def found(frame):
    return {one.name: one for one in components(frame)}


@pytest.mark.parametrize("seed", range(3))
def test_components_are_those_put_in(seed):
    """Within 3.5 standard errors, which are those of a standard deviation by its degrees of freedom."""
    told = found(simulated(seed=seed))
    assert list(told) == list(SDS)
    for name, sd in SDS.items():
        freedom = told[name].freedom
        assert abs(told[name].sd / sd - 1) < 3.5 / math.sqrt(2 * freedom), name
    assert told[NIGHT].levels == 8 and told[HOST].levels == 16 and told[WITHIN].levels == 160


def test_degrees_of_freedom_are_those_of_an_analysis_of_variance():
    freedom = {name: one.freedom for name, one in found(simulated(configurations=5, nights=4, hosts=3)).items()}
    # 120 starts: 5 - 1, 4 - 1, 4 (3 - 1), (5 - 1) (4 - 1), and the rest but the mean
    assert freedom == {CONFIGURATION: 4, NIGHT: 3, HOST: 8, WITHIN: 12, START: 92}
    assert sum(freedom.values()) == 119


def test_a_balanced_table_gives_the_mean_squares():
    """Of one night and host, restricted likelihood is the analysis of variance (one way, random effects)."""
    frame = simulated(nights=1, hosts=1, starts=4)
    logs = np.log(frame["ms"].to_numpy()).reshape(20, 4)
    within = logs.var(axis=1, ddof=1).mean()
    between = logs.mean(axis=1).var(ddof=1) - within / 4
    told = found(frame)
    assert told[START].sd == pytest.approx(math.sqrt(within), rel=1e-3)
    assert told[CONFIGURATION].sd == pytest.approx(math.sqrt(between), rel=0.02)


def test_a_single_night_or_host_is_not_told():
    told = found(simulated(nights=1, hosts=1, starts=3))
    for name in (NIGHT, HOST):
        assert told[name].sd is None and told[name].percent is None and told[name].reason == "there is only one"
    assert told[WITHIN].sd is None and told[WITHIN].reason == "no configuration ran in two nights"
    assert told[START].sd > 0


def test_one_host_a_night_is_not_told_from_the_night():
    told = found(simulated(hosts=1))
    assert told[HOST].sd is None and told[HOST].reason == "cannot be separated from nights"
    assert told[NIGHT].sd > 0 and told[WITHIN].sd > 0


def test_a_host_a_configuration_is_not_told_for_want_of_nights():
    """Each configuration on one host: more nights would not separate the two."""
    frame = simulated(hosts=1, configurations=4, nights=1, starts=3).with_columns(host=pl.col("settings"))
    assert found(frame)[HOST].reason == "no configuration ran on two"


def test_one_configuration_is_not_told_from_its_nights():
    told = found(simulated(configurations=1, hosts=1, nights=4))
    assert told[NIGHT].sd > 0 and told[WITHIN].reason == "cannot be separated from nights"
    assert found(simulated(configurations=1, nights=4))[WITHIN].reason == "cannot be separated from nights and hosts"


def test_without_repeats_nothing_is_told():
    told = found(simulated(nights=1, hosts=1, starts=1))
    assert all(one.sd is None and one.reason for one in told.values())
    # each configuration in another night
    apart = pl.DataFrame({"settings": ["a", "b"], "night": [0, 1], "host": ["x", "y"], "ms": [1.0, 2.0]})
    assert all(one.sd is None and one.reason for one in components(apart))
    assert components(apart.clear()) == []


def test_with_one_start_a_night_the_night_within_is_in_the_start():
    told = found(simulated(hosts=1, starts=1))
    assert told[WITHIN].sd is None and "two starts" in told[WITHIN].reason
    assert told[START].reason == "includes the night within a configuration"
    both = math.hypot(SDS[WITHIN], SDS[START])
    assert told[START].sd == pytest.approx(both, rel=0.2)


def test_a_difference_that_is_none_is_at_the_bound():
    """In some seed the others explain more than it: there it is 0, with the degrees of freedom that say how little that
    tells."""
    bounds = [found(simulated(SDS | {NIGHT: 0.0, HOST: 0.0}, nights=4, seed=seed))[NIGHT] for seed in range(4)]
    assert any(one.sd == 0 for one in bounds)
    assert all(one.sd < 0.05 and one.freedom == 3 and not one.reason for one in bounds)


def test_equal_times_and_one_configuration_are_no_errors():
    told = found(simulated().with_columns(ms=pl.lit(5.0)))
    assert all(one.sd == 0 for one in told.values())
    exact = found(simulated({name: 0.8 if name == CONFIGURATION else 0.0 for name in SDS}, configurations=5, nights=3))
    assert all(one.sd is None and one.reason == "the fit does not converge" for one in exact.values())
    alone = simulated(configurations=1, nights=1, hosts=1, starts=9)
    assert found(alone)[START].sd == pytest.approx(alone["ms"].log().std())
    assert found(alone)[CONFIGURATION].sd is None


def test_starts_of_an_unknown_night_do_not_count():
    frame = simulated(nights=1, hosts=1, starts=3)
    unknown = frame.head(1).with_columns(night=pl.lit(None, pl.Int64), ms=pl.lit(1e6))
    assert components(pl.concat([frame, unknown])) == components(frame)


def test_the_order_of_starts_changes_nothing():
    frame = simulated(configurations=6, nights=3)
    told, other = (components(one) for one in (frame, frame.reverse()))
    assert [one.sd for one in told] == pytest.approx([one.sd for one in other], rel=1e-3, abs=1e-6)


def test_a_fit_that_does_not_end_gives_no_numbers(monkeypatch):
    monkeypatch.setattr(variance, "MOST_TRIES", 2)
    assert {one.reason for one in components(simulated())} == {"the fit does not converge"}
    assert all(one.sd is None for one in components(simulated()))


def test_the_published_components_are_those_that_the_protocol_tells():
    starts = variance.list_starts(dataset.load(PUBLISHED))
    text = " ".join((ROOT / "docs/protocol.md").read_text().split())
    for workload, own in dataset.per_workload(starts.sort("workload")):
        told = found(own)
        said = {name: f"{told[name].percent:.1f} %" for name in (NIGHT, WITHIN, START)}
        expected = f"{said[NIGHT]} from night to night, {said[WITHIN]} more from night to night within a configuration"
        expected += f", and {said[START]} from start to start ("
        expected += "{}, {} and {} degrees of freedom".format(*(told[name].freedom for name in (NIGHT, WITHIN, START)))
        host = told[HOST]
        expected += f"; hosts: {f'{host.percent:.1f} %' if host.sd else 'at the bound'}, with {host.freedom})"
        assert expected in text, workload
    known = mean_precision.configurations(starts)
    assert f"in the median {known['half_percent'].median():.1f} % of all {known.height} configurations" in text
    image, llm = (
        known.filter(pl.col("starts") > 1, pl.col("workload") == name)["half_percent"] for name in ("image", "llm")
    )
    expected = f"{image.median():.1f} % ({len(image)} of image jobs) and {llm.median():.1f} % ({len(llm)} of language"
    assert expected in text


def test_disturbed_starts_do_not_count():
    tables = dataset.load(PUBLISHED)
    points = tables["points"]
    one = points.filter(pl.col("status") == "ok")["point_id"][0]
    for disturbed, left_out in ((True, {one}), (False, set()), (None, set())):
        mark = pl.when(pl.col("point_id") == one).then(pl.lit(disturbed)).otherwise(pl.lit(None))
        marked = dataset.Tables({**tables.frames, "points": points.with_columns(disturbed=mark)})
        kept = set(variance.list_starts(marked)["point_id"])
        assert set(points.filter(pl.col("status") == "ok")["point_id"]) - kept == left_out


def test_a_starts_time_is_that_of_the_table_of_points():
    """Claims compare `step_ms_mean`."""
    tables = dataset.load(PUBLISHED)
    both = variance.list_starts(tables).join(tables["points"].select("point_id", "step_ms_mean"), on="point_id")
    assert both["ms"].to_list() == pytest.approx(both["step_ms_mean"].to_list(), rel=1e-12)


def test_a_sweep_without_points_or_steps_has_no_starts():
    assert variance.list_starts(dataset.Tables({})).is_empty()
    points = dataset.load(PUBLISHED)["points"]
    found = variance.list_starts(dataset.Tables({"points": points.drop("disturbed", "steady", "warm_from")}))
    assert found.is_empty() and mean_precision.configurations(found).is_empty()


def starts_of(*groups):
    rows = [
        (f"p{n}-{k}", f"s{n}", ms, night)
        for n, group in enumerate(groups)
        for k, (ms, night) in enumerate(group)
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema=["point_id", "settings", "ms", "night"], orient="row")
    return frame.with_columns(workload=pl.lit("image"), config=pl.col("settings"), host=pl.lit("h"), sm_active=90.0)


def test_half_widths_are_students():
    values = [10.0, 11.0, 10.5, 12.0]
    told = mean_precision.configurations(starts_of(list(zip(values, [0, 0, 1, 1], strict=True)))).row(0, named=True)
    low, high = scipy.stats.t.interval(0.95, 3, np.log(values).mean(), scipy.stats.sem(np.log(values)))
    assert told["half_percent"] == pytest.approx(100 * math.expm1((high - low) / 2))
    assert (told["starts"], told["nights"], told["hosts"], told["source"]) == (4, 2, 1, "its starts")


def test_one_start_has_the_tables_noise_of_several_hosts():
    told = mean_precision.configurations(starts_of([(10.0, 0)], [(10.0, 0), (10.01, 0), (10.02, 0)]))
    sd, freedom = TABLE[False, "device"]
    assert told["config"].to_list() == ["s0", "s1"]
    assert told["half_percent"][0] == pytest.approx(100 * math.expm1(scipy.stats.t.ppf(0.975, freedom) * sd))
    assert told["source"].to_list() == ["starts on H200s where the device decides, on several hosts", "its starts"]
    assert mean_precision.configurations(starts_of()).is_empty()
