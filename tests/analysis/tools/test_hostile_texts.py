"""Names and messages that would be markup, formulas, mathematics or orders to a terminal are shown as texts."""

import gzip
import json

import polars as pl
import pytest

from nightsweep.analysis.report import figure_data
from nightsweep.analysis.report.__main__ import main as report
from nightsweep.analysis.tools import draw
from nightsweep.analysis.tools.cli import main
from nightsweep.jobs.host.terminal import harmless
from tests.analysis.figures.made_up import made_up, write
from tests.analysis.readers.test_readers import DATA

ESCAPE = "\x1b]0;title\x07\x1b[31m\x9b2J\u202egnp.exe"
SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
MATH = r"_$\frac{1}{0$ $x_$ \alpha ^{_} %& $$"
FORMULA = "=cmd|' /C calc'!A0"
HOSTILE = f"{MATH} {SCRIPT}"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Made-up tables in which every model, message and name of an event is hostile."""
    folder = tmp_path_factory.mktemp("hostile") / "s"
    tables = made_up()
    frames = {name: tables[name] for name in tables.frames}
    frames["points"] = frames["points"].with_columns(
        model=pl.lit(HOSTILE), sweep=pl.lit(SCRIPT), message=pl.lit(SCRIPT), data=pl.lit(FORMULA)
    )
    frames["failures"] = frames["failures"].with_columns(message=pl.lit(SCRIPT), traceback=pl.lit(SCRIPT))
    frames["timeline"] = frames["timeline"].with_columns(name=pl.lit(HOSTILE))
    write(type(tables)(frames), folder / "tables")
    return folder


def test_the_report_runs_nothing_and_figures_are_drawn(results, tmp_path):
    names = ["scaling", "timeline", "traced_steps", "setting_effects", "loss"]
    assert draw.draw(results / "tables", tmp_path, names, processes=1) == []
    assert {f"{name}.png" for name in names} <= {path.name for path in tmp_path.rglob("*.png")}
    command = ["--tables", str(results / "tables"), "--figures", str(tmp_path), "--out", str(tmp_path / "r.html")]
    report(command)
    page = (tmp_path / "r.html").read_text()
    assert "&lt;script&gt;alert(1)" in page and "<script>alert" not in page and "<img src=x" not in page
    assert "data:text/csv" in page and "'=cmd" not in page.replace("&#39;", "").replace(f"'{FORMULA}", "")


def test_no_cell_of_csv_is_a_formula(results, tmp_path):
    assert main(["export", "--to", "csv", str(results), "--out", str(tmp_path)]) == 0
    cells = pl.read_csv(tmp_path / "points.csv", infer_schema=False)["data"].unique().to_list()
    assert cells == [f"'{FORMULA}"]
    rows = pl.DataFrame({"a": ["=1", "+1", "-1", "@a", "\t=1", "1", None], "b": [-1, -2, -3, -4, -5, -6, -7]})
    lines = figure_data.as_csv(rows).splitlines()
    assert lines[1:5] == ["'=1,-1", "'+1,-2", "'-1,-3", "'@a,-4"] and lines[6:] == ["1,-6", ",-7"]


@pytest.fixture
def trace(tmp_path):
    """A trace whose every name is an order to a terminal."""
    content = json.loads(gzip.decompress((DATA / "kineto-h200-ddp-r0.json.gz").read_bytes()))
    for event in content["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op", "user_annotation") and "step" not in event["name"].lower():
            event["name"] = ESCAPE + event["name"]
    path = tmp_path / f"trace{ESCAPE.replace('/', '')}-r0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_no_escape_reaches_the_terminal(trace, tmp_path, capsys):
    window = tmp_path / "window.json"
    assert main(["diagnose", str(trace)]) == 0
    assert main(["export", "--to", "perfetto", str(trace), "--out", str(window)]) == 0
    broken = trace.with_name(f"broken{trace.name}")
    broken.write_bytes(trace.read_bytes()[:60])
    assert main(["ingest", str(broken), "--out", str(tmp_path / "out")]) in (1, 2)
    said = "".join(capsys.readouterr())
    assert "broken" in said and not set(said) & set("\x1b\x07\x9b\u202e")
    names = {event["name"] for event in json.loads(window.read_text())["traceEvents"]}
    assert any(name.startswith(ESCAPE) for name in names)  # as JSON, which escapes it
    assert "\x1b" not in window.read_text()


def test_harmless():
    assert harmless("a\tb\n") == "a\tb\n" and harmless("\x1b[31mred\r\u202e\xa0") == "?[31mred ? "
