"""The table of phases: of records with them, of older ones without, and of attempts that were lost."""

from itertools import groupby

import msgspec
import polars as pl
import pytest

from nightsweep.analysis.ingest.point_tables import as_table, ingest
from nightsweep.analysis.metrics.points import phases
from nightsweep.analysis.readers import point_files
from nightsweep.analysis.sweep import dataset, held_time
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables import points as schemas
from nightsweep.jobs.record.json_files import load_json
from nightsweep.jobs.record.launch_files import Start
from nightsweep.jobs.record.phases import Phase
from nightsweep.jobs.record.record import Record
from tests.analysis.h200 import unpacked

S = 10**9
STEPS, BREAKDOWN = (column.empty(schemas.TABLES[name]) for name in ("steps", "breakdown"))


def record(*marks, status="ok", **more):
    """Of (phase, second, look, start, reason)."""
    names = ("phase", "start_ns", "look", "start", "reason")
    found = [Phase(**dict(zip(names, (mark[0], mark[1] * S, *mark[2:]), strict=False))) for mark in marks]
    return Record(point_id="p", status=status, attempt=2, world_size=4, phases=found, **more)


def table(found, starts=()):
    rows = phases.rows(found, starts, STEPS, BREAKDOWN)
    return as_table("phases", point_files.frame([row | {"point_id": "p"} for row in rows], "phases"))


OK = (
    ("queue", 0), ("job_start", 10), ("launch", 12), ("start", 13, "search", 1, "gpu_out_of_memory"), ("idle", 15),
    ("start", 15, "timed", 2), ("warmup", 20, "timed", 2), ("compile", 21, "timed", 2), ("warmup", 31, "timed", 2),
    ("timed", 33, "timed", 2), ("tracing", 40, "timed", 2), ("traced", 42, "timed", 2), ("tracing", 43, "timed", 2),
    ("idle", 45), ("start", 46, "traced", 3, "rank_exit"), ("idle", 50), ("record", 51), ("end", 52),
)  # fmt: skip


def test_all_phases_add_up_to_the_held_time_of_all_gpus():
    found = table(record(*OK))
    held = found.filter(pl.col("use") != "queue")
    assert held["duration_ns"].sum() == 42 * S and held["gpu_s"].sum() == 4 * 42
    assert found.filter(pl.col("use") == "queue").select("duration_ns", "gpus", "gpu_s").row(0) == (10 * S, 0, 0.0)
    uses = dict(found.group_by("use").agg(pl.col("duration_ns").sum() // S).iter_rows())
    assert uses == {
        "queue": 10, "start": 8, "search": 2, "warm-up": 3, "compile": 10, "timed": 7, "traced": 1, "tracing": 4,
        "idle": 2, "failed": 4, "end": 1,
    }  # fmt: skip
    assert found.select("attempt", "start", "phase").is_unique().all()
    first = found.filter(pl.col("phase") == "tracing").row(0, named=True)
    assert (first["start_ns"], first["duration_ns"], first["look"], first["start"]) == (40 * S, 4 * S, "timed", 2)


def test_all_of_a_point_that_is_not_ok_is_failed_but_the_queue():
    assert set(table(record(*OK, status="failed"))["use"]) == {"queue", "failed"}


def test_lost_attempts_have_the_length_that_is_known():
    times = [f"2026-11-25T0{hour}:00:00.500+00:00" for hour in range(3)]
    zero = 1_795_564_800 * S
    signs = (None, zero + 61 * S, None)  # nothing is known of the second
    starts = [Start(attempt=n + 1, started_at=times[n], host="h", pid=1, earlier_sign_ns=signs[n]) for n in range(3)]
    last = msgspec.structs.replace(record(("launch", 1), ("end", 2)), attempt=3)
    found = table(last, starts)
    lost = found.filter(pl.col("use") == "lost").select("attempt", "duration_ns", "gpu_s").rows()
    assert lost == [(1, 60_500_000_000, 242.0), (2, None, None)]
    assert table(Record(status="failed", world_size=1), starts)["attempt"].to_list() == [1, 2, 3]
    kept = table(record(("launch", 1), ("end", 2)), starts)  # of the second, whose trace the third was for
    assert kept.select("attempt", "use").rows() == [(1, "lost"), (2, "start"), (3, "lost")]


@pytest.mark.parametrize("name", ["two-nodes", "killed"])
def test_an_older_record_tells_what_it_knows_and_the_rest_is_unknown(name, tmp_path):
    point = unpacked(name, tmp_path)
    old = load_json(point / "record.json", Record)
    found = ingest(point, tmp_path / "out")["phases"]
    assert found["duration_ns"].sum() == round(old.wall_s * 1e9)
    for look, run in old.runs.named():
        own = found.filter(pl.col("look") == look)["duration_ns"].sum()
        assert own == ((run.ended_ns or 0) - (run.started_ns or 0))
    timed = found.filter(pl.col("look") == "timed")
    if name == "killed":  # its ranks wrote no steps
        assert timed.select("phase", "use", "reason").rows() == [("unknown", "failed", old.runs.timed.reason)]
        return
    assert timed["phase"].to_list() == ["start", "warmup", "timed", "unknown"]
    steps = point_files.steps(point).filter(pl.col("phase") == "timed")
    slowest = steps["end_ns"].max() - steps.group_by("rank").agg(pl.col("start_ns").min())["start_ns"].max()
    assert timed.filter(pl.col("phase") == "timed")["duration_ns"].item() == slowest
    traced = found.filter(pl.col("look") == "traced")
    assert set(traced["phase"]) == {"traced", "unknown"}
    parts = ingest(point, tmp_path / "out")["breakdown"].group_by("rank", "step").agg(pl.col("duration_ns").sum())
    counted = parts.group_by("rank").agg(pl.col("duration_ns").sum())["duration_ns"].max()
    assert traced.filter(pl.col("phase") == "traced").select("duration_ns", "start_ns").row(0) == (counted, None)


def test_a_sweep_by_use_and_by_kind_of_point_is_its_table():
    ids = {"first": ("ok", None, 20), "again": ("ok", None, 21), "cured": ("ok", 1, 0), "bad": ("failed", None, 22)}
    about = [dict(zip(("point_id", "status", "round", "repeat"), (i, *v), strict=True)) for i, v in ids.items()]
    start = [Start(attempt=1, started_at="1970-01-01T00:00:01.000+00:00", host="h", pid=1)]
    start.append(Start(attempt=2, started_at="1970-01-01T00:01:00.000+00:00", host="h", pid=1, earlier_sign_ns=9 * S))
    parts = [table(record(*OK, status=v[0]), start).with_columns(point_id=pl.lit(i)) for i, v in ids.items()]
    tables = dataset.Tables({"phases": pl.concat(parts), "points": pl.DataFrame(about, infer_schema_length=None)})
    uses = held_time.by_use(tables)
    assert uses["gpu_s"].sum() == 4 * (4 * 42 + 4 * 8) and uses["share"].sum() == pytest.approx(1)
    assert dict(uses.select("use", "gpu_s").iter_rows()) | {"failed": 0} == {
        "timed": 84, "traced": 12, "warm-up": 36, "start": 96, "compile": 120, "tracing": 48, "search": 24, "end": 12,
        "idle": 24, "failed": 0, "lost": 128,
    }  # fmt: skip
    # One that has not begun, and one that failed before, are no first start.
    more = [
        about[0] | {"point_id": "later", "status": "not_run"},
        about[0] | {"point_id": "before", "status": "failed"},
    ]
    dates = ["2026-01-02", "2026-01-03", "2026-01-02", "2026-01-02", None, "2026-01-01"]
    points = pl.DataFrame([*about, *more], infer_schema_length=None).with_columns(started_at=pl.Series(dates))
    tables = dataset.Tables({"phases": tables["phases"], "points": points})
    kinds = held_time.by_kind(tables)
    assert [kind for kind, _ in groupby(kinds["kind"])] == list(held_time.KINDS)
    of_kind = dict(kinds.group_by("kind").agg(pl.col("gpu_s").sum()).iter_rows())
    assert of_kind == dict.fromkeys(held_time.KINDS, 168) | {"lost attempts": 128}
    bad = kinds.filter(pl.col("kind") == "failed points")
    assert "failed" not in set(bad["use"]) and bad.filter(pl.col("use") == "timed")["gpu_s"].item() == 28
