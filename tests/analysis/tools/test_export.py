"""Other tools' doors: Perfetto's trace events, MLPerf's log lines and CSV, from real runs of H200s."""

import gzip
import json
import sqlite3
from collections import Counter, defaultdict

import polars as pl
import pytest

from nightsweep.analysis.ingest import point_tables
from nightsweep.analysis.tools import cli
from nightsweep.analysis.tools.export.perfetto import Lane
from tests.analysis.h200 import unpacked as point_of
from tests.fakes.ranks import unpack


def run(*arguments):
    return cli.main(["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    return [unpack(f"ddp-r{rank}", folder) for rank in (0, 1)]


@pytest.fixture(scope="module")
def exported(traces, tmp_path_factory):
    out = tmp_path_factory.mktemp("perfetto") / "all.json.gz"
    assert run(*traces, "--to", "perfetto", "--out", out) == 0
    packed = out.read_bytes()
    assert packed[3] == 0, "the header names no file: a temporary one has this host in its name"
    return json.loads(gzip.decompress(packed))


def of(events, phase):
    return [event for event in events["traceEvents"] if event["ph"] == phase]


def test_every_event_of_the_traces_is_there(exported, traces):
    slices = Counter((event["pid"], event["cat"]) for event in of(exported, "X"))
    for rank, trace in enumerate(traces):
        with sqlite3.connect(trace) as db:
            count = {t: db.execute(f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{t}").fetchone()[0] for t in
                     ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")}  # fmt: skip
        assert slices[rank, "kernels"] + slices[rank, "communication"] == count["KERNEL"]
        assert slices[rank, "communication"] > 0
        assert slices[rank, "copies"] == count["MEMCPY"]
        assert slices[rank, "memsets"] == count["MEMSET"]
        assert slices[rank, "API"] == count["RUNTIME"]
        assert slices[rank, "ranges"] > 0


def test_events_are_valid_for_perfetto(exported):
    assert set(exported) == {"displayTimeUnit", "traceEvents"}
    named = {(e["pid"], e.get("tid")): e["args"]["name"] for e in of(exported, "M") if e["name"].endswith("_name")}
    assert named[0, None] == "rank 0" and named[1, None] == "rank 1"
    lanes = defaultdict(list)
    for event in of(exported, "X"):
        assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["name"], str)
        lanes[event["pid"], event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    assert lanes.keys() == {lane for lane in named if lane[1] is not None}
    for events in lanes.values():
        lane = Lane(0)
        for start, length in sorted(events, key=lambda event: (event[0], -event[1])):
            assert lane.takes(start, start + length)  # they nest


def test_times_are_microseconds_from_the_window_start(exported, traces):
    with sqlite3.connect(traces[0]) as db:
        longest = db.execute('SELECT max("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()[0]
    kernels = [e for e in of(exported, "X") if e["pid"] == 0 and e["cat"] in ("kernels", "communication")]
    assert max(event["dur"] for event in kernels) == pytest.approx(longest / 1000)
    assert min(event["ts"] for event in of(exported, "X")) == 0


def test_a_window_of_steps_holds_these_alone(traces, tmp_path, capsys):
    assert run(traces[0], "--to", "perfetto", "--steps", "3", "--out", tmp_path / "w.json") == 0
    events = json.loads((tmp_path / "w.json").read_text())
    names = {event["name"] for event in of(events, "X") if event["cat"] == "ranges"}
    assert "step 3" in names
    launched = {e["args"].get("step") for e in of(events, "X") if e["cat"] == "kernels"}
    assert 3 in launched and launched <= {2, 3, 4, None}
    capsys.readouterr()
    assert run(traces[0], "--to", "perfetto", "--steps", "900", "--out", tmp_path / "none.json") == 2
    assert "no step from 900 to 900; the trace has" in capsys.readouterr().err
    assert run(traces[0], "--to", "perfetto", "--ms", "5-1", "--out", tmp_path / "none.json") == 2
    assert "--ms 5-1: expected FROM-TO" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["w.json"]


def test_slices_that_overlap_without_nesting_share_no_lane():
    lane = Lane(1)
    assert lane.takes(0, 10) and lane.takes(2, 5) and lane.takes(5, 10)
    assert not lane.takes(7, 12)
    assert lane.takes(10, 12)


def test_samples_of_gpus_become_counters(tmp_path, traces):
    point = point_of("control", tmp_path)
    log = next(point.glob("timed/nvml-*.arrow"))
    tables = tmp_path / "tables"
    assert cli.main(["ingest", str(traces[0]), "--out", str(tables)]) == 0
    samples = point_tables.ingest(point, tmp_path / "tables")["gpu_samples"].filter(pl.col("look") == "timed")
    shift = samples["t_ns"].min() - pl.read_parquet(tables / "kernels.parquet")["start_ns"].min()
    for name in ("kernels", "copies", "memsets", "runtime", "nvtx", "graphs", "operators"):  # the run of the samples
        frame = pl.read_parquet(tables / f"{name}.parquet")
        frame.with_columns(pl.col("start_ns", "end_ns") + shift).write_parquet(tables / f"{name}.parquet")
    assert run(tables, "--to", "perfetto", "--nvml", log, "--out", tmp_path / "c.json") == 0
    counters = of(json.loads((tmp_path / "c.json").read_text()), "C")
    power = [event for event in counters if event["name"].endswith("power (W)")]
    assert power and all(60 < event["args"]["value"] < 800 for event in power)


def test_csv_holds_what_the_tables_hold(tmp_path):
    point = point_of("two-nodes", tmp_path)
    point_tables.write(point_tables.ingest(point, tmp_path / "tables"), tmp_path / "sweep/tables")
    assert run(tmp_path / "sweep", "--to", "csv", "--out", tmp_path / "csv") == 0
    assert run(tmp_path / "sweep", "--to", "csv", "--out", tmp_path / "csv") == 2, "nothing is overwritten"
    for file in (tmp_path / "sweep/tables").iterdir():
        frame = pl.read_parquet(file)
        found = pl.read_csv(tmp_path / f"csv/{file.stem}.csv", infer_schema=False)
        assert found.columns == frame.columns and found.height == frame.height
    hosts = pl.read_parquet(tmp_path / "sweep/tables/points.parquet")["hosts"][0].to_list()
    assert pl.read_csv(tmp_path / "csv/points.csv")["hosts"][0] == ";".join(hosts)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--to", "csv"], "no tables; expected results/SWEEP"),
        (["--to", "csv", "--steps", "1"], "--to csv takes one folder, and no window or log"),
        (["--to", "perfetto"], "nothing of the traces could be read"),
    ],
)
def test_bad_input_gets_a_line(given, says, tmp_path, capsys):
    assert run(tmp_path, *given, "--out", tmp_path / "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and line.startswith("nightsweep export: ")
    assert run(tmp_path / "absent", *given[:2], "--out", tmp_path / "out") == 2
    assert "absent: is not there" in capsys.readouterr().err


def test_what_cannot_be_read_or_written_is_named(traces, tmp_path, capsys):
    tables = tmp_path / "tables"
    assert cli.main(["ingest", str(traces[0]), "--out", str(tables)]) == 0
    capsys.readouterr()
    out = tmp_path / "file"
    out.touch()
    for kind in (["csv", "--out", out], ["perfetto", "--out", out / "x.json"]):
        assert run(tables, "--to", *kind) == 2
        assert capsys.readouterr().err == f"nightsweep export: {out}: is there already, and is no folder\n"
    assert run(tables, "--to", "perfetto", "--out", "/proc/x.json") == 2
    assert capsys.readouterr().err == "nightsweep export: /proc/x.json: No such file or directory\n"
    (tables / "copies.parquet").write_text("cut")
    for kind in ("csv", "perfetto"):
        assert run(tables, "--to", kind, "--out", tmp_path / kind) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{tables}/copies.parquet: cut, or no table" in line
    (tables / "copies.parquet").unlink()
    assert run(tables, "--to", "perfetto", "--out", tmp_path / "perfetto") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tables}/copies.parquet: no such file" in line


def test_a_window_of_time_ends_with_the_trace(traces, tmp_path, capsys):
    for end in ("1e9", "inf"):
        assert run(traces[0], "--to", "perfetto", "--out", tmp_path / "out.json", "--ms", f"0-{end}") == 0
        assert run(traces[0], "--to", "perfetto", "--out", tmp_path / "out.json") == 0
        window, whole = capsys.readouterr().out.splitlines()
        assert window == whole
