"""The paper's figure families on made-up tables: each is drawn, in both widths, or says why not."""

import numpy as np
import polars as pl
import pytest

from nightsweep.analysis.figures import captions, style
from nightsweep.analysis.paper import families as figures
from nightsweep.analysis.paper.figures import accuracy, calls, family, sampler, switches, topology
from nightsweep.analysis.sweep import blocks, dataset, nights
from nightsweep.analysis.tools.draw import main
from nightsweep.jobs.host.facts import ROOT
from tests.analysis.paper.paper_tables import EFFECTS, TOPOLOGY, made_up


@pytest.fixture(scope="module")
def sweep() -> dataset.Tables:
    return made_up()


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


OF_TRACES = ("causes", "roofline", "held_time", "timeline", "remedies", "failures", "loss")
"""Figures of tables that the made-up sweep of the paper does not have; failures, as all points are ok."""
DRAWN = [name for name in figures.FAMILIES if name not in OF_TRACES]


@pytest.mark.parametrize("name", DRAWN)
def test_every_family_is_drawn(name, sweep):
    figure = figures.FAMILIES[name].draw(sweep)
    assert figure.axes
    assert figure.get_figwidth() == style.TWO_COLUMNS_IN
    assert figure.get_figheight() <= style.PAGE_IN


@pytest.mark.parametrize("name", figures.FAMILIES)
def test_a_family_without_points_says_so_in_one_line(name):
    figure = figures.FAMILIES[name].draw(dataset.Tables({}))
    assert not figure.axes
    assert [text.get_text() for text in figure.texts] == [figures.FAMILIES[name].missing]
    assert captions.caption(figures.FAMILIES[name], dataset.Tables({})).endswith("n = 0.")


@pytest.mark.parametrize("name", DRAWN)
def test_captions_tell_n_hardware_and_settings(name, sweep):
    caption = captions.caption(figures.FAMILIES[name], sweep)
    for part in (figures.FAMILIES[name].text, " points of ", "NVIDIA H100", "micro_batch"):
        assert part in caption


def test_families_left_out_are_named_and_the_others_are_written(sweep, tmp_path, capsys):
    points = sweep["points"].filter(pl.col("workload") == "llm", pl.col("ranks_per_node") == 1)
    points.drop("topology").write_parquet(tmp_path / "points.parquet")
    names = [name for name in figures.FAMILIES if name != "failures"]
    main([*names, "--tables", str(tmp_path), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out.splitlines()
    ends = ("-column.pdf", "-column.png", ".pdf", ".png", ".rst")
    written = {f"{name}{end}" for name in ("methods", "setting_effects") for end in ends}
    written |= {f"supplement/llm_claims{end}" for end in ends[2:]}
    assert {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*.*")} == written
    assert len(said) == len(names) - 3
    assert "accuracy: left out: No image point has accuracies by epoch." in said


def test_figures_show_points_that_differ_in_their_own_settings_alone(sweep):
    shown = switches.SWITCHES[0].points(sweep)
    same = [
        name for name in dataset.SETTINGS if name not in (*blocks.NEUTRAL, "precision", "image_size", *dataset.SHAPE)
    ]
    assert all(shown[name].n_unique() == 1 for name in same)
    assert set(shown["precision"]) == {"fp64", "fp32", "tf32", "fp16"}
    assert set(shown["image_size"]) == {100, 300, 500}


def test_points_of_different_nights_make_no_panel(sweep):
    """Each precision was measured in another night."""
    number = pl.col("precision").rank("dense").cast(pl.Int64) + 9
    points = sweep["points"].with_columns(started_at=pl.format("2026-01-{}T00:00:00.000+00:00", number))
    apart = dataset.Tables({**sweep.frames, "points": points})
    assert switches.SWITCHES[0].points(apart)["precision"].n_unique() > 1
    shown, others = switches.select_points(apart), [switch.points(apart) for switch in switches.SWITCHES[1:]]
    assert set(shown["point_id"]) == set(pl.concat(others)["point_id"])


def gains_of_pinning(tables):
    return switches.gains(switches.SWITCHES[1], switches.SWITCHES[1].points(tables)).filter(precision="fp16")


def test_gain_of_pinned_memory_is_the_one_put_in_with_its_interval(sweep):
    found = gains_of_pinning(sweep)
    assert found.height == 9
    for row in found.iter_rows(named=True):
        assert row["gain"] == pytest.approx(1 / EFFECTS["pinned" if row["world_size"] == 1 else "pinned_many"])
        assert row["low"] < row["gain"] < row["high"] and row["n"] == 3
    twice = dataset.Tables({**sweep.frames, "points": sweep["points"].filter(pl.col("repeat") < 2)})
    assert gains_of_pinning(twice)["low"].null_count() == 9


def of_two_nights(sweep):
    """All repeats but the first are on another evening, when everything takes thrice as long. So is the first one of
    one GPU, page-locked, at 100 px: no ratio of all runs is a night's then."""
    at, late = "2026-01-01T20:00:00+00:00", "2026-01-02T20:00:00+00:00"
    lonely = (pl.col("repeat") == 0) & (pl.col("ranks_per_node") == 1) & (pl.col("image_size") == 100)
    slow = (pl.col("repeat") > 0) | (lonely & pl.col("pin_memory")).fill_null(False)
    scaled = {"step_ms_mean": 3.0, "epoch_s": 3.0, "samples_per_s": 1 / 3}
    points = sweep["points"].with_columns(
        pl.when(slow).then(pl.lit(late)).otherwise(pl.lit(at)).alias("started_at"),
        *(pl.when(slow).then(pl.col(name) * by).otherwise(name).alias(name) for name, by in scaled.items()),
    )
    return dataset.Tables({**sweep.frames, "points": points})


def test_ratios_are_of_one_night(sweep):
    two = of_two_nights(sweep)
    for row in gains_of_pinning(two).iter_rows(named=True):
        assert row["gain"] == pytest.approx(
            1 / EFFECTS["pinned" if row["world_size"] == 1 else "pinned_many"], rel=0.05
        )
    assert "Measured in 2 nights" in captions.caption(figures.FAMILIES["switches"], two)
    assert "Measured in" not in captions.caption(figures.FAMILIES["switches"], sweep)


def test_runs_of_a_night_without_the_base_are_not_compared():
    rows = [
        ("a", 1, 0, 10.0),
        ("b", 2, 0, 19.0),
        ("c", 1, 1, 20.0),
        ("d", 2, 1, 40.0),
        ("e", 2, 1, 44.0),
        ("f", 4, 2, 9.0),
    ]
    points = pl.DataFrame(rows, schema=["point_id", "shape", "night", "rate"], orient="row").with_columns(
        of=pl.lit("x")
    )
    assert nights.select_shared_nights(points, ["of"])["point_id"].to_list() == ["a", "b", "c", "d", "e"]
    found = nights.ratios(points, "rate", ["of"], ["shape"], pl.DataFrame({"of": ["x"], "shape": [1]}))
    assert found.select("shape", "n").rows() == [(1, 2), (2, 3)]
    assert found["ratio"].to_list() == pytest.approx(
        [1, np.exp(np.average(np.log([1.9, 2.1]), weights=[1 / 2, 2 / 3]))]
    )
    assert found.row(1, named=True)["least"] == pytest.approx(1.9) and found.row(1, named=True)[
        "most"
    ] == pytest.approx(2.2)


def test_of_as_many_gpus_the_fewest_nodes_are_drawn(sweep):
    spread = sweep["points"].with_columns(nodes=pl.col("ranks_per_node"), ranks_per_node=pl.lit(1, pl.Int64))
    spread = spread.with_columns(point_id=pl.col("point_id") + "x").filter(pl.col("nodes") > 1)
    both = dataset.Tables({**sweep.frames, "points": pl.concat([sweep["points"], spread])})
    assert set(family.measured_points(both, "image")["point_id"]) == set(
        family.measured_points(sweep, "image")["point_id"]
    )


def test_times_of_a_trace_are_per_step_and_mean_over_ranks(sweep):
    points = calls.traced_points(sweep, "image").filter(pl.col("world_size") == 2)
    frame = calls.per_step(sweep, points, calls.DIRECTIONS | calls.KERNELS)
    point = points.row(0, named=True)
    own = {row["kind"]: row for row in frame.filter(point_id=point["point_id"]).iter_rows(named=True)}
    assert own["HtoD"]["ms"] == pytest.approx(point["step_ms_mean"] * 0.05)
    assert own["HtoD"]["gb"] == pytest.approx(0.03)
    assert own["HtoD"]["count"] == 1
    assert own["communication"]["ms"] == pytest.approx(point["step_ms_mean"] * 0.1)
    assert own["PtoP"]["ms"] == 0


def test_calls_are_counted_once(sweep):
    points = calls.traced_points(sweep, "llm")
    total = calls.per_step(sweep, points, calls.CALLS)["ms"].sum()
    every = calls.per_step(sweep, points, {"all": pl.col("category").is_in(["runtime", "sync"])})["ms"].sum()
    assert total == pytest.approx(every)


def test_topology_is_read_from_its_matrix():
    gpus, links, cpus = topology.matrix(TOPOLOGY)
    assert gpus == ["GPU0", "GPU1", "GPU2", "GPU3"]
    assert links[0] == ["X", "NV6", "NV6", "SYS"]
    assert cpus == ["0-31", "0-31", "32-63", "32-63"]
    with pytest.raises(ValueError, match="expected a matrix as nvidia-smi topo -m draws it, got 'no such"):
        topology.matrix("no such device")


def test_sampler_deals_out_every_sample_once():
    shares = sampler.shares(4, sampler=True)
    assert sorted(number for own in shares for number in own) == list(range(sampler.SAMPLES))
    assert sampler.shares(2, sampler=False) == [list(range(sampler.SAMPLES))] * 2


@pytest.mark.parametrize(("name", "source"), [("h200-2026-11-28", "mnist"), ("h200-2026-11-21", "builtin")])
def test_accuracies_are_those_of_images_that_were_given_where_there_are_such(name, source):
    points = accuracy.select_points(dataset.load(ROOT / "data" / name / "tables"))
    assert set(points["data"]) == {source} and set(points["precision"]) >= {"fp16", "fp32"}
