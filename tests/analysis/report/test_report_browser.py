"""The report in a real browser: nothing complains, and what a reader does with it works, by keyboard too."""

import time

import polars as pl
import pytest
from polars.testing import assert_series_equal

from nightsweep.analysis.figures import setting_effects
from nightsweep.analysis.report import beside
from nightsweep.analysis.report.__main__ import main as write_report
from tests.analysis.report import browser as browsers

pytestmark = pytest.mark.skipif(browsers.program() is None, reason="no Chromium here (tests/install.sh)")
WIDE, PHONE = 1280, 390


@pytest.fixture
def browser(browser, sweep):
    """At the report, wide."""
    browser.open(sweep[1], width=WIDE)
    return browser


def cells(browser, column):
    """The column's texts in the rows that are shown."""
    shown = "[...document.querySelectorAll('#points tbody tr')].filter((row) => !row.hidden)"
    return browser.evaluate(f"{shown}.map((row) => row.cells[{column}].textContent)")


def heads(browser):
    return browser.evaluate("[...document.querySelectorAll('#points thead th')].map((head) => head.textContent)")


def counted(browser):
    return browser.evaluate("document.getElementById('count').textContent")


def test_a_heading_sorts_both_ways_by_pointer_and_by_key(browser):
    column = heads(browser).index("step (ms)")
    browser.click(f"#points thead th:nth-child({column + 1}) button")
    up = [text for text in cells(browser, column) if text]
    assert [float(text) for text in up] == sorted(map(float, up)) and len(set(up)) > 5
    assert cells(browser, column)[-1] == ""
    browser.press("Enter")
    assert [text for text in cells(browser, column) if text] == up[::-1]
    assert cells(browser, column)[-1] == ""
    said = "[...document.querySelectorAll('#points th')].map((head) => head.getAttribute('aria-sort')).filter(Boolean)"
    assert browser.evaluate(said) == ["descending"]


@pytest.mark.parametrize(
    ("typed", "rows"),
    [
        ("fsdp2", 6),
        ("image bf16", 6),
        ("strategy=ddp", 0),
        ("strategy=ddp_ds", 18),
        ("ranks>1", 12),
        ("step<60", 3),
        ("no such", 0),
    ],
)
def test_the_filter_keeps_rows_with_every_word(browser, typed, rows):
    assert counted(browser) == "30 of 30 points shown"
    browser.evaluate("document.getElementById('filter').focus()")
    browser.write(typed)
    assert len(cells(browser, 0)) == rows
    assert counted(browser) == f"{rows} of 30 points shown"


def test_status_and_filter_together(browser):
    browser.evaluate("""{ const status = document.getElementById("status");
        status.value = "failed"; status.dispatchEvent(new Event("change")); }""")
    assert set(cells(browser, 1)) == {"failed"} and counted(browser) == "3 of 30 points shown"
    assert browser.evaluate("document.getElementById('count').ariaLive") == "polite"


def test_columns_of_settings_can_be_put_away(browser):
    column = heads(browser).index("precision") + 1
    width = f"document.querySelector('#points td:nth-child({column})').getBoundingClientRect().width"
    assert browser.evaluate(width) > 0
    browser.click("#settings")
    assert browser.evaluate(width) == 0
    assert len(cells(browser, 0)) == 30


@pytest.mark.parametrize("by", ["pointer", "Enter", "Space"])
def test_a_figure_opens_in_full_size_and_escape_closes_it(browser, by):
    if by == "pointer":
        browser.click("#figure-held_time .zoom")
    else:
        browser.evaluate("document.querySelector('#figure-held_time .zoom').focus()")
        browser.press(by)
    assert browser.evaluate("document.getElementById('zoom').open")
    assert browser.evaluate("document.getElementById('zoom-title').textContent") == "Where the held time went"
    shown = browser.evaluate("document.querySelector('#zoom img').getBoundingClientRect().width")
    browser.click("#zoom-size")
    natural = browser.evaluate("document.querySelector('#zoom img').naturalWidth")
    assert shown < natural == browser.evaluate("document.querySelector('#zoom img').getBoundingClientRect().width")
    browser.press("Escape")
    assert not browser.evaluate("document.getElementById('zoom').open")
    assert browser.evaluate("document.activeElement.closest('figure').id") == "figure-held_time"


def downloaded(browser, button, file):
    """The table that a click gives."""
    browser.downloads(file.parent)
    browser.click(button)
    until = time.monotonic() + 60
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return pl.read_csv(file, infer_schema_length=None)


def test_the_data_behind_a_figure_comes_as_csv(browser, sweep, tmp_path):
    rows = downloaded(browser, "#figure-setting_effects .links a", tmp_path / "setting_effects.csv")
    own = setting_effects.effects(sweep[0].own)
    assert rows["setting"].to_list() == own["setting"].to_list() and rows.height > 5
    assert rows["ratio"].to_list() == pytest.approx(own["ratio"].to_list())


def test_all_points_come_as_csv(browser, sweep, tmp_path):
    rows = downloaded(browser, "#points-csv", tmp_path / "points.csv").sort("point_id")
    points = sweep[0]["points"].sort("point_id")
    assert {"step_ms_mean", "strategy", "status", "message"} < set(rows.columns) and not points[
        "message"
    ].is_null().all()
    for name in set(rows.columns) - {"hosts", "loss_last"}:
        assert_series_equal(rows[name].cast(points[name].dtype), points[name], rel_tol=1e-6)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("place", ["", "#point-"])
def test_a_phone_never_scrolls_the_page_sideways(browser, sweep, place, dark):
    browser.open(f"{sweep[1].as_uri()}{place and place + sweep[2]}", width=PHONE, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") == PHONE
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == dark
    boxes = "[...document.querySelectorAll('table')].every((table) => table.closest('.wide'))"
    assert browser.evaluate(boxes)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("place", ["", "#point-"])
def test_axe_finds_nothing_that_a_reader_with_a_screen_reader_or_without_a_pointer_lacks(
    browser, sweep, place, width, dark
):
    browser.open(f"{sweep[1].as_uri()}{place and place + sweep[2]}", width=width, dark=dark)
    assert browser.violations() == []


def test_it_prints_whole(browser):
    assert browser.pdf().startswith(b"%PDF")
    browser.print_media()
    boxes = "[...document.querySelectorAll('table, img, pre')]"
    cut = "(box) => box.getBoundingClientRect().right > innerWidth + 1"
    assert browser.evaluate(f"{boxes}.filter({cut}).map((box) => box.outerHTML.slice(0, 60))") == []


@pytest.fixture
def large(sweep, tmp_path, monkeypatch):
    """The report of the same points, of which a page holds ten."""
    monkeypatch.setattr(beside, "MOST", 10)
    root = sweep[1].parent
    arguments = ["--tables", root / "tables", "--figures", root / "figures", "--records", root / "points"]
    write_report([str(a) for a in [*arguments, "--out", tmp_path / "report.html"]])
    return tmp_path / "report.html"


def test_of_many_points_the_rows_are_beside_the_page_and_shown_ten_at_a_time(running, sweep, large):
    running.errors.clear()
    running.open(large, width=WIDE)
    assert counted(running) == "1 to 10 of 30 points" and len(cells(running, 0)) == 10
    everyone = cells(running, 0)
    running.click("#next")
    everyone += cells(running, 0)
    running.click("#next")
    everyone += cells(running, 0)
    assert counted(running) == "21 to 30 of 30 points" and running.evaluate("document.getElementById('next').disabled")
    assert sorted(everyone) == sorted(sweep[0]["points"]["point_id"])
    running.evaluate("document.getElementById('filter').focus()")
    running.write("fsdp2")
    assert counted(running) == "6 of 30 points shown" and running.evaluate("document.getElementById('pages').hidden")
    running.click(f'#points a[href="#point-{sweep[2]}"]')
    running.wait("document.getElementById('report').hidden")
    text = running.evaluate("document.getElementById('point').innerText")
    assert "small_kernels (idle)" in text and "last line </script>" in text
    assert running.errors == []


def test_a_large_page_is_small_and_says_what_it_lacks_without_its_files(running, sweep, large):
    files = beside.folder_of(large)
    assert [file.name for file in files.iterdir()] == [beside.SCRIPT]
    page = large.read_text()
    assert len(page) < len(sweep[1].read_text()) - 10_000
    own, row = sweep[1].read_text(), '<tr><td><a href="#point-'
    assert page.count(row) == own.count(row) - 30 and '"part_names":' in own and '"part_names":' not in page
    (files / beside.SCRIPT).unlink()
    running.open(large, width=WIDE)
    assert counted(running) == "report_files/points.js is not beside this page: it has the points"
    running.errors.clear()


def test_files_of_a_page_that_was_larger_are_deleted(sweep, large, monkeypatch):
    monkeypatch.undo()
    root = sweep[1].parent
    write_report(["--tables", str(root / "tables"), "--figures", str(root / "figures"), "--out", str(large)])
    assert not beside.folder_of(large).exists() and "points.js" not in large.read_text()
