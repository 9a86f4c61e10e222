"""What changes or watches a results folder, where files of it are missing, empty, cut, or cannot be written: one line,
and no point is lost."""

import io
import json
import os
import shutil
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict

import pytest

from nightsweep.analysis.tools import cli
from nightsweep.jobs.record.json_files import json_line, write_json
from nightsweep.jobs.record.launch_files import Start
from nightsweep.jobs.sweep.rounds import REMEDIES
from nightsweep.jobs.sweep.sweep import load
from tests.analysis.tools.test_damaged_results import damage

SWEEP = """
name: s
base: {workload: image, model: resnet50, image_size: 64}
axes: {micro_batch: [8, 16, 32]}
design: {precision: {half_width: 2%, least: 6, most: 40}}
"""
ADDED, REPEATED, ORPHAN = "ba9876543210", "ca9876543210", "0123456789ab"


def write_point(folder, point_id, settings, **record):
    folder.mkdir(parents=True)
    write_json(folder / "point.json", {"sweep": "s", "point_id": point_id, "settings": settings})
    write_json(folder / "record.json", {"point_id": point_id, "sweep": "s", "settings": settings, **record})
    start = Start(attempt=1, started_at="2026-01-01T00:00:00.000+00:00", host="h", pid=1)
    (folder / "attempts.jsonl").write_text(json_line(start))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep file, and results of it: points that are ok, one that was lost, one of each kind of round, an
    orphan."""
    home = tmp_path_factory.mktemp("whole")
    (home / "s.yaml").write_text(SWEEP)
    sweep = load(home / "s.yaml")
    folder, settings = home / "results/s", sweep.points[0].settings()
    for number, point in enumerate(sweep.points):
        record = {"status": "failed", "reason": "lost"} if number == 2 else {"status": "ok"}
        write_point(folder / "points" / point.id, point.id, point.settings(), **record)
    for point_id in (ADDED, REPEATED, ORPHAN):
        write_point(folder / "points" / point_id, point_id, settings, status="ok")
    listed = [{"point_id": point.id, "settings": point.settings()} for point in sweep.points]
    design = {"precision": asdict(sweep.design.precision)}
    for kind, point_id in ((REMEDIES, ADDED), (sweep.design.precision.folder, REPEATED)):
        (folder / kind).mkdir(parents=True)
        one = [{"point_id": point_id, "settings": settings}]
        write_json(folder / kind / "round1.json", {"round": 1, "name": "s", "points": one, "trials": [], "looks": []})
    write_json(folder / "sweep.json", {"name": "s", "points": listed, **design})
    return home


def run(home, *words):
    """Status, output and errors; any exception but the end of a program is the test's failure."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            status = cli.main([str(word) for word in words])
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), errors.getvalue()


def commands(home):
    results = ["--results", home / "results"]
    return {
        "retry": ["retry", home / "s.yaml", *results],
        "orphans": ["orphans", home / "s.yaml", *results, "--remove"],
        "watch": ["watch", "--once", home / "results/s"],
        "publish": ["publish", home / "results/s", "--into", home / "set"],
        "figures": ["figures", home / "results/s", "--out", home / "figures"],
    }


@pytest.fixture
def copy(whole, tmp_path):
    def make():
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return shutil.copytree(whole, tmp_path / "copy")

    return make


def kept(home):
    """Points of the sweep and of its rounds that are still there."""
    return {path.name for path in (home / "results/s/points").iterdir()} - {ORPHAN}


def test_nothing_of_a_sweep_or_its_rounds_is_an_orphan(copy, whole):
    home = copy()
    assert run(home, *commands(home)["orphans"])[1].splitlines()[0] == ORPHAN
    assert kept(home) == kept(whole) and not (home / "results/s/points" / ORPHAN).exists()


@pytest.mark.parametrize("kind", ["missing", "empty", "half", "folder"])
@pytest.mark.parametrize("command", ["retry", "orphans", "watch"])
def test_a_damaged_list_ends_a_command_in_one_line_and_costs_no_point(whole, copy, command, kind):
    lists = [path.relative_to(whole) for path in whole.glob("results/s/**/*.json") if "points" not in path.parts]
    assert len(lists) == 3
    for file in lists:
        home = copy()
        damage(home / file, kind, None)
        status, out, errors = run(home, *commands(home)[command])
        refused = status == 2 and len(errors.splitlines()) == 1 and str(file.parent) in errors
        # Without its file a round is one that was deleted. `orphans` goes by the sweep's file.
        fine = status == 0 and (kind == "missing" or (command == "orphans" and file.name == "sweep.json"))
        assert refused or fine, (file, status, out, errors)
        if kind != "missing":
            assert kept(home) == kept(whole), (file, errors)


@pytest.mark.parametrize("kind", ["missing", "empty", "half", "folder", "other"])
def test_damaged_files_of_a_point(whole, copy, kind):
    first = load(whole / "s.yaml").points[0].id
    for file in ("record.json", "point.json", "attempts.jsonl"):
        home = copy()
        folder = home / "results/s/points" / first
        damage(folder / file, kind, home / "results/s/points" / ADDED / file)
        for command in ("watch", "retry", "orphans"):
            status, out, errors = run(home, *commands(home)[command])
            assert (status, errors) == (0, ""), (file, command, errors)
            if command == "retry" and file == "record.json" and kind in ("empty", "half"):
                assert f"{first} unreadable" in out
        assert kept(home) == kept(whole)


@pytest.mark.parametrize("kind", ["missing", "empty", "half", "folder"])
def test_figures_without_their_points(copy, kind):
    home = copy()
    (home / "results/s/tables").mkdir()
    (home / "results/s/tables/points.parquet").write_bytes(b"PAR1" * 40)
    damage(home / "results/s/tables/points.parquet", kind, None)
    status, _, errors = run(home, *commands(home)["figures"])
    assert status == 2 and len(errors.splitlines()) == 1 and "points.parquet" in errors
    assert not (home / "figures/report.html").exists()


def test_results_that_cannot_be_written_to(copy, tmp_path):
    """On a file system that is mounted to be read: what only reads works, the rest ends in one line."""
    home, mounted = copy(), tmp_path / "mounted"
    mounted.mkdir()
    mount = ["mount", "--bind", "-o", "ro", str(home), str(mounted)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        assert run(mounted, *commands(mounted)["watch"])[0] == 0
        for command in ("retry", "orphans", "publish", "figures"):
            status, _, errors = run(mounted, *commands(mounted)[command])
            assert status == 2 and len(errors.splitlines()) == 1, (command, errors)
            assert command in ("publish", "figures") or "Read-only file system" in errors
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_data_set_is_found_again_where_it_was_left_between_two_names(whole, tmp_path):
    earlier = tmp_path / ".set.before"
    earlier.mkdir()
    (earlier / "manifest.json").write_text(json.dumps({"files": [], "pseudonyms": {}, "replaced": {}}))
    results = shutil.copytree(whole / "results/s", tmp_path / "s")
    (results / "tables").mkdir()
    (results / "tables/points.parquet").write_bytes(b"")  # which ends the command
    assert run(tmp_path, "publish", results, "--into", tmp_path / "set")[0] == 2
    assert (tmp_path / "set/manifest.json").exists() and not earlier.exists()
