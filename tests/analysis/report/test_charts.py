"""The figures that answer, and what two points that are picked are said to differ by, on the published data set."""

import contextlib
import io
import itertools
import json
import re
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.figures import scaling
from nightsweep.analysis.report import lanes
from nightsweep.analysis.report.__main__ import main as write_report
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tools.cli import main
from tests.analysis.report import browser as browsers

PUBLISHED = Path(__file__).parents[3] / "data/h200-2026-11-21"
pytestmark = pytest.mark.skipif(browsers.program() is None, reason="no Chromium here (tests/install.sh)")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report, without pictures."""
    out = tmp_path_factory.mktemp("charts")
    given = ["--tables", PUBLISHED / "tables", "--figures", out, "--records", PUBLISHED / "points"]
    write_report([str(argument) for argument in [*given, "--out", out / "report.html"]])
    return out / "report.html"


@pytest.fixture
def browser(browser, page):
    browser.open(page)
    browser.settle()
    return browser


def chosen_pairs():
    """Pairs of points of all kinds: neighbours in the table, repeats of each other, of other batches, on one host or
    several, with and without repeats, disturbed, and one that failed."""
    points = pl.read_parquet(PUBLISHED / "tables/points.parquet").sort("workload", "model", "precision", "micro_batch")
    ids = points["point_id"].to_list()
    failed = points.filter(pl.col("status") != "ok")["point_id"].to_list()
    pairs = list(itertools.pairwise(ids[::20])) + list(zip(ids[::40], ids[:100:9], strict=False))
    repeats = points.filter(pl.col("repeat") == 1)["point_id"].to_list()[:4]
    return pairs + list(itertools.pairwise(repeats)) + [(failed[0], ids[0]), (ids[0], ids[1])]


def printed(a, b):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        main(["compare", *(str(PUBLISHED / "points" / point) for point in (a, b))])
    return said.getvalue().splitlines()


def test_the_comparison_of_two_points_is_the_commands(browser):
    pairs = chosen_pairs()
    of_pair = "const [a, b] = pair.map((id) => places.get(id)); return [comparisonLines(a, b), settingChanges(a, b)];"
    shown = browser.evaluate(f"{json.dumps(pairs)}.map((pair) => {{ {of_pair} }})")
    kinds = set()
    for (a, b), (lines, settings) in zip(pairs, shown, strict=True):
        command = printed(a, b)
        if "no step to compare" in command[0]:
            assert "no timed step" in lines[0]
            continue
        told = next((line for line in command if line.startswith("settings: ")), "")
        assert lines == [line for line in command[2:] if line and line != told], (a, b)
        assert all(f"{name} " in told for name, *_ in settings) and bool(told) == bool(settings)
        kinds.add((lines[0].split()[0], lines[1].split(" (")[0], lines[1].partition("from ")[2].partition(" of ")[0]))
    assert (
        len(pairs) > 25
        and {of for of, *_ in kinds} == {"step", "sample"}
        and len({verdict for _, verdict, _ in kinds}) == 4  # and one failed
    )
    assert len(kinds) > 6, kinds


TOLD = "[...document.querySelectorAll('#figure-ID .tip:not([hidden]) > *')].map((line) => line.textContent)"
LIVE = ("by_setting", "memory", "step_times", "scaling")


def told(browser, chart):
    return browser.evaluate(TOLD.replace("ID", chart))


def picked(browser):
    return browser.evaluate("['pick-a', 'pick-b'].map((id) => document.getElementById(id).value)")


def test_the_filter_of_the_table_keeps_points_in_the_figures(browser):
    dots = "document.querySelectorAll('#figure-memory path.dot').length"
    known = pl.read_parquet(PUBLISHED / "tables/points.parquet").drop_nulls(["step_ms_mean", "peak_memory_bytes"])
    assert browser.evaluate(dots) == known.height > 300
    browser.evaluate("document.getElementById('filter').focus()")
    browser.write("llama-8b")
    browser.settle()
    own = known.filter(model="llama-8b")
    assert browser.evaluate(dots) == own.height < 100
    heads = "[...document.querySelectorAll('#figure-by_setting .head')].map((text) => text.textContent)"
    assert browser.evaluate(heads) == ["llama-8b"]
    bars = browser.evaluate("document.querySelectorAll('#figure-step_times .part').length")
    traced = own.join(pl.read_parquet(PUBLISHED / "tables/breakdown.parquet"), on="point_id", how="semi")
    assert bars == 5 * traced.height > 0
    browser.write(" no such")
    browser.settle()
    assert browser.evaluate("document.querySelector('#figure-memory .note').textContent").startswith(
        "None of the points"
    )


@pytest.mark.parametrize("chart", LIVE)
def test_points_are_told_and_picked_by_keyboard_as_by_pointer(browser, chart):
    browser.evaluate(f"document.querySelector('#figure-{chart} .chart').focus()")
    assert told(browser, chart) == []
    browser.press("ArrowRight")
    first = told(browser, chart)
    browser.press("ArrowDown")
    assert len(first) >= 2 and told(browser, chart) not in ([], first)
    browser.press("Enter")
    browser.press("Home")
    assert told(browser, chart) == first
    where = f"""(() => {{ const b = document.querySelector('#figure-{chart} .ring.at').getBoundingClientRect();
        return [b.x + b.width / 2, b.y + b.height / 2]; }})()"""
    x, y = browser.evaluate(where)
    browser.press("Escape")
    assert told(browser, chart) == []
    browser.point(x, y)
    seen = told(browser, chart)
    assert seen
    browser.point(x, y, press=True)
    a, b = picked(browser)
    assert a and b and a != b and (chart == "scaling" or (b in " ".join(seen) and a not in " ".join(seen)))
    assert "verdict: " in browser.evaluate("document.getElementById('verdict').innerText")
    assert browser.evaluate("document.querySelectorAll('#figure-by_setting .ring.picked').length") == 2
    browser.evaluate("document.getElementById('pick-b').value = 'nobody'")
    browser.evaluate("document.getElementById('pick-b').dispatchEvent(new Event('change'))")
    assert browser.evaluate("document.getElementById('pick-b').ariaInvalid") == "true"


def test_efficiencies_are_those_of_the_figure_for_print(browser):
    rows = scaling.speed_ups(dataset.load(PUBLISHED / "tables").own)
    own = rows.filter(pl.len().over("workload", "config_order") > 1, pl.col("efficiency") != 1)["efficiency"]
    shown = "DATA.charts.scaling.flatMap(({ shapes }) => shapes.slice(1).map((shape) => shape[2]))"
    assert sorted(browser.evaluate(shown)) == pytest.approx(sorted(own), rel=1e-3) and len(own) > 20


def test_a_timeline_goes_from_the_steps_to_a_kernel(browser, page):
    events = pl.read_parquet(PUBLISHED / "tables/timeline.parquet").filter(pl.col("lane") == "compute", rank=0)
    point = events.group_by("point_id").len().sort("len", "point_id")["point_id"][-1]
    browser.open(f"{page.as_uri()}#point-{point}")
    browser.settle()
    said = "document.querySelector('.timeline .told').textContent"
    whole = browser.evaluate(said)
    assert re.fullmatch(r"([\d.]+ ms) of \1 shown\.", whole)
    browser.evaluate("document.querySelector('.timeline canvas').focus()")
    browser.press("ArrowRight")
    assert browser.evaluate(said).startswith("rank 0, phases: ")
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    own = events.filter(pl.col("point_id") == point).sort("start_ns")
    found = re.fullmatch(
        r"rank 0, compute: (.*), ([\d.]+) (us|ms) from .* on, traced step 1 of 2", browser.evaluate(said)
    )
    us = float(found[2]) * {"us": 1, "ms": 1e3}[found[3]]
    assert found[1] in lanes.short_names(own)["name"].to_list()
    assert ((own["end_ns"] - own["start_ns"]) / 1e3 - us).abs().min() < 2
    browser.press("Escape")
    assert browser.evaluate(said) == whole
    browser.click(".timeline button")
    shown, of = re.fullmatch(r"([\d.]+) ms of ([\d.]+) ms shown\.", browser.evaluate(said)).groups()
    assert float(shown) == pytest.approx(float(of) / 2, rel=1e-3)
    browser.evaluate("document.querySelector('.timeline canvas').focus()")
    browser.press("Escape")
    assert browser.evaluate(said) == whole
