"""Each file of a small results folder in turn missing, empty, cut, another point's, or a folder: what reads it ends in
one clear line or says in the point's row what is missing, and no number changes without a word."""

import io
import shutil
import time
from contextlib import redirect_stderr, redirect_stdout

import polars as pl
import pytest

from nightsweep.analysis.ingest.derived import Chunk
from nightsweep.analysis.report.__main__ import main as report
from nightsweep.analysis.tools import cli, collect, derive
from nightsweep.analysis.tools.publish import publish
from nightsweep.jobs.record.json_files import json_line, read_json, write_json
from nightsweep.jobs.record.launch_files import Start
from tests.analysis.ingest.test_ingest import make_point

pytestmark = pytest.mark.slow
IDS = ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]
POINT = IDS[0]
KINDS = ("missing", "half", "folder", "other")
UNTOLD = {"attempts.jsonl", "point.json", "host-h.jsonl", "trace-r0.sqlite", "trace-r1.sqlite"}
"""Files that may be missing: the record says the same, but for the number of attempts, samples, which no record
counts, and one of several traces, of which any number may be kept."""


def analyse(folder, listed=IDS, ids=(POINT,)):
    """Tables of these points, in this process; those of other listed ones stay, as in a sweep run again."""
    scratch = folder.with_name("scratch")
    chunk = Chunk(folder / "derived/points-0000")
    chunk.save(listed, [derive.make(folder / "points" / i, scratch / i, 1) for i in ids], scratch)
    chunk.finish(time.time_ns())
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="module")
def tables_alone():
    """No figures and report of what is published, which are of tables alone and have their own tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "draw_again", lambda *folders: None)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tables_alone):
    folder = tmp_path_factory.mktemp("whole") / "s"
    for number, point in enumerate(IDS):
        own = make_point(folder / "points" / point, point_id=point, wall_s=10.0 + number)
        starts = [Start(attempt=n, started_at="2026-01-01T00:00:00.000+00:00", host="h", pid=n) for n in (1, 2)]
        (own / "attempts.jsonl").write_text("".join(map(json_line, starts)))
    shutil.copytree(own, folder.with_name("other"))  # whole; as one of the sweep it has no traces, which take longest
    shutil.rmtree(own / "traced")
    listed = [{"point_id": point, "settings": {}} for point in IDS]
    write_json(folder / "sweep.json", {"name": "s", "points": listed})
    analyse(folder, IDS, IDS)
    assert not any(run(command)[0] for command in commands(folder))
    return folder


def commands(folder):
    tables = str(folder / "tables")
    return [
        (collect.main, str(folder / "sweep.json"), "--derived", str(folder / "derived"), "--out", tables),
        (report, "--tables", tables, "--figures", str(folder / "figures"), "--records", str(folder / "points"),
         "--out", str(folder / "report.html")),
        (cli.main, "diagnose", str(folder)),
        (cli.main, "watch", "--once", str(folder)),
        (cli.main, "publish", str(folder), "--out", str(folder.with_name("web")), "--traces"),
    ]  # fmt: skip


def run(command):
    """Status and errors; any exception but the end of a program is the test's failure."""
    errors = io.StringIO()
    main, *words = command
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        try:
            status = main(words) or 0
        except SystemExit as end:
            status = end.code
    return status, errors.getvalue()


def damage(file, kind, other):
    if kind == "missing":
        file.unlink()
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "half":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif kind == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(other.read_bytes())


def tables_of(folder):
    return {path.stem: pl.read_parquet(path) for path in (folder / "tables").glob("*.parquet")}


@pytest.fixture
def copy(whole, tmp_path):
    def make():
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        shutil.rmtree(tmp_path / "web", ignore_errors=True)
        return shutil.copytree(whole, tmp_path / "s")

    return make


def copies(whole, folder, kind):
    """A sweep of copies of the point, one for each of its files, which is damaged there; and of the other point, whose
    tables are there already. Returns the file of each copy."""
    source, other = whole / "points" / POINT, whole.with_name("other")
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    if kind == "other":  # but for the record, the points were measured alike
        files = [file for file in files if (source / file).read_bytes() != (other / file).read_bytes()]
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "points" / POINT)
    copied = {f"{number:012x}": file for number, file in enumerate(files)}
    for point, file in copied.items():
        own = shutil.copytree(source, folder / "points" / point)
        write_json(own / "record.json", read_json(own / "record.json", dict) | {"point_id": point})
        damage(own / file, kind, other / file)
    listed = [{"point_id": point, "settings": {}} for point in (*copied, IDS[1])]
    write_json(folder / "sweep.json", {"name": "s", "points": listed})
    return copied


def rows_of(tables, point):
    """The point's rows of each table, without its id; of a table without points, all."""
    own = pl.col("point_id") == point
    return {
        name: frame.filter(own).drop("point_id") if "point_id" in frame.columns else frame
        for name, frame in tables.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_a_point(whole, tmp_path, kind):
    """Each damaged in another point, all of one sweep: a command takes as long for one as for several."""
    folder, before = tmp_path / "s", tables_of(whole)
    damaged, good = copies(whole, folder, kind), rows_of(before, POINT)
    errors = io.StringIO()
    with redirect_stderr(errors):
        analyse(folder, (*damaged, IDS[1]), damaged)
    for command in commands(folder):
        status, said = run(command)
        assert status == 0 and "Traceback" not in said, (command, said)  # else it may have come to no other point
        errors.write(said)
    after = tables_of(folder)
    for point, file in damaged.items():
        found = rows_of(after, point)
        (row,) = found["points"].to_dicts()
        told = point in errors.getvalue() or row["notes"] != good["points"]["notes"][0] or row["status"] != "ok"
        same = all(found[name].equals(good[name]) for name in before)
        unnoticed = file.name in UNTOLD and kind in ("missing", "folder")
        untold = unnoticed or (kind == "half" and (file.suffix == ".arrow" or file.name == "attempts.jsonl"))
        assert told or same or untold, (file, kind)
    assert rows_of(after, IDS[1])["steps"].equals(rows_of(before, IDS[1])["steps"])


def test_a_record_of_another_point_is_told(copy):
    folder = copy()
    shutil.copy(folder / "points" / IDS[1] / "record.json", folder / "points" / POINT / "record.json")
    analyse(folder)
    run(commands(folder)[0])
    row = tables_of(folder)["points"].row(by_predicate=pl.col("point_id") == POINT, named=True)
    assert row["notes"] == f"no tables: record.json is of point {IDS[1]}" and row["step_ms_mean"] is None


@pytest.mark.parametrize("kind", KINDS[:2])
def test_derived_files_and_the_list_of_points(whole, copy, kind):
    files = [path.relative_to(whole) for path in whole.rglob("*.parquet") if "derived" in path.parts]
    kept = [file for file in sorted(files) if "traces" not in file.parts or file.stem in ("kernels", "windows")]
    for file in [*kept, whole.joinpath("sweep.json").relative_to(whole)]:
        folder = copy()
        damage(folder / file, kind, None)
        said = "".join(run(command)[1] for command in commands(folder)[:3])
        assert file.name in said and "Traceback" not in said, (file, kind, said)
        if file.name != "sweep.json" and "traces" not in file.parts:  # the sweep, run again, makes them anew
            with redirect_stderr(io.StringIO()) as errors:
                made = Chunk(folder / "derived/points-0000").made
            assert made.is_empty() and (kind == "missing" or file.name in errors.getvalue()), (file, kind)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_tables_of_a_sweep(whole, copy, kind):
    for file in sorted((whole / "tables").iterdir()):
        folder = copy()
        damage(folder / "tables" / file.name, kind, None)
        for command in commands(folder)[1::3]:
            status, said = run(command)
            if kind == "missing" and file.stem != "points":
                assert status == 0
            else:
                assert status in (1, 2) and len(said.splitlines()) == 1 and file.name in said, (file, kind, said)
