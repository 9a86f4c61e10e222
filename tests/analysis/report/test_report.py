"""The report: one file, nothing from outside, everything escaped."""

import json
import re

import polars as pl
import pytest

from nightsweep.analysis.report import causes as causes_part
from nightsweep.analysis.report import summary
from nightsweep.analysis.report import sweep_page as report
from nightsweep.analysis.report.__main__ import main as write_report
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.points import TABLES
from nightsweep.analysis.tools.draw import main as draw
from nightsweep.jobs.host.facts import Software
from nightsweep.jobs.record.record import Record
from tests.analysis.figures.made_up import made_up, write

DRAWN = ("setting_effects", "held_time", "failures", "loss")
LIVE = "traced_steps"
"""Drawn, too, and in the page a figure to go through instead of a picture."""
COST = [
    {"condition": condition, "tool": tool, "pair": pair, "steps": 10, "step_ms": ms, "plain_ms": 10.0, "ratio": ms / 10}
    for condition, tool, times in (("sampler", "10 Hz", (10.0, 10.2)), ("capturing", "nsys", (12.0,)))
    for pair, ms in enumerate(times)
]
CLOCK = {"rank": 1, "look": "traced", "host": "node1", "between": "ranks", "events": 9, "offset_us": -70.0}
EVENT = {"look": "timed", "host": "node1", "t_ns": 1_769_976_000 * 10**9, "kind": "low_gpu", "message": "GPU 1 <low>"}

RECORD = {
    "status": "ok",
    "started_at": "2026-02-01T20:00:00Z",
    "ended_at": "2026-02-01T20:03:00Z",
    "hosts": [{"hostname": "node1", "cpu_model": "AMD EPYC 9654", "cpu_cores": 96, "memory_bytes": 2**38, "gpus": []}],
    "software": {"git_commit": "abc1234", "git_dirty": False, "python": "3.11.9", "packages": {"torch": "2.13.0+cpu"}},
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    folder = write(made_up(), root / "tables")
    for index in range(2):
        (root / f"points/p{index}").mkdir(parents=True)
        (root / f"points/p{index}/record.json").write_text(json.dumps(RECORD))
    (root / "points/p2").mkdir()
    (root / "points/p2/record.json").write_text('{"cut": ')
    draw([*DRAWN, LIVE, "--tables", str(folder), "--out", str(root / "figures")])
    arguments = ["--tables", folder, "--figures", root / "figures", "--records", root / "points"]
    for name in ("one.html", "two.html"):
        write_report([str(a) for a in [*arguments, "--out", root / name]])
    assert (root / "one.html").read_bytes() == (root / "two.html").read_bytes()
    return (root / "one.html").read_text()


def test_nothing_is_loaded_from_outside(page):
    assert set(re.findall(r"https?://[\w.]+", page)) == {
        "http://www.w3.org",
        "https://ui.perfetto.dev",
    }  # SVG's names; a link
    assert not re.search(
        r"<(link|iframe)|@import|url\(|\bfetch\(|\beval\(|new Function|XMLHttpRequest|<script[^>]+src", page
    )
    assert page.count('src="') == page.count('src="data:image/webp;base64,') == len(DRAWN)
    supplement = page[page.index("Supplement: 2 more figures") :].partition('</details>\n<details class="aside"')[0]
    assert 'id="figure-failures"' in supplement and 'id="figure-held_time"' not in supplement
    assert page.count(">Where a step's time goes</h3>") == 1 and 'download="traced_steps.csv"' in page


def test_the_first_screen_says_where_the_held_time_went(page):
    """By the table: 72 s of a point, of which 60 are its start and 10 its timed steps; 24 ok points on 1 and 2 ranks
    and, of 2 ranks, three that failed."""
    ok, failed = 12 * 3 * 72, 2 * 3 * 72
    head = page[page.index('id="summary"') : page.index("What failed or did not run")]
    shares = dict(re.findall(r"</i>([\w-]+) <strong>([\d.]+) %</strong>", head))
    parts = {"timed": ok * 10 / 72, "start": ok * 60 / 72, "idle": ok * 2 / 72, "failed": failed}
    assert shares == {use: f"{100 * part / (ok + failed):.1f}" for use, part in parts.items()}
    widths = re.findall(r'<span style="flex: ([\d.]+) 0 0', head)
    assert sum(map(float, widths)) == pytest.approx(1, abs=1e-5) and len(widths) == 4
    assert f"Where the rank-hours went: {(ok + failed) / 3600:.3g} in all" in head
    assert "repeats" in head and "(0.12 h, 3 points)" in head


def test_the_first_screen_says_what_failed_and_what_it_held(page):
    """Three points of 144 s each failed for one reason; as many were not run."""
    said = page[page.index("<h3>What failed or did not run") : page.index("<h3>What to change first")]
    rows = [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)).strip() for row in said.split("<tr>")[2:]]
    assert len(rows) == 2 and re.match(r"gpu_out_of_memory 3: \w{12} \w{12} \w{12} rank 1: .* 0\.12$", rows[0]), rows
    assert re.match(r"\w+ 3: ", rows[1]) and not rows[1].endswith("0.12"), rows


def test_failures_are_by_reason_what_cost_most_first():
    tables = made_up()
    points = tables["points"].with_columns(
        status=pl.lit("failed"), reason=pl.Series([f"reason{n % 5}" for n in range(tables["points"].height)])
    )
    cost = {f"reason{n}": 3600.0 * (n + 1) for n in range(5)}
    held = points.select("point_id", use=pl.lit("failed"), gpu_s=pl.col("reason").replace_strict(cost) / 6)
    found = summary.failures(dataset.Tables({**tables.frames, "points": points, "phases": held}))
    assert [(row["reason"], row["points"], row["hours"]) for row in found["rows"]] == [
        ("reason4", 6, "5"), ("reason3", 6, "4"), ("reason2", 6, "3")
    ]  # fmt: skip
    assert all(len(row["ids"]) == 3 for row in found["rows"]) and (found["left"], found["left_points"]) == (2, 12)


GAIN = {"predicted": 0.2, "predicted_low": 0.1, "predicted_high": 0.3, "gain": 0.4, "verdict": "helped"}


def test_what_to_change_first_has_what_was_predicted_and_measured(tmp_path):
    """Two points of 2 and 1 hours could gain 20 and 50 %: 30 of 100 hours. Of one it was tried, and gained 40 %; of the
    other it failed, which gains nothing."""
    tables = made_up()
    ids = tables["points"].filter(status="ok")["point_id"].to_list()[:2]
    own = {"cause": "launch", "kind": "launch_bound", "place": 1, "advice": "record", "method": "sums"}
    change = {"remedy": '{"compile": "default"}'}
    causes = [
        own | change | {"point_id": point, "share": share, "gpu_s": hours * 3600.0}
        for point, share, hours in zip(ids, (0.2, 0.5), (2, 1), strict=True)
    ]
    of_trial = {"round": 1, "kind": "launch_bound"} | change
    failed = GAIN | {"gain": None, "verdict": "failed"}
    tried = [{"point_id": ids[0], "remedied_id": "x"} | of_trial | GAIN]
    tried += [{"point_id": ids[1], "remedied_id": "y"} | of_trial | failed]
    for verdict, said in (("within_noise", "0 of 1 helped"), ("failed", "0 of 1 helped"), ("not_run", "not tried")):
        alone = pl.DataFrame([tried[0] | {"verdict": verdict, "gain": 0.01 if verdict == "within_noise" else None}])
        (row,) = causes_part.changes(
            dataset.Tables({**tables.frames, "diagnoses": pl.DataFrame(causes), "remedies": alone})
        )
        assert row["outcome"] == said
    frames = {"diagnoses": pl.DataFrame(causes), "remedies": pl.DataFrame(tried)}
    (found,) = causes_part.changes(dataset.Tables({**tables.frames, **frames}))
    assert (found["predicted_percent"], found["gained_percent"]) == (pytest.approx(30), pytest.approx(80 / 3))
    page = report.render(dataset.Tables({**tables.frames, **frames}), tmp_path, [])
    said = page[page.index("What to change first") : page.index("All causes and changes")]
    unsure = pl.DataFrame([cause | {"share_low": 0.0} for cause in causes])
    assert "Nothing is sure to save more" in report.render(
        dataset.Tables({**tables.frames, "diagnoses": unsure}), tmp_path, []
    )
    assert ">30<" in said and "27 (1 of 2 helped)" in said and f'2, e.g. <a href="#point-{ids[0]}' in said


def test_what_weakens_the_numbers_is_on_the_first_screen():
    tables = made_up()
    points = tables["points"].with_columns(trace_status=pl.lit("ok"), disturbed=pl.lit(False), steady=pl.lit(True))
    records = [Record(status="ok", software=Software(git_dirty=dirty)) for dirty in (True, False, None)]
    told = dict(summary.warnings(dataset.Tables({**tables.frames, "points": points}), records))
    assert told["provenance"] == "1 of 3 records from code with uncommitted changes" and "causes" not in told
    events = pl.DataFrame([EVENT, EVENT, EVENT | {"kind": "xid"}])
    points = points.with_columns(trace_status=pl.lit(None, pl.String), disturbed=pl.lit(True), steady=pl.lit(False))
    every = summary.warnings(dataset.Tables({**tables.frames, "points": points, "gpu_events": events}), [])
    texts = [text for _, text in every]
    disturbed = "24 points disturbed, in no median or ratio"  # causes and GPU-hours have them
    assert texts[:2] == ["24 of 24 ok points without a trace", disturbed]
    assert (
        texts[2] == "24 points still warming up halfway through the timed steps"
        and texts[-1] == "GPU events: 2 low gpu, 1 xid"
    )


def test_the_gravest_events_are_shown_first_and_how_many_there_are(tmp_path):
    tables = made_up()
    point = tables["points"]["point_id"][0]
    rows = [EVENT | {"t_ns": n, "kind": "foreign_process"} for n in range(60)] + [EVENT | {"kind": "xid"}]
    events = pl.DataFrame(rows).with_columns(point_id=pl.lit(point))
    page = report.render(dataset.Tables({**tables.frames, "gpu_events": events}), tmp_path, [])
    said = page[page.index("GPU events</h3>") :].partition("</table>")[0]
    assert "50 of 61 events" in said and said.count("<tr>") == 51
    assert said.index("<td>xid</td>") < said.index("foreign_process")


def test_ids_are_unique_and_links_lead_somewhere(page):
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert {link for link in re.findall(r'href="#([^"]+)"', text) if not link.startswith("point-")} <= set(ids)


def test_messages_and_tracebacks_are_escaped(page):
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b&gt;RuntimeError" in page
    assert page.count("<script>") == 1 and page.count("<script") == 2


def test_cost_clocks_and_events_are_told(tmp_path, tmp_path_factory):
    tables = made_up()
    point = tables["points"]["point_id"][0]
    own = {"cost": COST, "clocks": [CLOCK | {"residual_us": 3.2}], "gpu_events": [EVENT]}
    frames = {n: pl.DataFrame(rows).with_columns(point_id=pl.lit(point)) for n, rows in own.items()}
    page = report.render(dataset.Tables({**tables.frames, **frames}), tmp_path, [])
    assert "1.0100 &plusmn; 0.0099" in page and "samplers on (10 Hz)" in page and "nsys capturing" in page
    assert "ends of collectives against rank 0" in page and "70.0" in page and "3.2" in page
    assert "2026-02-01 20:00:00" in page and "GPU 1 &lt;low&gt;" in page and "low_gpu" in page
    assert "No point of this sweep had a control run" in report.render(tables, tmp_path, [])


def test_disturbed_and_unsteady_points_are_counted_and_marked(tmp_path):
    tables = made_up()
    points = tables["points"].filter(pl.col("status") == "ok").head(5)
    points = points.with_columns(
        disturbed=pl.Series([True, False, False, None, None]), steady=pl.Series([False, True, True, None, False]),
        disturbed_reason=pl.Series(["others <busy>", None, None, None, None]), warm_from=pl.Series([3, 0, 2, None, 0]),
    )  # fmt: skip
    page = report.render(dataset.Tables({**tables.frames, "points": points}), tmp_path, [])
    assert "1 point was disturbed" in page and "2 were not disturbed; for 2 it is not known" in page
    assert "Of 4 timed windows, 2 were still warming up in the second half. In 2, the first steps" in page
    assert "[disturbed: others &lt;busy&gt;; still warming up]" in page and page.count("; still warming up]") == 1
    assert "No timed window was long enough" in report.render(tables, tmp_path, [])


def test_mfu_is_shown_where_a_point_has_one(page, tmp_path):
    tables = made_up()
    points = tables["points"].with_columns(mfu_percent=pl.lit(41.26))
    shown = report.render(dataset.Tables({**tables.frames, "points": points}), tmp_path, [])
    assert "MFU (%)" in shown and ">41.3<" in shown and "mfu_reason" in shown
    # Without pictures: their base64 is long enough to hold any three letters.
    assert "MFU" not in re.sub(r"base64,[^\"]+", "", page)


def test_headline_counts_every_status(page):
    numbers = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert numbers["points"] == "30"
    assert (numbers["ok"], numbers["failed"], numbers["not run"]) == ("24", "3", "3")
    assert numbers["ranks"] == "1, 2"
    assert numbers["hardware"] == "AMD EPYC 9654"


def test_table_has_varying_settings_only(page):
    heads = re.findall(r'<button type="button">(.*?)</button>', page)
    assert {"workload", "configuration", "strategy", "precision", "ranks_per_node", "repeat", "step (ms)"} <= set(heads)
    assert not {"loader_workers", "timed_steps", "energy (J)"} & set(heads)
    table = page[page.index('<table id="points"') :].partition("</table>")[0]
    assert len(re.findall(r'<tr><td><a href="#point-', table)) == 30


def test_provenance(page):
    for part in ("abc1234", "2.13.0+cpu", "node1: AMD EPYC 9654, 96 cores; 256 GiB", "From 2 records"):
        assert part in page


def test_empty_sweep(tmp_path):
    page = report.render(dataset.Tables({}), tmp_path, [])
    assert "No records were given." in page
    assert "No figures were drawn." in page
    assert "No point failed." in page


def test_pairs_have_a_table_of_their_own(tmp_path):
    row = {"pair": "slower", "point_id": "p0", "having_id": "p1", "starts": 4, "blocks": 2, "without_ms": 100.0,
           "having_ms": 400.0, "ratio": 4.0, "wanted": 0.01, "confidence": 0.98}  # fmt: skip
    known = {"ratio_low": 3.9, "ratio_high": 4.1, "half_width": 0.025}
    pairs = pl.DataFrame([row | known, row | {"pair": "once", "blocks": 1}], schema=column.schema(TABLES["pairs"]))
    page = report.render(dataset.Tables({**made_up().frames, "pairs": pairs}), tmp_path, [])
    part = page[page.index('<h2 id="pairs">') :]
    shown = [re.findall(r"<td[^>]*>(.*?)</td>", line)[:7] for line in part.splitlines() if line.startswith("<tr><td>")]
    times = ["4", "100.00", "400.00", "4.000"]
    assert shown[0] == ["slower", *times, "3.900 to 4.100", "2.5 % (1.0 % wanted)"]
    assert shown[1] == ["once", *times, "one block", ""]


def test_components_and_precision_are_told(tmp_path):
    """Three settings have three starts in each of two nights, the second of which is slow; one has a single start."""
    tables = made_up()
    first = tables["points"].filter(status="ok").head(1)
    rows = []
    for setting in range(3):
        for start in range(6):
            rows.append((f"s{setting}-{start}", 8 + setting, "2026-01-01" if start < 3 else "2026-01-05", start))
    rows.append(("alone", 99, "2026-01-01", 0))
    ids = [row[0] for row in rows]
    points = pl.concat([first] * len(rows)).with_columns(
        point_id=pl.Series(ids),
        micro_batch=pl.Series([row[1] for row in rows]),
        repeat=pl.Series([row[3] for row in rows]),
        started_at=pl.Series([f"{row[2]}T20:00:00Z" for row in rows]),
    )
    ms = [row[1] * (1 + 0.01 * (row[3] % 3)) * (1.2 if row[3] > 2 else 1) for row in rows]
    steps = pl.DataFrame({"point_id": ids, "step_ms": ms}).with_columns(step=0, rank=0, phase=pl.lit("timed"))
    page = report.render(dataset.Tables({"points": points, "steps": steps}), tmp_path, [])
    part = page[page.index("Where the differences between starts come from") : page.index("What the measuring cost")]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in part.splitlines() if line.startswith("<tr><td>")]
    table = {row[1]: row[2:] for row in cells[:5]}
    assert table["night"][:2] == ["2", "1"] and 10 < float(table["night"][2]) < 30
    assert table["host"] == ["1", "0", "no estimate", "there is only one"]
    assert table["night within a configuration"][2] == "at the bound"
    assert table["start"][:2] == ["19", "12"] and 0.5 < float(table["start"][2]) < 2
    assert [row[1:3] for row in cells[5:7]] == [
        ["two or more starts", "3"],
        ["one start: spread of starts on H200s", "1"],
    ]
    assert "The least precise configurations: 4 of 4" in part
    assert "on several hosts" in part


def test_a_sweep_without_times_tells_no_precision(tmp_path):
    assert "How precisely configurations are known" not in report.render(dataset.Tables({}), tmp_path, [])
