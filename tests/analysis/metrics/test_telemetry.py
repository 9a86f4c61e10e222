"""Energy, clocks, the cost of measuring and calibration, on what real runs on H200s left."""

import contextlib
import json
import shutil
import sqlite3

import numpy as np
import polars as pl
import pytest
from msgspec import structs

from nightsweep.analysis.ingest import engine, point_tables
from nightsweep.analysis.metrics.points import cost, energy
from nightsweep.analysis.metrics.ranks import clock
from nightsweep.analysis.readers import gpu_log
from nightsweep.analysis.readers.nsys import reader as nsys
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.launch_files import Window
from nightsweep.jobs.record.point_folder import results_of
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep.order import Order
from nightsweep.jobs.telemetry.gpu import log
from nightsweep.jobs.telemetry.samplers import Started
from tests.analysis.h200 import unpacked
from tests.gpu_host import calibration


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """FSDP2 over two nodes of a real Slurm, one H200 each. The nodes are one machine, so their clocks agree."""
    return unpacked("two-nodes", tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """tests/gpu_host/known_loads.py on a machine with two H200s."""
    return unpacked("calibration", tmp_path_factory.mktemp("calibrated"))


@pytest.fixture(scope="module")
def tables(two_nodes, tmp_path_factory):
    return point_tables.ingest(two_nodes, tmp_path_factory.mktemp("tables"))


def collective_ends(point, rank):
    (found,) = engine.analyse(point / f"traced/trace-r{rank}.sqlite", f"trace-r{rank}.sqlite")
    return clock.collective_ends(found)


def clocks_of(tables, between):
    return tables["clocks"].filter(pl.col("between") == between)


def test_the_trace_and_the_step_loop_agree_to_microseconds(tables):
    rows = clocks_of(tables, "trace-steps")
    assert rows["rank"].to_list() == [0, 1] and rows["events"].min() == 5
    assert rows["offset_us"].abs().max() < 5 and rows["residual_us"].max() < 1


def test_ends_of_collectives_show_that_the_nodes_have_one_clock(tables):
    (row,) = clocks_of(tables, "ranks").to_dicts()
    assert row["rank"] == 1 and row["host"] == "n2" and row["events"] > 100
    assert abs(row["offset_us"]) < 5 and row["residual_us"] < 100


def test_the_clock_of_a_node_a_second_ahead_is_corrected(two_nodes, tables):
    ends = {rank: collective_ends(two_nodes, rank) for rank in (0, 1)}
    ends[1] = ends[1].with_columns(pl.col("end_ns") + 10**9)
    rows = clock.rank_rows(ends)
    assert rows[0]["offset_us"] == pytest.approx(1e6, abs=5)
    offsets = clock.host_offsets(rows, {0: "n1", 1: "n2"})
    assert offsets == {"n2": round(rows[0]["offset_us"] * 1e3)}
    assert clock.host_offsets(rows, {0: "n1", 1: "n1"}) == {}  # one host has one clock, whatever its ranks do


def test_all_times_of_a_node_move_to_the_first_one_s_clock(two_nodes, tables, tmp_path, monkeypatch):
    """The second node's clock, made to be a second ahead in all that it wrote, leaves the tables as they were."""
    point = shutil.copytree(two_nodes, tmp_path / "ahead")
    set_ahead(point)
    moved = point_tables.ingest(point, tmp_path / "tables")
    (row,) = clocks_of(moved, "ranks").to_dicts()
    assert row["offset_us"] == pytest.approx(1e6, abs=5)
    for name, columns in (("steps", ["start_ns", "end_ns"]), ("gpu_samples", ["t_ns"]), ("timeline", ["start_ns"])):
        away = (moved[name].select(columns) - tables[name].select(columns)).max_horizontal()
        assert away.abs().max() < 10_000, name
    for name in ("energy_j", "samples_per_s"):
        assert moved["points"][name][0] == pytest.approx(tables["points"][name][0], rel=1e-9)


def set_ahead(point, by_ns=10**9):
    """Set the second node's UTC forward in its steps, results, samples and trace."""
    for look in ("timed", "traced"):
        path = point / look / "steps-r1.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        moved = [{**line, "start_ns": line["start_ns"] + by_ns, "end_ns": line["end_ns"] + by_ns} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in moved))
        result = json.loads((point / look / "rank1.result.json").read_text())
        result["window"] = {name: at + by_ns for name, at in result["window"].items()}
        (point / look / "rank1.result.json").write_text(json.dumps(result))
        samples = gpu_log.read_log(point / look / "nvml-n2.arrow")
        sink = log.Log(point / look / "nvml-n2.arrow", {"host": "n2"})
        for row in samples.to_dicts():
            values = {k: v for k, v in row.items() if k not in ("t_ns", "mono_ns", "gpu", "uuid")}
            sink.add(row["gpu"], row["uuid"], values, (row["t_ns"] + by_ns, row["mono_ns"]))
        sink.close()
    with contextlib.closing(sqlite3.connect(point / "traced/trace-r1.sqlite")) as trace, trace:
        trace.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?", (by_ns,))


def test_ranks_that_did_different_collectives_are_not_compared(two_nodes):
    ends = collective_ends(two_nodes, 0)
    (row,) = clock.rank_rows({0: ends, 1: ends.head(-1)})
    assert row["events"] == 0 and row["offset_us"] is None


def test_age_of_the_counters_is_measured_from_the_end_of_the_window(tables):
    ages = clocks_of(tables, "counters")["offset_us"] / 1e3
    assert len(ages) == 2 and ages.min() > 0 and ages.max() < 150


@pytest.mark.parametrize(
    ("before", "after", "age_ms"),
    [([50.0], [50.0, 0.0], 100), ([50.0], [50.0], None), ([1.0], [1.0, 0.0], None), ([2.5], [50.0, 0.0], None)],
    ids=["it rests", "it works on", "it did little", "it did less before"],
)
def test_the_age_of_the_counters_is_known_where_the_end_of_the_work_is_seen(before, after, age_ms):
    """Readings of 100 ms each, the last of `before` and `after` being those of all that come before and after."""
    values = before * 20 + after + after[-1:] * (10 - len(after))
    t_ns = [(place - 19) * 100_000_000 for place in range(30)]
    rows = {"uuid": ["GPU-a"] * 30, "t_ns": t_ns, "gpm_span_ns": [100_000_000] * 30, "sm_active_percent": values}
    age = clock.counter_age(pl.DataFrame(rows), "GPU-a", 0)
    assert age is None if age_ms is None else age == pytest.approx(1000 * age_ms)


def test_counter_and_integral_agree_on_the_energy(tables):
    gpus = tables["energy"]
    assert gpus["rank"].to_list() == [0, 1] and gpus["window_s"].min() > 4
    ratio = gpus["integrated_j"] / gpus["counter_j"]
    assert ratio.min() > 0.97 and ratio.max() < 1.03
    assert (gpus["above_idle_j"] < gpus["counter_j"]).all() and gpus["idle_w"].is_between(60, 130).all()
    point = tables["points"].row(0, named=True)
    assert point["energy_j"] == pytest.approx(gpus["counter_j"].sum())
    assert point["token_j"] == pytest.approx(point["step_j"] / (point["samples_per_step"] * 512))


def test_energy_is_unknown_where_samples_do_not_cover_the_window(two_nodes, tables):
    samples = tables["gpu_samples"].filter(pl.col("t_ns") > tables["gpu_samples"]["t_ns"].min() + 15 * 10**9)
    timed = tables["steps"].filter(pl.col("phase") == "timed")
    begin = samples["t_ns"].min()
    window = Window(start_ns=begin - 10**9, end_ns=begin + 10**9)
    results = [structs.replace(result, window=window) for result in results_of(two_nodes)]
    rows = energy.rows(samples, results, timed)
    assert len(rows) == 2
    assert {row["counter_j"] for row in rows} == {None} and {row["token_j"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("window_s", "integrated_j", "reason"),
    [
        (5.0, 130.0, None),
        (4.9, 102.9, None),
        (4.9, 130.0, "the window is 4.9 s long, less than 5, and counter and power differ by 30%"),
        (4.9, None, "the window is 4.9 s long, less than 5, and power cannot be integrated"),
        (0.9, 100.0, "the window is 0.9 s long, less than 1"),
    ],
)
def test_energy_of_a_short_window_is_in_doubt(window_s, integrated_j, reason):
    long = {"window_s": 9.0, "counter_j": 100.0, "integrated_j": 99.0}
    short = {"window_s": window_s, "counter_j": 100.0, "integrated_j": integrated_j}
    assert energy.doubt(pl.DataFrame([long, short], infer_schema_length=None)) == reason


def test_without_samples_or_counter_energy_is_in_doubt():
    unread = pl.DataFrame({"window_s": [9.0], "counter_j": [None], "integrated_j": [1.0]})
    assert energy.doubt(unread.clear()) == "no samples of GPUs that are one rank's alone"
    assert energy.doubt(unread) == "the counter was not read before and after the window"


@pytest.mark.parametrize(("held", "idle"), [(600 << 20, 80.0), (1800 << 20, None)])
def test_a_gpu_that_others_hold_is_not_idle(held, idle):
    memory, power = [held] * 9 + [held + (1 << 30)], [80.0] * 9 + [500.0]
    samples = pl.DataFrame({"memory_used_bytes": memory, "power_instant_w": power})
    assert energy.idle_w(samples) == idle


def test_gpm_values_cover_the_time_without_gaps(tables):
    own = tables["gpu_samples"].filter((pl.col("host") == "n1") & (pl.col("look") == "timed"))
    counted = own.drop_nulls("gpm_span_ns").sort("t_ns")
    length = counted["t_ns"][-1] - counted["t_ns"][0]
    assert counted["gpm_span_ns"][1:].sum() == pytest.approx(length, abs=100_000_000) and counted.height > 150
    assert counted["sm_active_percent"].max() > 5  # the step is mostly sockets


def test_known_loads_are_shown_as_they_are(calibrated):
    loads = {load["load"]: load for load in calibration.read(calibrated)["loads"]}
    assert loads["copy"]["dram_percent"] == pytest.approx(loads["copy"]["expected_dram_percent"], rel=0.1)
    for load in loads.values():
        assert load["integrated_j"] == pytest.approx(load["counter_j"], rel=0.03)
    # The tensor pipe is busy an eighth longer than its peak rate needs, at either clock: see docs/telemetry.md.
    for name in ("matmul", "matmul_zeros"):
        assert 1.05 < loads[name]["tensor_percent"] / loads[name]["expected_tensor_percent"] < 1.15


def test_a_burst_stands_where_the_trace_has_it(calibrated):
    clocks = calibration.read(calibrated)["clock"]
    assert clocks["bursts"] == 20 and clocks["range_residual_us"] < 20
    assert 0 < clocks["counters_age_ms"] < 110 and clocks["counters_rms_percent"] < 5


def test_the_age_is_found_whatever_it_is(calibrated):
    events = nsys.read(calibrated / "bursts/trace-r0.sqlite").events
    busy = calibration.selection.covered_time(events["kernels"])
    samples = calibration.log_of(calibrated / "bursts").drop_nulls(["gpm_span_ns", "sm_active_percent"])
    samples = samples.filter(pl.col("gpu") == 0)
    age = calibration.age_of_counters(busy, samples)[0]
    moved = samples.with_columns(pl.col("t_ns") + 40_000_000)
    assert calibration.age_of_counters(busy, moved)[0] == pytest.approx(age + 40, abs=1)


def test_sampler_kept_its_rate(calibrated):
    sampler = calibration.read(calibrated)["sampler"]
    assert (
        sampler["gpus"] == 2 and sampler["reached_hz"] == pytest.approx(10, rel=0.02) and sampler["jitter_ms_p99"] < 2
    )


def test_calibration_fits_eighty_columns(calibrated):
    lines = calibration.text(calibration.read(calibrated)).splitlines()
    assert max(map(len, lines)) <= 80 and any(line.startswith("copy") for line in lines)


def test_what_is_no_calibration_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no calibration in it"):
        calibration.read(tmp_path)


def test_cost_of_sampler_and_tracer_on_a_compute_bound_point(tmp_path):
    point = unpacked("control", tmp_path)
    tables = point_tables.ingest(point, tmp_path / "tables")
    found = cost.summary(tables["cost"])
    assert set(found["point_id"]) == set(tables["energy"]["point_id"]) == set(tables["points"]["point_id"])
    costs = {row["condition"]: row for row in found.to_dicts()}
    assert costs["sampler"]["pairs"] == 16 and costs["sampler"]["tool"] == "10 Hz" and costs["idle"]["pairs"] == 2
    assert costs["sampler"]["ratio"] == pytest.approx(1, abs=0.005) and costs["sampler"]["error"] < 0.003
    assert costs["idle"]["ratio"] == pytest.approx(1, abs=0.02) and 1 < costs["capturing"]["ratio"] < 1.06


def test_cost_ratio_is_that_of_the_blocks(tmp_path):
    """Rank 1 is the slower one; the first step of a block, and the warm-up, do not count."""
    folder = tmp_path / "cost-plain-0"
    folder.mkdir()
    for rank, more in ((0, 0), (1, 2)):
        lines = [{"step": 0, "phase": "warmup", "block": 0, "start_ns": 0, "end_ns": 10**9, "device_ns": None}]
        for block, (phase, ms) in enumerate((("none", 10), ("sampler", 11), ("sampler", 12), ("none", 10)), start=1):
            for place in range(3):
                took = (500 if place == 0 else ms + more) * 10**6
                step = {"step": len(lines), "phase": phase, "block": block}
                lines.append(step | {"start_ns": 5, "end_ns": 5 + took, "device_ns": None})
        (folder / f"steps-r{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = cost.rows(tmp_path, Record(status="ok", settings={"nvml_hz": 10}, device="cpu"))
    assert [row["ratio"] for row in rows] == pytest.approx([13 / 12, 14 / 12])
    assert {row["tool"] for row in rows} == {"host"} and {row["steps"] for row in rows} == {2}


def test_a_sampler_that_dies_is_told_of(tmp_path):
    settings = {"workload": "image", "model": "mobilenet_v2", "nvml_hz": 0}
    started = Started(RunFolder(tmp_path), Order(settings=settings))
    (sampler,) = started.processes.values()
    sampler.kill()
    sampler.wait()
    started.end()
    (event,) = (json.loads(line) for line in next(tmp_path.glob("events-*.jsonl")).read_text().splitlines())
    assert (
        event["kind"] == "sampler_lost"
        and "nightsweep.jobs.telemetry.host_sampler" in event["message"]
        and "-9" in event["message"]
    )


def test_a_killed_job_keeps_its_log_and_its_events(tmp_path):
    point = unpacked("killed", tmp_path)
    frames = point_tables.ingest(point, tmp_path / "tables")
    assert frames["points"]["status"].to_list() == ["failed"]
    samples = gpu_log.read_log(point / "timed/nvml-vm.arrow")
    assert samples.height == 660 and log.header_of(point / "timed/nvml-vm.arrow")["hz"] == 10
    assert frames["gpu_events"]["kind"].to_list() == ["low_gpu", "low_gpu", "foreign_process"]
    assert samples["foreign_processes"].max() == 1
    assert np.diff(samples.filter(pl.col("gpu") == 0)["mono_ns"].to_numpy()).min() >= 0
