"""Readers of traces: a tiny export made here, a real Kineto trace of a CPU, and real traces where they lie about."""

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from nightsweep.analysis.readers.kineto import reader as kineto
from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.analysis.readers.nsys import source
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables.events import EVENTS

DATA = Path(__file__).parents[2] / "data"
REAL = Path(__file__).parents[4] / "shared/traces"
PID, TID = 77, 78
GLOBAL = (1 << 48) + PID * 0x1000000

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (copyKind INTEGER, start INTEGER, end INTEGER, deviceId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER,
  nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
"""


def make_nsys(path: Path) -> Path:
    """An export of two steps: text by id for the first step, in place for the second; the GPU lags the host."""
    names = ["gemm()", "ncclDevKernel_AllReduce", "cudaLaunchKernel_v7000", "step 0", "cudaStreamSynchronize"]
    base = GLOBAL
    with sqlite3.connect(path) as db:
        db.executescript(SCHEMA)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1000000, '')")
        kernels = [(150, 180, 1, 0), (170, 190, 2, 1), (250, 300, 3, 0)]
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, ?, ?, ?, NULL)",
            [(s, e, c, base, n) for s, e, c, n in kernels],
        )
        copies = [(1, 240, 245, 4, 64), (8, 120, 140, 5, 32), (3, 310, 320, 6, 8)]
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 0, 7, ?, ?, ?)",
            [(k, s, e, c, base, b) for k, s, e, c, b in copies],
        )
        calls = [(101, 1, 2), (102, 2, 2), (201, 3, 2), (200, 4, 2), (99, 5, 2), (202, 6, 2), (210, 9, 4)]
        db.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
            [(t, t + 1, base + TID, c, n) for t, c, n in calls],
        )
        marks = [(90, 195, 59, None, 3), (195, 290, 60, "step 1", None), (90, 92, 59, "data", None)]
        marks += [(192, 235, 59, "data", None), (100, None, 59, "open", None), (100, 110, 34, "mark", None)]
        db.executemany(f"INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, {base + TID}, ?)", marks)
    return path


def assert_contract(events):
    assert set(events) == set(EVENTS)
    for kind, frame in events.items():
        assert frame.schema == column.schema(EVENTS[kind]), kind


def refuse_pages(monkeypatch):
    """From here on no table is read from the pages of its file."""

    def refuse(path):
        raise source.UnsupportedLayout("a test")

    monkeypatch.setattr(source, "Pages", refuse)


@pytest.fixture(params=["pages", "SQLite"])
def export(request, tmp_path, monkeypatch):
    if request.param == "SQLite":
        refuse_pages(monkeypatch)
    return make_nsys(tmp_path / "trace-r0.sqlite")


def test_a_range_of_hours_and_a_domain_of_many(export):
    """As a column that came later, so that older rows do not have it."""
    hours = 5 * 3600 * 10**9
    with sqlite3.connect(export) as db:
        before = nsys.read(export).events["nvtx"].height
        db.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN domainId INTEGER")
        db.execute(f"INSERT INTO NVTX_EVENTS VALUES (50, {50 + hours}, 59, 'all', {GLOBAL + TID}, NULL, 0)")
        db.execute(f"INSERT INTO NVTX_EVENTS VALUES (10, 11, 75, 'mine', {GLOBAL + TID}, NULL, 70000)")
        db.execute(f"INSERT INTO NVTX_EVENTS VALUES (60, 70, 59, 'own', {GLOBAL + TID}, NULL, 70000)")
    marks = nsys.read(export).events["nvtx"]
    assert marks.height == before + 2
    found = {str(row["name"]): row for row in marks.iter_rows(named=True)}
    assert found["all"]["end_ns"] - found["all"]["start_ns"] == hours and found["all"]["domain"] is None
    assert found["own"]["domain"] == "mine" and found["own"]["end_ns"] - found["own"]["start_ns"] == 10
    assert found["open"]["end_ns"] == found["all"]["end_ns"]  # the last event


def test_nsys(export):
    events = nsys.read(export).events
    assert_contract(events)
    assert events["kernels"]["name"].to_list() == ["gemm()", "ncclDevKernel_AllReduce", "gemm()"]
    assert events["kernels"]["process"].unique().to_list() == [PID]
    assert events["kernels"]["start_ns"][0] == 1_000_150
    assert events["copies"]["direction"].to_list() == ["HtoD", "DtoD", "other"]
    assert events["runtime"]["name"][0] == "cudaLaunchKernel"
    assert events["runtime"]["thread"][0] == TID
    assert events["nvtx"]["name"].to_list() == ["step 0", "step 1", "data", "data", "open"]
    assert events["nvtx"]["end_ns"][-1] == events["nvtx"]["end_ns"].max()  # a range that was never closed
    assert events["memsets"].is_empty() and events["operators"].is_empty()


def test_nsys_numbers_of_unusual_size(export):
    hours, device = 3 * 3600 * 10**9, 300
    with sqlite3.connect(export) as db:
        db.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start + ?, deviceId = ? WHERE start = 250", (hours, device)
        )
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET end = start - 5 WHERE correlationId = 9")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET streamId = NULL, correlationId = NULL WHERE copyKind = 8")
    events = nsys.read(export).events
    kernels, calls, copies = (events[kind] for kind in ("kernels", "runtime", "copies"))
    assert (kernels["end_ns"] - kernels["start_ns"]).to_list() == [30, 20, hours]
    assert kernels["device"].to_list() == [0, 0, device] and kernels["stream"].to_list() == [7, 7, 7]
    assert calls.filter(pl.col("correlation") == 9).select(pl.col("end_ns") - pl.col("start_ns")).item() == -5
    assert copies["stream"].to_list() == [7, None, 7] and copies["correlation"].to_list() == [4, None, 6]


def test_nsys_rows_in_a_write_ahead_log(export):
    with closing(sqlite3.connect(export)) as db:  # whose end moves them to the file itself
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 555 WHERE start = 250")
        db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (600, 666, 0, 7, 9, {GLOBAL}, 0, NULL)")
        db.commit()
        kernels = nsys.read(export).events["kernels"]
    assert kernels["end_ns"].to_list() == [1_000_180, 1_000_190, 1_000_555, 1_000_666]


def test_nsys_rows_keep_their_order_beside_an_index(export):
    """SQLite reads an index where that holds all columns, in its order."""
    with closing(sqlite3.connect(export)) as db:
        db.execute(
            "CREATE TABLE GPU_METRICS (timestamp INT, typeId INT, metricId INT, value INT, extra TEXT, more TEXT)"
        )
        db.execute("CREATE INDEX i ON GPU_METRICS (value, timestamp, typeId, metricId)")
        db.executemany("INSERT INTO GPU_METRICS VALUES (?, 0, 0, ?, '', '')", [(10, 3), (20, 2), (30, 1)])
        db.commit()
    assert nsys.read(export).events["counters"]["value"].to_list() == [3, 2, 1]


def test_nsys_row_ids_far_apart(export):
    ids = (2**33, 2**40, 2**63 - 1)
    columns = "rowid, start, end, deviceId, streamId, correlationId, globalPid, demangledName"
    with closing(sqlite3.connect(export)) as db:
        rows = [(number, 600 + place, 700, 0, 7, 9, GLOBAL, 0) for place, number in enumerate(ids)]
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) VALUES ({', '.join('?' * 8)})", rows)
        db.commit()
    starts = nsys.read(export).events["kernels"]["start_ns"].to_list()
    assert starts == [1_000_150, 1_000_170, 1_000_250, 1_000_600, 1_000_601, 1_000_602]


def test_nsys_text_after_many_ids(export):
    with sqlite3.connect(export) as db:
        db.execute("DELETE FROM NVTX_EVENTS")
        rows = [(i, i + 1, 59, None if i < 3000 else "late", 1, 3) for i in range(3001)]
        db.executemany("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", rows)
    assert nsys.read(export).events["nvtx"]["name"].unique().sort().to_list() == ["late", "step 0"]


def test_nsys_folder_of_parquet(export, tmp_path):
    folder = tmp_path / "trace-r0_pqtdir"
    folder.mkdir()
    with sqlite3.connect(export) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = db.execute(f"SELECT * FROM {table}")
            columns = [c[0] for c in cursor.description]
            pl.DataFrame(cursor.fetchall(), schema=columns, orient="row").write_parquet(folder / f"{table}.parquet")
    one, other = nsys.read(export).events, nsys.read(folder).events
    assert all(one[k].equals(other[k]) for k in one)


@pytest.mark.parametrize("reader", [nsys, kineto])
@pytest.mark.parametrize("content", [None, b"", b"no trace", b"[]", b"\x1f\x8b\x08"])
def test_not_a_trace(reader, content, tmp_path):
    path = tmp_path / "trace-r0.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"trace-r0\.json\.gz: [^\n]*$"):
        reader.read(path)


def test_kineto_of_a_cpu():
    events = kineto.read(DATA / "kineto-cpu-r0.json.gz").events
    assert_contract(events)
    assert events["kernels"].is_empty()
    steps = events["nvtx"].filter(pl.col("name").cast(pl.String).str.contains(r"^step \d+$"))
    assert steps["name"].to_list() == ["step 5", "step 6", "step 7"]
    assert (steps["end_ns"] > steps["start_ns"]).all() and steps["start_ns"].min() > 1_700_000_000 * 10**9
    assert events["operators"].filter(pl.col("name") == "aten::addmm").height == 6


@pytest.mark.skipif(not REAL.is_dir(), reason="no public traces here")
@pytest.mark.parametrize("name", [p.name for p in sorted(REAL.glob("*.sqlite"))])
def test_real_exports(name):
    events = nsys.read(REAL / name).events
    assert_contract(events)
    with sqlite3.connect(f"{(REAL / name).as_uri()}?mode=ro&immutable=1", uri=True) as db:
        have = {t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for kind, table in {"kernels": "KERNEL", "copies": "MEMCPY", "memsets": "MEMSET", "runtime": "RUNTIME"}.items():
            full = f"CUPTI_ACTIVITY_KIND_{table}"
            sql = f'SELECT count(*), coalesce(sum("end" - start), 0) FROM {full}'
            count, took = db.execute(sql).fetchone() if full in have else (0, 0)
            frame = events[kind]
            assert (frame.height, (frame["end_ns"] - frame["start_ns"]).sum()) == (count, took)
    assert events["kernels"]["name"].null_count() == 0


@pytest.mark.skipif(not REAL.is_dir(), reason="no public traces here")
def test_real_kineto():
    events = kineto.read(REAL / "tracelens_h100_Qwen_Qwen1.5-0.5B-Chat.json.gz").events
    assert_contract(events)
    kinds = ("kernels", "copies", "memsets", "runtime", "nvtx", "operators")
    assert [events[k].height for k in kinds] == [1465, 1, 241, 1922, 1, 4186]
    calls = events["runtime"].select("process", "correlation")
    assert events["kernels"].join(calls, on=["process", "correlation"], how="semi").height > 700
