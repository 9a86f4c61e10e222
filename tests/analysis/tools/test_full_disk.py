"""Results on a disk that is full: a command ends with one line, what was there is whole, and it goes on afterwards."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nightsweep.analysis.tools import collect
from nightsweep.analysis.tools.derive import derive
from nightsweep.jobs.slurm.doctor import cluster, nodes
from tests.analysis.ingest.test_ingest import make_point

IDS = ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]
FIGURES = ("scaling", "timeline")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Results of two points, with tables."""
    folder = tmp_path_factory.mktemp("made") / "s"
    for point in IDS:
        make_point(folder / "points" / point, point_id=point)
    listed = [{"point_id": point, "settings": {}} for point in IDS]
    (folder / "sweep.json").write_text(json.dumps({"name": "s", "points": listed}))
    derive(folder, "points-0000", IDS, 1)
    collect.main(commands(folder)["nightsweep.analysis.tools.collect"])
    return folder


@pytest.fixture
def results(tmp_path, made):
    """The same on a small disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    yield shutil.copytree(made, disk / "s")
    subprocess.run(["umount", "-l", str(disk)], check=True)


def commands(folder):
    tables = ["--tables", str(folder / "tables")]
    return {
        "nightsweep.analysis.tools.derive": [str(folder), "--chunk", "points-0000", "--points", *IDS],
        "nightsweep.analysis.tools.collect": [
            *[str(folder / "sweep.json"), "--derived", str(folder / "derived")],
            *["--out", str(folder / "tables")],
        ],
        "nightsweep.analysis.tools.draw": [*FIGURES, *tables, "--out", str(folder / "figures"), "--keep-going"],
        "nightsweep.analysis.report": [
            *[*tables, "--figures", str(folder / "figures"), "--records", str(folder / "points")],
            *["--out", str(folder / "report.html")],
        ],
        "nightsweep.analysis.tools.cli": ["publish", str(folder), "--out", str(folder / "public")],
    }


ELSEWHERE = {"into": ["publish", "--into"], "figures": ["figures", "--out"]}
"""Commands that write more than this disk holds: only their ends are tried."""


def run(module, words):
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stderr


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "filler")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def fill(folder):
    """Leave no space on its disk; the file that takes it."""
    filler = folder / "filler"
    space = os.statvfs(folder)
    filler.write_bytes(bytes(space.f_bavail * space.f_frsize))
    return filler


@pytest.mark.parametrize("words", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_full_disk_elsewhere(words, results):
    before = contents(results)
    fill(results)
    status, errors = run("nightsweep.analysis.tools.cli", [words[0], str(results), words[1], str(results / "new")])
    assert status != 0 and len(errors.splitlines()) == 1 and "No space left" in errors, errors
    assert contents(results) == before


def test_the_doctor_on_a_full_disk_leaves_nothing(results):
    fill(results)
    where = cluster.Partition("p", (cluster.Node("n", "idle", 1, 4096, ()),))
    (finding,) = nodes.examine(where, None, 1, results)
    assert finding.text == f"login node: cannot write in {results}: No space left on device"
    assert not list(results.glob(".nightsweep*"))


@pytest.mark.slow
@pytest.mark.parametrize("module", commands(Path()))
def test_a_full_disk_is_one_line_and_nothing_is_half_written(module, results):
    words = commands(results)[module]
    if module in ("nightsweep.analysis.tools.draw", "nightsweep.analysis.report"):
        assert run(module, words)[0] == 0
    if module == "nightsweep.analysis.tools.derive":  # so that there is something to do
        record = results / "points/bbbbbbbbbbbb/record.json"
        os.utime(record, ns=(record.stat().st_mtime_ns + 10**9,) * 2)
    before = contents(results)
    filler = fill(results)
    status, errors = run(module, words)
    assert status != 0 and len(errors.splitlines()) == 1 and "No space left" in errors, errors
    assert contents(results) == before
    filler.unlink()
    status, errors = run(module, words)
    assert (status, errors) == (0, "")
