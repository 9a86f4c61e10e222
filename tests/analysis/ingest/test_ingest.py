"""From a point's folder to tables, and from points to a sweep."""

import json
import shutil

import polars as pl
import pytest

from nightsweep.analysis.ingest import point_tables
from nightsweep.analysis.tables import column
from nightsweep.analysis.tables import points as tables
from nightsweep.analysis.tables.part_names import GROUPS
from nightsweep.analysis.tools import collect
from nightsweep.analysis.tools.derive import derive
from nightsweep.jobs.telemetry.gpu.log import Log
from tests.analysis.readers.test_readers import DATA, make_nsys

S = 10**9
SETTINGS = {"workload": "image", "model": "resnet50", "learning_rate": 1, "fault": None, "image_size": 224}


def dump(path, *values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(v) + "\n" for v in values))


def record(status="ok", **more):
    look = {"status": "ok", "reason": None}
    return {
        "point_id": "abc", "sweep": "s", "settings": SETTINGS, "status": status, "reason": None, "message": None,
        "attempt": 1, "wall_s": 9.5, "looks": {"timed": look, "traced": look}, "device": "cuda", "backend": "nccl",
        "tracer": {"used": "nsys", "reason": "GPU"}, "nvml": {"available": True, "reason": None}, "world_size": 2,
        "hosts": [{"hostname": "h", "cpu_model": "C", "gpus": [{"name": "H100"}]}], "failure": None,
    } | more  # fmt: skip


def make_point(path, **more):
    """Two ranks, one warm-up and three timed steps of 1, 2 and 3 s; rank 1 is slower by a half in each."""
    dump(path / "record.json", record(**more))
    for rank in (0, 1):
        steps = []
        for step, seconds in enumerate((5, 1, 2, 3)):
            steps.append(
                {
                    "step": step, "phase": "timed" if step else "warmup", "start_ns": step * S, "end_ns": step * S + S,
                    "data_ns": 10**6, "device_ns": int(seconds * S * (1 + rank / 2)), "loss": 4.0 - step, "samples": 8,
                    "tokens": None,
                }
            )  # fmt: skip
        dump(path / f"timed/steps-r{rank}.jsonl", *steps)
        with (path / f"timed/steps-r{rank}.jsonl").open("a") as f:
            f.write('{"step": 4, "pha')
        window = {"start_ns": 10 * S, "end_ns": 16 * S}
        sizes = {"peak_allocated_bytes": 100 + rank, "peak_rss_bytes": 7, "parameters": 5, "trainable_parameters": 4}
        result = {"rank": rank, "host": "h", "uuid": f"u{rank}", "steps_per_epoch": 10, "window": window, **sizes}
        dump(path / f"timed/rank{rank}.result.json", result)
    log = Log(path / "timed/nvml-h.arrow", {"host": "h"})
    for t in (9, 11, 15, 17):
        for gpu in (0, 1):
            log.add(gpu, f"u{gpu}", {"energy_j": 100.0 * t, "power_instant_w": 90.0}, (t * S, t * S))
    log.close()
    dump(path / "timed/host-h.jsonl", {"t_ns": 1, "host": "h", "cpu_percent": 150})
    make_nsys_at(path)
    return path


def make_nsys_at(path):
    (path / "traced").mkdir()
    for rank in (0, 1):
        make_nsys(path / f"traced/trace-r{rank}.sqlite")


@pytest.fixture
def point(tmp_path):
    return make_point(tmp_path / "points/abc")


OF_POINT = [name for name in tables.TABLES if name not in tables.SWEEP_TABLES]


def assert_contract(frames, names=OF_POINT):
    assert set(frames) == set(names)
    for name, frame in frames.items():
        assert frame.schema == column.schema(tables.TABLES[name]), name


def test_summary(point, tmp_path):
    frames = point_tables.ingest(point, tmp_path / "out")
    assert_contract(frames)
    row = frames["points"].row(0, named=True)
    assert row["step_ms_median"] == 3000 and row["step_ms_mean"] == 3000 and row["step_ms_std"] == 1500
    assert row["step_ms_p95"] == pytest.approx(4350)
    assert row["data_ms_median"] == 1 and row["samples_per_step"] == 16
    assert row["samples_per_s"] == 8 and row["tokens_per_s"] is None and row["epoch_s"] == 30
    assert row["loss_first"] == 4 and row["loss_last"] == 1
    assert row["peak_memory_bytes"] == 101 and row["energy_j"] == pytest.approx(1200)
    assert row["energy_integrated_j"] == pytest.approx(1080) and row["energy_above_idle_j"] is None
    assert row["step_j"] == pytest.approx(400) and row["sample_j"] == pytest.approx(25) and row["token_j"] is None
    assert row["mfu_percent"] is row["flops_per_step"] is None and row["mfu_reason"] == "not counted"
    assert row["accelerator"] == "H100" and row["hosts"] == ["h"] and row["learning_rate"] == 1.0
    assert frames["steps"].height == 8 and frames["failures"].is_empty()
    assert frames["host_samples"]["look"].to_list() == ["timed"]
    assert frames["breakdown"].height == 2 * len(GROUPS)  # of two steps the first does not count
    first = {lane: own["start_ns"].min() for (lane,), own in frames["timeline"].group_by("lane")}
    assert first.pop("call") == 5 and min(first.values()) == 45  # from the start of the step that counts


def test_steps_that_settle_count_for_energy_alone(point, tmp_path):
    """Six of 20 timed steps take 2 s, the others 1 s, by the device's clock; 26 s in all."""
    lines = [{"step": 0, "phase": "warmup", "start_ns": 0, "end_ns": S, "device_ns": 9 * S, "samples": 8}]
    for step in range(1, 21):
        lines.append(
            {"step": step, "phase": "timed", "start_ns": (9 + step) * S, "end_ns": (10 + step) * S, "samples": 8}
            | {"device_ns": (2 if step < 7 else 1) * S, "data_ns": 0, "loss": 1.0}
        )  # fmt: skip
    for rank in (0, 1):
        dump(point / f"timed/steps-r{rank}.jsonl", *lines)
        path = point / f"timed/rank{rank}.result.json"
        dump(path, json.loads(path.read_text()) | {"window": {"start_ns": 10 * S, "end_ns": 36 * S}})
    log = Log(point / "timed/nvml-h.arrow", {"host": "h"})
    for t in (9, 37):
        for gpu in (0, 1):
            log.add(gpu, f"u{gpu}", {"energy_j": 100.0 * t, "power_instant_w": 90.0}, (t * S, t * S))
    log.close()
    frames = point_tables.ingest(point, tmp_path / "out")
    row = frames["points"].row(0, named=True)
    assert row["warm_from"] == 6 and row["steady"] is True and "missing" not in (row["notes"] or "")
    assert row["step_ms_mean"] == row["step_ms_median"] == 1000 and row["step_ms_std"] == 0
    assert row["samples_per_s"] == pytest.approx(16)
    assert row["energy_j"] == pytest.approx(5200) and row["step_j"] == pytest.approx(260)
    assert frames["energy"]["steps"].to_list() == [20, 20]
    assert frames["steps"].filter(rank=0)["phase"].to_list() == ["warmup"] + ["settling"] * 6 + ["timed"] * 14


def test_mfu_is_of_all_ranks_and_the_mean_step(point, tmp_path):
    for rank in (0, 1):
        path = point / f"timed/rank{rank}.result.json"
        flops = {"step": 10**14, "hardware_step": 2 * 10**14}
        own = {"device": "cuda", "device_name": "NVIDIA H100 80GB HBM3", "flops": flops}
        dump(path, json.loads(path.read_text()) | own)
    dump(point / "record.json", record(settings=SETTINGS | {"precision": "tf32"}))
    row = point_tables.ingest(point, tmp_path / "out")["points"].row(0, named=True)
    assert row["flops_per_step"] == 2 * 10**14 and row["peak_flops_per_s"] == 494.7e12 and row["mfu_reason"] is None
    assert row["mfu_percent"] == pytest.approx(100 * 2e14 / (2 * 494.7e12 * 3.0))
    assert row["hfu_percent"] == pytest.approx(2 * row["mfu_percent"])


def test_failed(point, tmp_path):
    looks = {"timed": {"status": "failed"}, "traced": {"status": "skipped"}}
    where = {"first_failed": "timed/rank1.traceback.txt", "rank0": "timed/rank0.stacks.txt"}
    failure = {"rank": 1, "host": "h", "exit_code": 1, "signal": None, "tracebacks": where}
    dump(point / "record.json", record("failed", reason="rank_exception", looks=looks, failure=failure, hosts=None))
    (point / "timed/rank1.traceback.txt").write_text("x" * 9000 + "ValueError: no")
    shutil.rmtree(point / "traced")
    frames = point_tables.ingest(point, tmp_path / "out")
    assert_contract(frames)
    assert frames["points"]["step_ms_mean"].to_list() == [None] and frames["steps"].height == 8
    failed = frames["failures"].row(0, named=True)
    assert failed["rank"] == 1 and failed["reason"] == "rank_exception" and failed["traceback_rank0"] is None
    assert failed["traceback"].endswith("ValueError: no") and len(failed["traceback"]) == 4000


def test_broken_trace_leaves_the_rest(point, tmp_path, capsys):
    (point / "traced/trace-r1.sqlite").write_text("no database")
    read = point_tables.ingest(point, tmp_path / "out")
    assert "trace-r1.sqlite: not an Nsight Systems export" in capsys.readouterr().err
    assert_contract(read)
    assert set(read["breakdown"]["rank"]) == {0} and read["steps"].height == 8


def test_kineto_point_and_determinism(tmp_path):
    (tmp_path / "p/traced").mkdir(parents=True)
    shutil.copy(DATA / "kineto-cpu-r0.json.gz", tmp_path / "p/traced/trace-r0.json.gz")
    for out in ("a", "b"):
        point_tables.write(point_tables.ingest(tmp_path / "p", tmp_path / out), tmp_path / out)
    for name in OF_POINT:
        assert (tmp_path / f"a/{name}.parquet").read_bytes() == (tmp_path / f"b/{name}.parquet").read_bytes()
    assert pl.read_parquet(tmp_path / "a/breakdown.parquet").height == 2 * len(GROUPS)


@pytest.mark.parametrize("files", [[], ["record.json"], ["point.json", "timed/steps-r0.jsonl", "timed/nvml-h.jsonl"]])
def test_empty_and_broken_folders(files, tmp_path, capsys):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{")
    frames = point_tables.ingest(tmp_path, tmp_path / "out")
    assert_contract(frames)
    assert frames["points"].select("status", "reason").row(0) == ("not_run", "no_record")
    said = capsys.readouterr().err.splitlines()
    wanted = [f"{tmp_path}/record.json: holds no Record: Expecting property name enclosed in double quotes"]
    assert [line.partition(": line")[0] for line in said] == (wanted if "record.json" in files else [])


def test_collect(point, tmp_path):
    derived, out = tmp_path / "derived", tmp_path / "out"
    derive(tmp_path, "points-0000", ["abc"], 1)
    points = [{"point_id": "zzz", "settings": SETTINGS}, {"point_id": "abc", "settings": SETTINGS}]
    dump(tmp_path / "sweep.json", {"name": "night", "points": points})
    assert collect.main([str(tmp_path / "sweep.json"), "--derived", str(derived), "--out", str(out)]) == 0
    frames = {name: pl.read_parquet(out / f"{name}.parquet") for name in tables.TABLES}
    assert_contract(frames, tables.TABLES)
    rows = frames["points"].select("point_id", "sweep", "status", "reason", "model").rows()
    assert rows == [("abc", "night", "ok", None, "resnet50"), ("zzz", "night", "not_run", "no_record", "resnet50")]
    assert frames["steps"].height == 8


@pytest.mark.parametrize(
    "known", [{"step_source": "whole run"}, {"ended_early": True}, {}], ids=["whole", "early", "not"]
)
def test_steps_that_a_script_did_not_have_are_no_missing_files(point, tmp_path, known):
    """A script that ends before its window, or has no steps, says so itself."""
    record_file = point / "record.json"
    content = json.loads(record_file.read_text())
    record_file.write_text(json.dumps(content | {"settings": content["settings"] | {"timed_steps": 20}}))
    for path in point.glob("timed/rank*.result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | known))
    notes = point_tables.ingest(point, tmp_path / "out")["points"]["notes"][0] or ""
    assert ("17 of 20 timed steps" in notes) is not bool(known), notes
