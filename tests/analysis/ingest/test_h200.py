"""What H200s left: three traced steps of rank 0 of MobileNet v2 under DDP (nsys 2025.3.1), and runs over two nodes."""

import gzip
import json

import polars as pl
import pytest

from nightsweep.analysis.ingest import engine, point_tables
from nightsweep.analysis.metrics.steps import activities, parts, timeline
from nightsweep.analysis.tables.part_names import GROUPS
from tests.analysis.h200 import unpacked
from tests.analysis.readers.test_readers import DATA


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """All tables of the trace."""
    path = tmp_path_factory.mktemp("h200") / "trace-r0.sqlite"
    path.write_bytes(gzip.decompress((DATA / "h200-ddp-r0.sqlite.gz").read_bytes()))
    (frames,) = engine.analyse(path, path.name)
    return frames


def test_steps_follow_each_other_and_hold_all_gpu_work(found):
    windows = found["windows"]
    assert windows["step"].to_list() == [5, 6, 7] and windows["counted"].to_list() == [False, True, True]
    assert windows["start_ns"][0] == windows["host_start_ns"][0]
    assert windows["start_ns"].to_list()[1:] == windows["end_ns"].to_list()[:-1]
    assert windows["end_ns"][-1] == found["kernels"]["end_ns"].max()


def test_breakdown_adds_up_and_every_step_waits_for_its_batch(found):
    groups = parts.group_lengths(found["step_parts"], "step").pivot("part", index="step", values="duration_ns")
    windows = found["windows"].filter("counted")
    total = groups.select(pl.sum_horizontal(GROUPS)).to_series()
    assert total.to_list() == (windows["end_ns"] - windows["start_ns"]).to_list()
    ms = groups.select(pl.col(GROUPS) / 1e6)
    # The loader resizes 64 images in the rank's own process: 12 ms at least of each step, the GPU doing nothing.
    assert ms["data_wait"].min() > 10 and ms["copies"].max() < 2
    assert ms["compute"].min() > 29 and ms["compute"].max() < 31


def test_activities_count_what_the_steps_launched(found):
    rows = activities.rows(found, found["windows"])
    nccl = rows.filter(pl.col("category") == "communication")
    names = nccl["name"].str.split("(").list.first()
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL" in set(names)
    kernels = rows.filter(pl.col("category").is_in(["compute", "communication"]))
    # Each step launches as many: two of the three count.
    of_steps = found["kernels"].filter(pl.col("step").is_in([6, 7])).height
    assert kernels["count"].sum() == of_steps == pytest.approx(found["kernels"].height * 2 / 3, rel=0.01)


def test_timeline_shows_two_steps(found):
    bars = timeline.set_zero(timeline.rows(found, found["windows"]))
    assert bars["step"].unique().sort().to_list() == [6, 7]
    assert {"range", "call", "compute", "communication", "copy"} == set(bars["lane"])


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """FSDP2 over two nodes of a real Slurm, one H200 each, NCCL over sockets; traces and NVML logs of both."""
    folder = tmp_path_factory.mktemp("two")
    return point_tables.ingest(unpacked("two-nodes", folder), folder / "tables")


def test_two_nodes_leave_traces_and_counters_of_both(two_nodes):
    row = two_nodes["points"].row(0, named=True)
    assert row["status"] == "ok" and row["hosts"] == ["n1", "n2"] and row["backend"] == "nccl"
    assert set(two_nodes["breakdown"]["rank"]) == {0, 1}
    assert two_nodes["gpu_samples"]["uuid"].n_unique() == two_nodes["gpu_samples"]["host"].n_unique() == 2
    assert row["energy_j"] == pytest.approx(1318, rel=0.01)


def test_sockets_between_nodes_are_most_of_the_step(two_nodes):
    mean = two_nodes["breakdown"].group_by("rank", "part").agg(pl.col("duration_ns").mean() / 1e6)
    for rank in (0, 1):
        parts = dict(mean.filter(pl.col("rank") == rank).select("part", "duration_ns").iter_rows())
        assert parts["communication"] > 0.75 * sum(parts.values())
        # The timed run, without a profiler, took about as long.
        assert sum(parts.values()) == pytest.approx(two_nodes["points"]["step_ms_median"][0], rel=0.15)


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_records_of_two_nodes(strategy):
    record = json.loads((DATA / "h200-2node" / strategy / "record.json").read_text())
    assert record["status"] == "ok" and record["tracer"]["used"] == "nsys" and record["slurm"]["nodelist"] == "n[1-2]"
    assert [(host["hostname"], len(host["gpus"])) for host in record["hosts"]] == [("n1", 1), ("n2", 1)]
