"""The forest plot: a row a part of every claim, with its interval where it is and its verdict beside it."""

import math
import re

import polars as pl
import pytest
from matplotlib.patches import Rectangle

from nightsweep.analysis.figures import palette, style
from nightsweep.analysis.paper.claims import forest
from nightsweep.analysis.paper.claims.claim import CONTRADICTED, INCONCLUSIVE, NOT_TESTED, SUPPORTED, Part, Verdict
from nightsweep.analysis.paper.claims.claims import CLAIMS, judge
from nightsweep.analysis.paper.families import FAMILIES
from nightsweep.analysis.report import sweep_page as report
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.effect import Effect
from nightsweep.analysis.tools.draw import draw
from nightsweep.jobs.host.facts import ROOT
from tests.analysis.paper.paper_tables import made_up

PUBLISHED = ROOT / "data/h200-2026-11-21/tables"


def effect(value, low, high, n=4):
    return Effect(value, low, high, n, 1, ("p",), (value,), 6.0, True)


PARTS = (
    Part("up", effect(1.5, 1.3, 1.8), above=1, corrected=0.001),
    Part("down", effect(0.7, 0.6, 0.8), above=1, corrected=0.001),
    Part("both", effect(1.02, 0.9, 1.2), above=1, corrected=1.0),
    Part("chance", effect(1.2, 1.05, 1.4), above=1, corrected=0.2),
    Part("once", effect(1.1, math.nan, math.nan, 1), above=1),
    Part("never", None, above=1),
    Part("beside", effect(2.5, 2.0, 3.0)),
)


def plot(*parts):
    with style.context():
        return forest.draw([Verdict(CLAIMS[0], parts)], style.TWO_COLUMNS_IN)


def words(axes):
    return [text.get_text() for text in axes.get_yticklabels()]


def test_every_part_has_its_row_verdict_and_n():
    axes = plot(*PARTS).axes[0]
    assert words(axes) == [part.what for part in PARTS]
    assert words(axes.child_axes[0]) == [
        "supported, n = 4",
        "contradicted, n = 4",
        "inconclusive, n = 4",
        "inconclusive, corrected, n = 4",
        "not tested, n = 1",
        "not tested: no points",
        "for information, n = 4",
    ]
    assert any(text.get_text() == "C1: Images in NHWC train faster than in NCHW." for text in axes.texts)


def test_intervals_and_values_stand_where_they_are():
    axes = plot(*PARTS).axes[0]
    assert axes.get_xscale() == "log"
    intervals = [tuple(line.get_segments()[0][:, 0]) for line in axes.collections]
    assert intervals == [(1.3, 1.8), (0.6, 0.8), (0.9, 1.2), (1.05, 1.4), (2.0, 3.0)]
    points = [line for line in axes.lines if line.get_marker() in forest.MARKERS.values()]
    assert [line.get_xdata()[0] for line in points] == [1.5, 0.7, 1.02, 1.2, 1.1, 2.5]
    colours = palette.COLOURS["verdict"]
    expected = [SUPPORTED, CONTRADICTED, INCONCLUSIVE, INCONCLUSIVE, NOT_TESTED, forest.INFORMATION]
    assert [line.get_color() for line in points] == [colours[verdict] for verdict in expected]
    low, high = axes.get_xlim()
    assert low < 0.6 and high > 3
    ticks = dict(zip(words(axes), axes.get_yticks(), strict=True))
    assert [line.get_ydata()[0] for line in points] == [ticks[p.what] for p in PARTS if p.effect]


def test_the_claimed_side_is_shaded_and_information_is_not():
    between = Part("equal", effect(0.002, -0.005, 0.008), above=-0.01, below=0.01, percent=True)
    ratios, shares = plot(*PARTS, between).axes
    sides = [patch for patch in ratios.patches if isinstance(patch, Rectangle) and patch.get_zorder() == 0.5]
    assert len(sides) == sum(part.decides for part in PARTS)
    assert all(side.get_x() == 1 and side.get_x() + side.get_width() == ratios.get_xlim()[1] for side in sides)
    (own,) = [patch for patch in shares.patches if patch.get_zorder() == 0.5]
    assert (own.get_x(), own.get_x() + own.get_width()) == pytest.approx((-0.01, 0.01))
    assert shares.get_xscale() == "linear" and words(shares) == ["equal"]


@pytest.fixture(scope="module")
def published():
    return dataset.load(PUBLISHED)


@pytest.mark.parametrize("width_in", [style.TWO_COLUMNS_IN, style.ONE_COLUMN_IN])
def test_of_the_published_claims_no_text_is_cut_or_over_another(published, width_in):
    for name in ("image_claims", "llm_claims"):
        made = FAMILIES[name].draw(published, width_in)
        with style.context():
            style.settle(made)
            sides = [own for axes in made.axes for own in (axes, *axes.child_axes)]
            every = [text for own in sides for text in (*own.get_yticklabels(), *own.texts)]
            boxes = [(text.get_text(), text.get_window_extent()) for text in every]
        for index, (text, box) in enumerate(boxes):
            assert box.x0 >= -0.5 and box.x1 <= made.bbox.x1 + 0.5 and box.y1 <= made.bbox.y1 + 0.5, text
            for other, beside in boxes[:index]:
                # the box of a line is higher than its letters
                apart = min(box.y1, beside.y1) - max(box.y0, beside.y0) < 0.35 * min(box.height, beside.height)
                assert apart or box.x1 < beside.x0 or beside.x1 < box.x0, (text, other)


def test_every_part_of_every_claim_is_in_one_of_the_figures(published):
    shown = [row for name in ("image_claims", "llm_claims") for row in rows(name, published)]
    judged = [(v.claim.id, p.what, p.verdict) for v in judge(published) for p in v.parts if p.decides]
    assert sorted(
        (row["claim"], row["part"], row["verdict"]) for row in shown if row["verdict"] != "for information"
    ) == (sorted(judged))
    nhwc = next(row for row in shown if row["claim"] == "C1")
    assert [round(nhwc[name], 3) for name in ("effect", "low", "high", "above", "n")] == [1.263, 1.148, 1.390, 1, 5]


def rows(name, tables):
    return FAMILIES[name].numbers(FAMILIES[name].points(tables), tables).to_dicts()


def test_the_report_shows_them_among_the_claims(tmp_path):
    tables = made_up()
    for name, frame in tables.frames.items():
        frame.write_parquet(tmp_path / f"{name}.parquet")
    assert draw(tmp_path, tmp_path, ["image_claims", "llm_claims", "methods"], processes=1) == []
    page = report.render(tables, tmp_path, [])
    ids = ("figures", "figure-methods", "claims", "figure-image_claims", "figure-llm_claims")
    places = [page.index(f'id="{name}"') for name in ids]
    assert places == sorted(places) and len(re.findall("<figure(?![^>]*hidden)", page)) == 3


def test_remedied_points_count_as_they_do_for_the_verdicts():
    tables = made_up()
    points = tables["points"].with_columns(round=pl.lit(1))
    remedied = dataset.Tables({**tables.frames, "points": points})
    family = FAMILIES["llm_claims"]
    assert family.points(family.scope(remedied)).height > 0
