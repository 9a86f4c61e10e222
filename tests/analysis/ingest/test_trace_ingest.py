"""`nightsweep ingest`: traces of any origin to tables, and one clear line where that cannot be."""

import gzip
import shutil
import sqlite3

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from nightsweep.analysis.ingest import trace_tables
from nightsweep.analysis.tables import trace_files
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.analysis.tools import cli
from tests.analysis.readers.test_readers import DATA, make_nsys
from tests.bench import tile
from tests.fakes.nsys import HANGS, left_behind, stand_in
from tests.fakes.ranks import unpack


def run(*arguments):
    return cli.main(["ingest", *map(str, arguments)])


def table(folder, name):
    return pl.read_parquet(folder / f"{name}.parquet")


def test_every_table_as_documented(tmp_path):
    assert run(unpack("ddp-r0", tmp_path), "--out", tmp_path / "out") == 0
    assert {f.stem for f in (tmp_path / "out").iterdir()} == set(TRACE_TABLES)
    for name, columns in TRACE_TABLES.items():
        found = pl.read_parquet_schema(tmp_path / f"out/{name}.parquet")
        text = {n: pl.String() if c.dtype == pl.Categorical() else c.dtype for n, c in columns.items()}
        assert dict(found) == text, name
    kernels = table(tmp_path / "out", "kernels")
    assert kernels["nvtx_path"].str.contains("^step 3/forward").any() and kernels["step"].null_count() < 100
    assert set(table(tmp_path / "out", "windows")["source"]) == {"nvtx"}


def test_copies_against_bandwidth_and_the_view_of_hta(tmp_path):
    assert run(unpack("ddp-r0", tmp_path), "--out", tmp_path / "out") == 0
    temporal = table(tmp_path / "out", "temporal").row(0, named=True)
    assert temporal["span_ns"] == temporal["idle_ns"] + temporal["compute_ns"] + temporal["non_compute_ns"] > 0
    assert 0 < temporal["overlap_percent"] < 100
    copies, rates = table(tmp_path / "out", "copies"), table(tmp_path / "out", "bandwidth")
    moved = copies.filter(pl.col("direction") == "HtoD")["bytes"].sum()
    assert rates.filter(pl.col("direction") == "HtoD")["bytes"].sum() == moved > 0
    assert set(rates["rank"]) == {0} and (rates["bytes_per_s"] > 0).all()


def test_parquet_gives_the_same_tables(tmp_path):
    export = unpack("zero3-r0", tmp_path)
    tile.parquet(export, tmp_path / "zero3-r0_pqtdir")
    for path, out in ((export, "a"), (tmp_path / "zero3-r0_pqtdir", "b")):
        assert run(path, "--out", tmp_path / out) == 0
    for name in TRACE_TABLES.keys() - {"reports"}:
        frames = [table(tmp_path / out, name) for out in ("a", "b")]
        one, other = (f.with_columns(report=pl.lit("")) if "report" in f.columns else f for f in frames)
        assert_frame_equal(one, other)


def test_ranks_of_one_file_follow_each_other(tmp_path):
    """Also where one rank's text is categorical and another's, which has none, is not."""
    schemas = [{"rank": pl.Int64, "name": kind} for kind in (pl.Categorical(), pl.String(), pl.Categorical())]
    rows = [[(0, "a"), (0, None)], [(1, "b")], [(2, "c"), (2, "a")]]
    frames = [pl.DataFrame(r, s, orient="row") for r, s in zip(rows, schemas, strict=True)]
    for order in ((0, 1, 2), (1, 0, 2)):
        with trace_files.Writer(tmp_path) as files:
            for place in order:
                files.add({"t": frames[place]})
        assert pl.read_parquet(tmp_path / "t.parquet").rows() == [row for place in order for row in rows[place]]


def test_no_file_of_a_bad_end(tmp_path):
    with pytest.raises(ValueError), trace_files.Writer(tmp_path) as files:
        files.add({"t": pl.DataFrame({"a": [1]})})
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_joint_tables(tmp_path):
    """Two files: ranks by their names, on one clock, collectives matched, the late rank named."""
    out = tmp_path / "out"
    assert run(unpack("zero3-r1", tmp_path), unpack("zero3-r0", tmp_path), "--out", out) == 0
    reports = table(out, "reports")
    assert dict(zip(reports["report"], reports["rank"], strict=True)) == {"zero3-r1.sqlite": 1, "zero3-r0.sqlite": 0}
    for name in ("kernels", "step_parts", "api_sum", "nvtx_gpu"):
        assert set(table(out, name)["rank"]) == {0, 1}, name
    collectives = table(out, "collectives")
    assert set(collectives["matched_ranks"]) == {2} and collectives["bus_bandwidth"].null_count() == 0
    assert table(out, "file_clocks")["residual_ns"].max() < 2000
    late = table(out, "waited_for").filter(pl.col("step").is_null())
    assert (
        late["late_ns"].sum()
        == collectives["wait_ns"].sum() - collectives.filter(pl.col("rank") == pl.col("late_rank"))["wait_ns"].sum()
    )
    split = (
        table(out, "stragglers").group_by("rank", "step").agg(pl.col("duration_ns").sum(), pl.col("late_ns").first())
    )
    assert (split["duration_ns"] == split["late_ns"]).all() and split.height


def test_traces_of_the_same_rank_are_no_ranks_of_one_step(tmp_path, capsys):
    """As PyTorch's profiler writes them, one after the other, with the rank in them."""
    kineto = DATA / "kineto-h200-ddp-r0.json.gz"
    other = shutil.copy(kineto, tmp_path / "host.1795269671.pt.trace.json.gz")
    (link := tmp_path / "link.json.gz").symlink_to(other)
    twice = [((own, other), "named twice") for own in (other, link)]
    for traces, said in (((kineto, other), f"and so is {kineto}; "), *twice):
        for command in (["diagnose"], ["ingest", "--out", str(tmp_path / "out")]):
            assert cli.main([*command, *map(str, traces)]) == 2
            error = capsys.readouterr().err
            assert f"{traces[0] if said == 'named twice' else other}: is " in error
            assert said in error and error.count("\n") == 1
            assert not (tmp_path / "out").exists()


def test_traces_of_two_runs_are_no_ranks_of_one_step(tmp_path, capsys):
    """By UTC 40 s apart, without a common collective; and more than an hour, the script being the same."""
    one, later = unpack("ddp-r0", tmp_path), set_clock(unpack("ddp-r1", tmp_path), "utcEpochNs + 4000 * 1000000000")
    for traces, apart in (((one, unpack("zero3-r1", tmp_path)), 40), ((one, later), 4000)):
        for command in (["diagnose"], ["ingest", "--out", str(tmp_path / "out")]):
            assert cli.main([*command, *map(str, traces)]) == 2
            error = capsys.readouterr().err
            assert f"{traces[1]}: its steps are by UTC {apart} s away from those of {one}; " in error
            assert error.count("\n") == 1
    good, problems = trace_tables.write_all([one, later], tmp_path / "point", of_one_run=True)
    assert len(good) == 2 and not problems  # of a point's ranks only a clock can be wrong


def test_traces_on_clocks_of_their_own_are_of_one_run(tmp_path):
    """As of two hosts that count from their boots: nothing tells when each of the steps was."""
    one, other = (set_clock(unpack(f"ddp-r{n}", tmp_path), 4 * 10**12 * n) for n in (0, 1))
    with sqlite3.connect(other) as db:
        db.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")  # no communicators
    assert run(one, other, "--out", tmp_path / "out") == 0


def set_clock(path, epoch_ns):
    """The export with another moment at which its session began."""
    with sqlite3.connect(path) as db:
        db.execute(f"UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = {epoch_ns}")
    return path


def test_times_of_another_clock_are_moved(tmp_path):
    late = set_clock(unpack("ddp-r1", tmp_path), "utcEpochNs + 3000000000")
    assert run(unpack("ddp-r0", tmp_path), late, "--out", tmp_path / "out") == 0
    offsets = dict(table(tmp_path / "out", "file_clocks").select("rank", "offset_ns").rows())
    assert offsets[0] == 0 and offsets[1] == pytest.approx(3e9, abs=5000)
    steps = table(tmp_path / "out", "windows").group_by("step").agg(pl.col("start_ns").max() - pl.col("start_ns").min())
    assert steps["start_ns"].max() < 100_000_000


def test_the_same_again(tmp_path):
    for out in ("a", "b"):
        run(unpack("ddp-r0", tmp_path), "--out", tmp_path / out)
    for name in TRACE_TABLES:
        assert table(tmp_path / "a", name).equals(table(tmp_path / "b", name)), name


def test_kineto_and_nsys_side_by_side(tmp_path):
    nsys = set_clock(unpack("ddp-r1", tmp_path), "utcEpochNs - 90 * 1000000000")  # both ran that much later
    assert run(DATA / "kineto-h200-ddp-r0.json.gz", nsys, "--out", tmp_path / "out") == 0
    assert set(table(tmp_path / "out", "reports")["format"]) == {"kineto", "nsys"}


@pytest.mark.parametrize("content", [None, b"", b"no trace", b"SQLite format 3\x00" + b"\x00" * 84])
def test_not_a_trace(content, tmp_path, capfd):
    path = tmp_path / "x.sqlite"
    if content is not None:
        path.write_bytes(content)
    assert run(path, "--out", tmp_path / "out") == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith(f"nightsweep ingest: {path}: ")
    assert not (tmp_path / "out").exists()


def test_a_bad_one_among_good_ones(tmp_path, capfd):
    assert run(tmp_path / "none.sqlite", unpack("ddp-r0", tmp_path), "--out", tmp_path / "out") == 1
    assert capfd.readouterr().err == f"nightsweep ingest: {tmp_path / 'none.sqlite'}: no such file\n"
    assert table(tmp_path / "out", "kernels").height > 2000


def test_a_truncated_export_is_read_as_far_as_it_goes(tmp_path, capfd):
    path = unpack("zero3-r0", tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    assert run(path, "--out", tmp_path / "out") == 1
    assert "cannot be read" in capfd.readouterr().err
    report = table(tmp_path / "out", "reports")
    assert report["partial"].to_list() == [True] and len(report["problems"][0]) >= 1


def test_from_the_future(tmp_path, capfd):
    path = make_nsys(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '4.1.0')")
    assert run(path, "--out", tmp_path / "out") == 1
    assert "export schema 4.1.0" in capfd.readouterr().err
    assert table(tmp_path / "out", "kernels").height == 3


def test_a_missing_table_is_distinguished_from_an_empty_one(tmp_path):
    path = make_nsys(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY")
    assert run(path, "--out", tmp_path / "out") == 0
    absent = set(table(tmp_path / "out", "reports")["absent"][0])
    assert "memsets" in absent and "copies" not in absent


def test_a_report_without_nsys(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "x.nsys-rep").write_bytes(b"x")
    assert run(tmp_path / "x.nsys-rep", "--out", tmp_path / "out") == 2
    assert "there is no nsys on the PATH" in capfd.readouterr().err


def test_a_report_whose_export_hangs(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("nightsweep.analysis.ingest.trace_tables.EXPORT_TIMEOUT_S", 0.5)
    stand_in(tmp_path, monkeypatch, export=HANGS)
    (tmp_path / "x.nsys-rep").write_bytes(b"x")
    assert run(tmp_path / "x.nsys-rep", "--out", tmp_path / "out") == 2
    assert f"{tmp_path / 'x.nsys-rep'}: `nsys export` did not end within 0.5 s" in capfd.readouterr().err
    assert left_behind(tmp_path) == []


def test_out_is_a_file(tmp_path, capfd):
    (tmp_path / "out").write_text("")
    assert run(unpack("ddp-r0", tmp_path), "--out", tmp_path / "out") == 2
    assert "is no folder" in capfd.readouterr().err


def test_a_truncated_kineto_trace(tmp_path, capfd):
    text = gzip.decompress((DATA / "kineto-h200-ddp-r0.json.gz").read_bytes())
    (tmp_path / "x.json").write_bytes(text[: len(text) // 2])
    assert run(tmp_path / "x.json", "--out", tmp_path / "out") == 1
    assert table(tmp_path / "out", "reports")["partial"].to_list() == [True]
    assert table(tmp_path / "out", "kernels").height > 100 and capfd.readouterr().err.count("\n") >= 1
    # Its kernels come after its calls: steps without their kernels would look idle.
    assert not table(tmp_path / "out", "windows")["counted"].any()
    assert table(tmp_path / "out", "step_parts").is_empty()


def parquet_of(path):
    """The same export as a folder."""
    folder = path.with_name(f"{path.stem}_pqtdir")
    folder.mkdir()
    with sqlite3.connect(path) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = db.execute(f'SELECT * FROM "{name}"')
            frame = pl.DataFrame(
                cursor.fetchall(), schema=[c[0] for c in cursor.description], orient="row", infer_schema_length=None
            )
            frame.write_parquet(folder / f"{name}.parquet")
    return folder


def counts(trace, out):
    """Whether its steps count."""
    assert run(trace, "--out", out) == 1
    return bool(table(out, "windows")["counted"].any())


def test_a_trace_with_a_hole_in_it_is_as_one_that_is_cut(tmp_path):
    text = bytearray(gzip.decompress((DATA / "kineto-h200-ddp-r0.json.gz").read_bytes()))
    for name, at, size in (("event", 2, 2000), ("many", 5, len(text) // 4)):
        holed = bytearray(text)
        holed[len(text) * at // 10 : len(text) * at // 10 + size] = bytes(size)
        (tmp_path / f"{name}.json").write_bytes(holed)
        assert counts(tmp_path / f"{name}.json", tmp_path / name) == (name == "event")


def test_damage_to_what_steps_are_not_made_of_cuts_no_trace(tmp_path):
    folder = parquet_of(unpack("ddp-r0", tmp_path))
    (folder / "ENUM_CUDA_UNIF_MEM_MIGRATION.parquet").write_text("garbage")
    assert counts(folder, tmp_path / "few")
    (folder / "CUPTI_ACTIVITY_KIND_MEMCPY.parquet").write_text("garbage")
    assert not counts(folder, tmp_path / "cut")


def test_a_folder_of_parquet_is_the_same(tmp_path):
    path = unpack("ddp-r0", tmp_path)
    folder = parquet_of(path)
    assert run(path, "--out", tmp_path / "a") == 0 and run(folder, "--out", tmp_path / "b") == 0
    for name in TRACE_TABLES.keys() - {"reports"}:
        one, other = (table(tmp_path / each, name) for each in "ab")
        assert one.drop("report", strict=False).equals(other.drop("report", strict=False)), name
    shutil.rmtree(folder)
