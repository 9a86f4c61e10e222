"""`nightsweep watch --report`: the report of a sweep that still runs."""

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nightsweep.analysis.ingest.derived import Derived
from nightsweep.analysis.report.interim import Interim
from nightsweep.analysis.tools.cli import main
from nightsweep.analysis.tools.derive import derive, each
from nightsweep.analysis.tools.watch import interim_report
from nightsweep.analysis.tools.watch.interim_report import OWN, derive_rest
from nightsweep.jobs.record.json_files import write_json
from nightsweep.jobs.record.raw_files import pack
from nightsweep.jobs.sweep.sweep import load
from tests.analysis.ingest.test_ingest import dump, make_point, record
from tests.analysis.tools.live_folders import beats, make_sweep
from tests.analysis.tools.test_derive import later

ROOT = Path(__file__).parents[3]
IDS = ["aaa", "bbb", "ccc"]
SWEEP = """
name: night
base: {workload: command, command: "job.py {seed}", launcher: none, device: cpu, traced_steps: 0}
axes: {seed: [0, 1, 2, 3]}
"""
SCRIPT = """
import sys
assert sys.argv[1] != "3", "no such data set"
"""
REFRESH = '<meta http-equiv="refresh"'


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Three measured points, of which the first has tables already."""
    folder = tmp_path_factory.mktemp("measured") / "s"
    for point in IDS[:2]:
        make_point(folder / "points" / point, point_id=point)
    dump(folder / "points/ccc/record.json", record(point_id="ccc"))
    derive(folder, "points-0000", ["aaa"], 1)
    return folder


@pytest.fixture
def results(tmp_path, measured):
    (tmp_path / "scratch").mkdir()
    return shutil.copytree(measured, tmp_path / "results/s")


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def made(scratch):
    """Which chunk has each point, and when its tables were made."""
    return {point: (row["chunk"], row["made_ns"]) for point, row in Derived(scratch / "derived").made.items()}


def chunks_of(scratch):
    return {point: chunk for point, (chunk, _) in made(scratch).items()}


def test_what_the_workflow_has_no_tables_of_is_derived_apart(results, tmp_path):
    before, scratch = files(results), tmp_path / "scratch"
    ids = [*IDS, "waiting"]
    assert derive_rest(results, scratch / "derived", ids, most=1) == 1
    assert chunks_of(scratch) == {"aaa": "points-0000", "bbb": OWN}
    assert derive_rest(results, scratch / "derived", ids, most=1) == 0
    first = made(scratch)
    assert chunks_of(scratch) == {"aaa": "points-0000", "bbb": OWN, "ccc": OWN}
    assert Derived(scratch / "derived").table("points", ids)["point_id"].to_list() == IDS
    assert Derived(scratch / "derived").table("steps", ids)["point_id"].unique(maintain_order=True).to_list() == IDS[:2]
    assert files(results) == before
    later(results / "points/ccc/record.json")
    assert derive_rest(results, scratch / "derived", ids, most=9) == 0
    again = made(scratch)
    assert again["ccc"] > first["ccc"] and again["bbb"] == first["bbb"]
    derive(results, "points-0000", IDS, 1)
    assert derive_rest(results, scratch / "derived", ids, most=9) == 0
    assert set(chunks_of(scratch).values()) == {"points-0000"}
    assert not list((scratch / "derived" / OWN).glob("traces/*"))


def test_a_point_that_cannot_be_analysed_is_tried_once(results, tmp_path):
    dump(results / "points/bbb/record.json", record(point_id="bbb", settings={"workload": "command", "command": ""}))
    scratch = tmp_path / "scratch"
    derive_rest(results, scratch / "derived", IDS, most=9)
    first = made(scratch)
    derive_rest(results, scratch / "derived", IDS, most=9)
    assert made(scratch) == first and first["bbb"][0] == OWN


@pytest.mark.parametrize("table", ["steps", "made"])
def test_files_that_are_cut_or_gone(results, tmp_path, table):
    scratch, cut = tmp_path / "scratch", results / f"derived/points-0000/{table}.parquet"
    cut.write_bytes(cut.read_bytes()[:-9])
    (results / "points/bbb/record.json").write_text('{"status": "o')
    assert derive_rest(results, scratch / "derived", IDS, most=9) == 0
    assert set(chunks_of(scratch).values()) == {OWN}
    rows = Derived(scratch / "derived").table("points", IDS).select("point_id", "status").rows()
    assert rows == [("aaa", "ok"), ("bbb", "not_run"), ("ccc", "ok")]
    dump(results / "points/bbb/record.json", record(point_id="bbb"))
    (results / "points/ccc/record.json").unlink()
    assert derive_rest(results, scratch / "derived", IDS, most=9) == 0
    assert chunks_of(scratch) == {"aaa": OWN, "bbb": OWN}


def test_a_point_that_is_packed_while_it_is_read_is_read_again(results, tmp_path, monkeypatch):
    point, scratch, calls = results / "points/bbb", tmp_path / "scratch", []
    (point / ".measured.json").write_bytes((point / "record.json").read_bytes())

    def half_gone(points, ids, *more):
        calls.append(ids)
        if len(calls) > 1:
            return each(points, ids, *more)
        (point / "timed").rename(tmp_path / "timed")
        found = list(each(points, ids, *more))
        (tmp_path / "timed").rename(point / "timed")
        pack(point)
        return found

    monkeypatch.setattr(interim_report, "each", half_gone)
    assert derive_rest(results, scratch / "derived", IDS, most=9) == 0
    assert Derived(scratch / "derived").table("steps", ["bbb"]).height == 8
    assert calls == [["bbb", "ccc"], ["bbb"]]


def test_what_is_not_in_it_yet_is_said():
    told = Interim(6, 4, 1, 2, 95.0, 3, "2026-11-25 04:05 UTC", 60).sentence()
    assert told == (
        "4 of 6 points done (1 failed), 2 running, about 2 min to go, as of 2026-11-25 04:05 UTC. 3 of the points that"
        " are done will be in the next version. This page reloads every 60 s."
    )


def test_a_report_that_cannot_be_there(tmp_path, capsys):
    make_sweep(tmp_path, 1)
    for page, what in (
        (tmp_path / "s/report.html", "the workflow writes this file; expected another one"),
        (tmp_path, "is a folder; expected an HTML file to write"),
        (tmp_path / "no/night.html", "No such file or directory; expected a file in a folder that can be written"),
    ):
        assert main(["watch", str(tmp_path), "--once", "--report", str(page)]) == 2
        assert capsys.readouterr().err == f"nightsweep watch: {page}: {what}\n"
    make_sweep(tmp_path, 1, "t")
    assert main(["watch", str(tmp_path), "--once", "--report", str(tmp_path / "night.html")]) == 2
    expected = f"nightsweep watch: {tmp_path}: 2 sweeps; a report is of one: expected results/SWEEP\n"
    assert capsys.readouterr().err == expected


def test_a_list_of_points_that_is_being_written_is_one_line(tmp_path, capsys):
    make_sweep(tmp_path, 1)
    (tmp_path / "s/remedies").mkdir()
    write_json(tmp_path / "s/remedies/round1.json", {})
    assert main(["watch", str(tmp_path), "--once", "--report", str(tmp_path / "night.html")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"nightsweep watch: {tmp_path / 's/remedies/round1.json'}: is no list of points")


def test_only_running_jobs_are_given_way_to(tmp_path, monkeypatch):
    """At the lowest priority a busy machine may never come to it, and someone may be waiting for the last version."""
    called = []
    monkeypatch.setattr(interim_report.os, "nice", called.append)
    monkeypatch.setattr(interim_report, "write_report", lambda *_: 0)
    (point,) = make_sweep(tmp_path, 1)
    arguments = [str(tmp_path / name) for name in ("s", "night.html", "scratch")]
    assert interim_report.main(arguments) == 0 and called == []
    beats(point, "step 1")
    assert interim_report.main(arguments) == 0 and called == [interim_report.LOWEST_PRIORITY]


def command(*arguments):
    return [sys.executable, "-m", "nightsweep.analysis.tools.cli", "watch", *map(str, arguments)]


@pytest.mark.slow
def test_sigterm_leaves_nothing_behind(tmp_path):
    (point,) = make_sweep(tmp_path, 1)
    beats(point, "step 1")
    watching = subprocess.Popen(command(tmp_path, "--report", tmp_path / "night.html"), cwd=ROOT)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".night.html.*/log")) and time.monotonic() < deadline:
        time.sleep(0.1)
    watching.send_signal(signal.SIGTERM)
    assert watching.wait(120) == 128 + signal.SIGTERM
    assert not list(tmp_path.glob(".night.html*"))


@pytest.mark.slow
def test_a_page_of_the_points_so_far_that_reloads_until_the_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "job.py").write_text(SCRIPT)
    ids = [point.id for point in load(tmp_path / "sweep.yaml").points]
    results, page = tmp_path / "results/night", tmp_path / "night.html"
    run = [Path(sys.executable).with_name("snakemake")]
    options = ["-s", ROOT / "Snakefile", "--directory", tmp_path, "--profile", ROOT / "profiles/local"]
    options += ["--configfile", tmp_path / "sweep.yaml"]
    some = [f"results/night/points/{point}/record.json" for point in ids[1:]]
    done = subprocess.run([*run, *some, *options], capture_output=True, text=True, timeout=400)
    assert "2 of 4 points ok" in done.stderr, done.stderr

    before = files(results)
    once = subprocess.run(
        command(results, "--once", "--report", page), cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert once.returncode == 0, once.stderr
    assert once.stdout == "night: 3/4 points done, 1 failed, 1 left\n"
    text = page.read_text()
    assert "3 of 4 points done (1 failed), 0 running, as of 20" in text
    assert REFRESH + ' content="60">' in text
    assert "<h3>Where the held time went</h3>" in text and "data:image/webp;base64," in text
    assert "no such data set" in text
    not_ok = text.index("What failed or did not run") + len("What failed or did not run")
    assert "not run" not in re.sub(r"<[^>]+>", "", text[not_ok : text.index("</section>", not_ok)])
    assert files(results) == before

    watching = subprocess.Popen(command(results, "--interval", "0.5", "--report", page), cwd=ROOT)
    done = subprocess.run([*run, "points", *options], capture_output=True, text=True, timeout=400)
    assert "3 of 4 points ok" in done.stderr, done.stderr
    assert watching.wait(200) == 0
    text = page.read_text()
    assert REFRESH not in text and "Interim report" not in text
    assert "<dt>ok</dt><dd>3</dd>" in text
    assert [path.name for path in tmp_path.glob("*night*")] == ["night.html"]
