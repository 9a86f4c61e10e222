"""A point's own page in a real browser: what it shows, its timeline, and the ways to it and back."""

import gzip
import json
import re
import shlex

import polars as pl
import pytest

from nightsweep.analysis.report.__main__ import main as write_report
from nightsweep.analysis.tools.cli import main as nightsweep
from tests.analysis.report import browser as browsers

pytestmark = pytest.mark.skipif(browsers.program() is None, reason="no Chromium here (tests/install.sh)")


def test_a_point_has_a_page_and_back_leads_to_its_row(browser, sweep):
    tables, _, point = sweep
    browser.open(sweep[1])
    browser.click(f'#points a[href="#point-{point}"]')
    browser.wait("document.getElementById('report').hidden")
    text = browser.evaluate("document.getElementById('point').innerText")
    assert browser.evaluate("document.activeElement.tagName") == "H1"
    for part in ("small_kernels (idle)", "25.0 %", "fuse <them>", "compile default", "abc1234", "traced/rank0.log"):
        assert part in text, part
    assert "last line </script>" in text and "step 1" not in text and "\x1b" not in text
    row = tables["points"].row(by_predicate=pl.col("point_id") == point, named=True)
    shown = (r"strategy\s+fsdp2", r"loss_last\s+nan", rf"step_ms_median\s+{row['step_ms_median']:.5g}")
    assert all(re.search(each, text) for each in shown), text
    browser.evaluate("history.back()")
    browser.wait("!document.getElementById('report').hidden")
    assert browser.evaluate("document.activeElement.textContent") == point


def test_parts_on_a_points_page_add_up_to_its_step(browser, sweep):
    tables, _, point = sweep
    browser.open(f"{sweep[1].as_uri()}#point-{point}")
    row = "document.querySelector('#point .bar').closest('tr')"
    told = browser.evaluate(f"[...{row}.cells].map((cell) => cell.textContent)")
    *parts, step = (float(text.split()[0]) for text in told[2:])
    sums = tables["breakdown"].filter(pl.col("point_id") == point, pl.col("rank") == 0)
    assert step == pytest.approx(sums["duration_ns"].sum() / sums["step"].n_unique() / 1e6, abs=1e-3)
    assert sum(parts) == pytest.approx(step, abs=1e-3)


def test_a_failed_point_shows_why(browser, sweep):
    failed = sweep[0]["failures"]["point_id"][0]
    browser.open(f"{sweep[1].as_uri()}#point-{failed}")
    assert "<script>alert(1)</script>" in browser.evaluate("document.getElementById('point').innerText")
    assert browser.evaluate("document.querySelectorAll('#point pre').length") >= 1


def test_a_link_to_a_point_opens_its_page(browser, sweep):
    browser.open(f"{sweep[1].as_uri()}#point-{sweep[2]}")
    assert browser.evaluate("document.querySelector('#point h1').textContent").startswith("llm: ")
    browser.open(f"{sweep[1].as_uri()}#point-unknown")
    assert not browser.evaluate("document.getElementById('report').hidden")


def test_the_path_is_followed_by_keys_and_what_is_not_on_it_dimmed(browser, sweep):
    tables, page, _ = sweep
    point = tables["timeline"].filter(pl.col("rank") == 1)["point_id"][0]
    browser.open(f"{page.as_uri()}#point-{point}")
    browser.settle()
    text = browser.evaluate("document.getElementById('point').innerText")
    assert "Of the path: rank 0 compute 67 %, rank 0 comm. 17 %, rank 1 comm. 17 %." in text
    pixels = "document.querySelector('.timeline canvas').toDataURL()"
    browser.evaluate("document.querySelector('.timeline canvas').focus()")
    plain, told = browser.evaluate(pixels), []
    for key in "nnnb":
        browser.press(key)
        told.append(browser.evaluate("document.querySelector('.timeline .told').textContent"))
    assert all(each.endswith("; on the path") for each in told) and told[3] == told[1] and len(set(told)) == 3
    browser.press("Escape")
    assert browser.evaluate(pixels) == plain
    browser.press("p")
    dimmed = "document.querySelector('.timeline [aria-pressed=true]').textContent"
    assert browser.evaluate(dimmed) == "Dim all but the path" and browser.evaluate(pixels) != plain
    browser.press("p")
    assert browser.evaluate(pixels) == plain


def test_the_whole_trace_is_exported_as_the_page_says_and_then_linked(browser, sweep, monkeypatch):
    _, page, point = sweep
    browser.open(f"{page.as_uri()}#point-{point}")
    texts = "[...document.querySelectorAll('#point pre')].map((box) => box.textContent)"
    command = next(text for text in browser.evaluate(texts) if text.startswith("nightsweep export"))
    monkeypatch.chdir(page.parent)
    assert nightsweep(shlex.split(command)[1:]) == 0
    write_report(["--tables", "tables", "--figures", "figures", "--records", "points", "--out", "again.html"])
    browser.open(f"{(page.parent / 'again.html').as_uri()}#point-{point}")
    link = "document.querySelector('#point a[download]')"
    assert browser.evaluate(f"{link}.getAttribute('href')") == f"perfetto/{point}.json.gz"
    assert "nothing is uploaded" in browser.evaluate(f"{link}.parentElement.textContent")
    exported = json.loads(
        gzip.decompress((page.parent / browser.evaluate(f"{link}.getAttribute('href')")).read_bytes())
    )
    assert {event["pid"] for event in exported["traceEvents"]} == {0} and len(exported["traceEvents"]) > 1000
