"""Who reads the report: on a phone, by keyboard, with a screen reader, or for a minute alone. On the published data
set, and on a sweep of four points."""

from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.figures import captions
from nightsweep.analysis.paper.families import FAMILIES
from nightsweep.analysis.report import causes, summary
from nightsweep.analysis.report.__main__ import main as write_report
from nightsweep.analysis.sweep import dataset, held_time
from nightsweep.analysis.sweep.labels import percent
from nightsweep.analysis.tools.draw import main as draw
from tests.analysis.figures.made_up import made_up, write
from tests.analysis.report import browser as browsers

PUBLISHED = Path(__file__).parents[3] / "data/h200-2026-11-21"
WIDE, PHONE = (1280, 800), (390, 844)
SMALLEST_PX = 12
MOST_WORDS = 60

needs_browser = pytest.mark.skipif(browsers.program() is None, reason="no Chromium here (tests/install.sh)")


def write_pages(tables, points, out):
    """The report, with one figure."""
    draw(["held_time", "--tables", str(tables), "--out", str(out / "figures")])
    given = ["--tables", tables, "--figures", out / "figures", "--out", out / "report.html"]
    write_report([str(argument) for argument in [*given, *(["--records", points] if points else [])]])
    return out / "report.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """By name, a report."""
    root = tmp_path_factory.mktemp("readers")
    whole = made_up()
    ids = whole["points"].filter(pl.col("status") == "ok")["point_id"].head(3).to_list()
    ids += whole["points"].filter(pl.col("status") == "failed")["point_id"].head(1).to_list()
    mine = dataset.Tables({n: f.filter(pl.col("point_id").is_in(ids)) for n, f in whole.frames.items()})
    return {
        "published": write_pages(PUBLISHED / "tables", PUBLISHED / "points", root / "published"),
        "four": write_pages(write(mine, root / "tables"), None, root / "four"),
    }


def seen(browser, selector, limit):
    """The texts of elements that end above a pixel."""
    script = f"[...document.querySelectorAll({selector!r})].filter((e) => e.getBoundingClientRect().bottom <= {limit})"
    return browser.evaluate(f"{script}.map((e) => e.innerText)")


@needs_browser
@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_the_first_screen_says_what_failed_what_to_change_and_where_the_time_went(browser, pages, size):
    browser.open(pages["published"], *size)
    points = pl.read_parquet(PUBLISHED / "tables/points.parquet")
    failed = points.filter(pl.col("status") == "failed")
    change = causes.changes(dataset.load(PUBLISHED / "tables"))[0]
    use = held_time.by_use(dataset.load(PUBLISHED / "tables")).sort("gpu_s", descending=True)
    why, first, hours = seen(browser, ".answers li", size[1])
    assert f"{failed.height} of {points.height} points failed" in why and failed["reason"][0] in why
    saved = (
        f"predicted to save {change['predicted_percent']:.0f} % of the timed steps of {change['points']} points; "
        f"saved {change['gained_percent']:.0f} % where tried"
    )
    assert change["change"] in first and saved in first and change["outcome"] in first
    share = use["gpu_s"][0] / use["gpu_s"].sum()
    assert f"{use['use'][0]} {percent(share)}".replace(" %", "\xa0%") in hours


@needs_browser
@pytest.mark.parametrize(("size", "screens"), [(WIDE, 1), (PHONE, 2)])
def test_a_minute_is_enough_for_the_numbers_behind_these_answers(browser, pages, size, screens):
    """Without scrolling on a desk, and within two screens of a phone: why points failed, each change with what it was
    predicted to save and what it saved, and each use of the GPU-hours."""
    browser.open(pages["published"], *size)
    failed = pl.read_parquet(PUBLISHED / "tables/points.parquet").filter(pl.col("status") == "failed")
    rest = seen(browser, "#summary ~ *", size[1] * screens)
    assert any(f"failed\n{failed.height}" in text for text in rest) and failed.height > 0
    went, failures, changes = (
        rest[next(i for i, text in enumerate(rest) if text.startswith(heading)) + 1 :]
        for heading in ("Where the GPU-hours went", "What failed or did not run", "What to change first")
    )
    uses = pl.read_parquet(PUBLISHED / "tables/phases.parquet")["use"].unique()
    assert all(f"{use} " in went[1].replace("\n", " ") for use in uses)
    assert all(reason in failures[0] for reason in failed["reason"])
    rows = changes[0].splitlines()
    # On a phone each value has its heading before it.
    labels = "[...document.querySelectorAll('#summary ~ .wide td')].map((e) => getComputedStyle(e, '::before').content)"
    heads = changes[0] if size == WIDE else " ".join(browser.evaluate(labels))
    assert "predicted saving" in heads and "measured saving" in heads
    assert sum("helped" in row for row in rows) == 3


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [WIDE, PHONE])
@pytest.mark.parametrize("name", ["published", "four"])
def test_axe_finds_nothing(browser, pages, name, size, dark):
    """With one row of the table of points, as all are alike: axe looks at every cell. Two points are compared."""
    browser.open(pages[name], *size, dark=dark)
    browser.evaluate("document.getElementById('filter').focus()")
    browser.write("failed")
    browser.evaluate("[0, 1].forEach(pick)")
    assert browser.evaluate("document.querySelectorAll('#points tbody tr').length") == 1
    assert browser.violations() == []


@needs_browser
@pytest.mark.parametrize("name", ["published", "four"])
def test_a_phone_shows_no_small_text_and_scrolls_in_one_direction(browser, pages, name):
    browser.open(pages[name], *PHONE)
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE[0]
    small = """[...document.querySelectorAll("body *")].filter((e) => e.checkVisibility()
        && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
        && parseFloat(getComputedStyle(e).fontSize) < SMALLEST).map((e) => e.outerHTML.slice(0, 80))"""
    assert browser.evaluate(small.replace("SMALLEST", str(SMALLEST_PX))) == []


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_figure_is_on_a_phone_as_large_as_its_text_needs(browser, pages, dark):
    """Its smallest text is of six points of 1/72 inch, and it has 200 pixels an inch. It is of the width of one column,
    and scrolls in a box; opened, it has all its pixels."""
    browser.open(pages["published"], *PHONE, dark=dark)
    size = "((i) => [i.getBoundingClientRect().width, i.naturalWidth])(document.querySelector('SELECTOR'))"
    (shown, natural), box = (
        browser.evaluate(size.replace("SELECTOR", "#figure-held_time img")),
        browser.evaluate(
            "(({ clientWidth, scrollWidth }) => [clientWidth, scrollWidth])(document.querySelector('.picture'))"
        ),
    )
    assert natural == pytest.approx(85 / 25.4 * 200, abs=1) and box[0] < shown < box[1] < 1.5 * box[0]
    assert 6 / 72 * 200 * shown / natural >= 0.99 * SMALLEST_PX
    browser.click("#figure-held_time .zoom")
    shown, natural = browser.evaluate(size.replace("SELECTOR", "#zoom img"))
    assert shown == natural
    ground = browser.evaluate("getComputedStyle(document.querySelector('#zoom .pane')).backgroundColor")
    assert ground == ("rgb(18, 18, 18)" if dark else "rgb(255, 255, 255)")


@needs_browser
@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_every_control_is_reached_by_tab_and_seen_when_it_is(browser, pages, size):
    browser.open(pages["four"], *size)
    browser.settle()
    controls = browser.evaluate(
        """(() => {
            const kinds = 'a[href], button, input, select, summary, [tabindex="0"]';
            const all = [...document.querySelectorAll(kinds)].filter((e) => e.checkVisibility() && !e.disabled);
            all.forEach((e, i) => { e.dataset.stop = i; });
            return all.length;
        })()"""
    )
    assert controls > 30
    visited, unseen = set(), []
    for _ in range(controls):
        browser.press("Tab")
        stop, seen, text = browser.evaluate(
            """(() => { const e = document.activeElement, s = getComputedStyle(e), b = e.getBoundingClientRect();
            const seen = s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 1 && b.bottom > 0
                && b.top < innerHeight && b.right > 0 && b.left < innerWidth;
            return [e.dataset.stop ?? null, seen, e.outerHTML.slice(0, 80)]; })()"""
        )
        visited.add(stop)
        unseen += [] if seen else [text]
    assert unseen == [] and visited == {str(stop) for stop in range(controls)}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_caption_is_short(name):
    """On the published set, which has every kind of point; how to read it and what it shares are folded away."""
    family = FAMILIES[name]
    shown, _, _ = captions.parts(family, family.scope(dataset.load(PUBLISHED / "tables")))
    assert len(shown.split()) <= MOST_WORDS, shown


def test_the_best_and_the_worst_were_trained_on_the_same_data():
    """Images of MNIST on one rank, the built-in digits on two: neither is the other's best."""
    points = made_up()["points"].filter(pl.col("status") == "ok", workload="image", strategy="ddp_ds")
    mnist = pl.when(pl.col("world_size") == 1).then(pl.lit("mnist")).otherwise("data")
    rows = summary.extremes(dataset.Tables({"points": points.with_columns(data=mnist)}))["rows"]
    assert sorted(row["configurations"] for row in rows) == [2, 2]
    assert {row["work"].split(", ")[1] for row in rows} == {"data mnist", "data builtin"}
