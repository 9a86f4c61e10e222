"""The figures that answer, and what two points that are picked are said to differ by, on the published data set."""

import contextlib
import io
import itertools
import json
from pathlib import Path

import polars as pl
import pytest

from analysis.diagnosis.comparison import compare
from analysis.report.__main__ import main as write_report
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


@pytest.fixture(scope="module")
def running():
    with browsers.Browser() as browser:
        yield browser


@pytest.fixture
def browser(running, page):
    running.errors.clear()
    running.open(page)
    running.settle()
    yield running
    assert running.errors == []


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
        compare(PUBLISHED / "points" / a, PUBLISHED / "points" / b, False)
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
        and len({verdict for _, verdict, _ in kinds}) == 3
    )
    assert len(kinds) > 6, kinds
