"""The labelled set's tooling: its list, its injections, its driver on CPU ranks, and what it keeps of exports."""

import gzip
import json
import lzma
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch

import nightsweep.jobs.rank.loop
from nightsweep.analysis.ingest import engine
from nightsweep.analysis.tools.publish.anonymizer import Anonymizer
from nightsweep.analysis.tools.publish.trace_copies import copy_nsys
from nightsweep.jobs.record.json_files import read_json
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.workloads.base import Work
from tests.analysis.readers.test_readers import DATA
from tests.labelled import ahead, inject, store
from tests.labelled.kept import unpack
from tests.labelled.run import Host, step_ms
from tests.labelled.runs import OF_RANKS, load

KINDS = {
    "launch_bound", "small_batch", "host_sync", "loader_wait", "cpu_preprocessing", "h2d_pageable", "h2d_exposed",
    "tensor_cores_unused", "low_occupancy", "layout_transposes", "recompute_or_unfused", "allocator_churn",
    "memory_headroom", "memory_pressure", "exposed_communication", "small_messages", "slow_interconnect", "straggler",
    "gpu_shared", "missing_trace", "missing_counters",
}  # fmt: skip
RUNS = load()


def test_every_kind_that_can_be_shown_is_there_and_both_halves_have_their_share():
    assert {kind for run in RUNS for kind in run.kinds} == KINDS
    halves = {half: [run for run in RUNS if run.half == half] for half in ("tune", "report")}
    assert sum(map(len, halves.values())) == len(RUNS) == len({run.name for run in RUNS})
    assert abs(len(halves["tune"]) - len(halves["report"])) <= 3
    for runs in halves.values():
        assert sum(not run.kinds for run in runs) >= 2
        assert sum(len(run.kinds) == 2 for run in runs) == 1
        assert {1, 2} <= {run.point.world_size for run in runs}
    assert sum(run.remedied is not None for run in RUNS) >= 6


@pytest.mark.parametrize("run", RUNS, ids=[run.name for run in RUNS])
def test_labels_do_not_contradict_themselves(run):
    label = run.label()
    assert not {*label["kinds"], *label["also"]} & {*label["impossible"]}
    assert {*label["also"]} <= KINDS and {*run.inject} <= {*inject.OF_LOOP, "slow_storage"}
    assert label["healthy"] == (label["kinds"] == [])
    assert {*OF_RANKS} <= {*label["impossible"]} or run.point.world_size > 1
    assert run.injected or not (run.inject or run.environment or run.neighbour)


def test_a_run_that_cannot_be_is_told(tmp_path):
    path = tmp_path / "runs.yaml"
    path.write_text(
        "bases: {a: {workload: image, model: vit_s, image_size: 100}}\nruns: [{name: b, base: a, half: tune}]"
    )
    with pytest.raises(ValueError, match=r"runs\.yaml: b: 100 is not a multiple of 16"):
        load(path)


@pytest.fixture
def loop():
    """A rank's loop around one linear layer, whose gradients are there; what it has done."""
    model = torch.nn.Linear(4, 3)
    model(torch.arange(8.0).reshape(2, 4)).square().sum().backward()
    done = []
    trainer = SimpleNamespace(step=lambda: done.append("step"))
    work = Work(model, [], lambda batch: batch | {"prepared": torch.ones(1)}, lambda *_: None, (), None)
    return SimpleNamespace(trainer=trainer, work=work, device=torch.device("cpu"), rank=1, done=done)


def test_finite_checks_look_at_outputs_and_gradients(loop):
    inject.finite_checks(loop)
    loop.trainer.step()
    with pytest.raises(ValueError, match="not finite"):
        loop.work.model(torch.full((1, 4), torch.nan))
    loop.work.model.bias.grad[1] = torch.inf
    with pytest.raises(ValueError, match="not finite"):
        loop.trainer.step()
    assert loop.done == ["step"]


def test_gradients_are_clipped_at_their_medians(loop):
    before = loop.work.model.weight.grad.clone()
    inject.gradient_medians(loop)
    loop.trainer.step()
    median = before.abs().flatten().sort().values[6]
    assert loop.work.model.weight.grad.equal(before.clamp(-median, median)) and not loop.work.model.weight.grad.equal(
        before
    )
    assert loop.done == ["step"]


def test_batches_are_changed_after_they_were_prepared(loop):
    inject.on_batches(loop, lambda batch: {name: value + 1 for name, value in batch.items()})
    assert loop.work.prepare({"x": torch.zeros(1)}) == {"x": 1, "prepared": 2}


def test_the_host_reads_a_value_and_computes(loop):
    inject.host_metrics(loop, ms=40)
    begun = time.perf_counter()
    with torch.profiler.profile() as profiler:
        loop.trainer.step()
    assert time.perf_counter() - begun > 0.04 and loop.done == ["step"]
    assert sum(event.name == "aten::item" for event in profiler.events()) == 1


def test_gradients_are_compared_in_pieces(loop, tmp_path):
    loop.work.model.weight = torch.nn.Parameter(torch.zeros(3, 1000))
    loop.work.model.weight.grad = torch.arange(3 * 1000.0).reshape(3, 1000)
    before = loop.work.model.weight.grad.clone()
    inject.compare_in_pieces(loop, kib=4)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with torch.profiler.profile() as profiler:
            loop.trainer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert sum(event.name == "c10d::allreduce_" for event in profiler.events()) == 3 + 1  # the weight's and the bias's
    assert loop.work.model.weight.grad.equal(before) and loop.done == ["step"]


@pytest.mark.parametrize(("rank", "products"), [(1, 3), (0, 0)])
def test_one_rank_multiplies_more(loop, rank, products):
    inject.extra_products(loop, rank, 3, edge=8)
    with torch.profiler.profile() as profiler:
        loop.trainer.step()
    assert sum(event.name == "aten::mm" for event in profiler.events()) == products and loop.done == ["step"]


def test_the_loader_of_one_rank_is_slow(loop, monkeypatch):
    monkeypatch.setattr(nightsweep.jobs.rank.loop, "endless", iter)
    inject.slow_loader(loop, rank=0, ms=1e6)
    assert nightsweep.jobs.rank.loop.endless is iter
    inject.slow_loader(loop, rank=1, ms=30)
    begun = time.perf_counter()
    assert list(nightsweep.jobs.rank.loop.endless([1, 2])) == [1, 2] and time.perf_counter() - begun > 0.06


class Batches:
    """A data set of whole batches."""

    def __len__(self):
        return 2

    def __getitems__(self, indices):
        return {"x": torch.tensor(indices)}

    @staticmethod
    def collate(batch):
        return batch


def test_slow_storage_keeps_workers_waiting():
    def make(point, dataset, device):
        return torch.utils.data.DataLoader(dataset, 2, num_workers=1, collate_fn=dataset.collate)

    begun = time.perf_counter()
    (batch,) = inject.slow_storage(make, ms=80)(None, Batches(), None)
    assert batch["x"].tolist() == [0, 1] and time.perf_counter() - begun > 0.08


DRIVEN = """
bases:
  nano: {workload: llm, model: llama-nano, seq_len: 32, micro_batch: 2, device: cpu, warmup_steps: 1, timed_steps: 3,
    traced_steps: 2}
runs:
  - {name: slow, base: nano, set: {ranks_per_node: 2}, inject: {slow_loader: {rank: 1, ms: 200}}, kinds: [straggler],
    half: tune, injected: a slow loader}
  - {name: broken, base: nano, set: {fault: "exception@rank0:step1"}, kinds: [host_sync], half: tune}
"""


@pytest.mark.slow
def test_the_driver_runs_what_is_listed_and_goes_on_after_a_failure(tmp_path):
    (tmp_path / "runs.yaml").write_text(DRIVEN)
    command = [sys.executable, "-m", "tests.labelled.run", str(tmp_path / "out"), "--gpus", "2"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path / "runs.yaml")], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 1, done.stderr
    lines = sorted(line.partition("] ")[2] for line in done.stdout.splitlines())
    assert lines[0].startswith("FAILED broken") and "exception@rank0:step1" in lines[0]
    assert lines[1].startswith("ok slow") and "straggler" in lines[1]
    folder = tmp_path / "out/points/slow"
    record = read_json(folder / "record.json", Record)
    assert [run.status for _, run in record.runs.named()] == ["skipped", "ok", "skipped"]
    assert record.status == "ok" and read_json(folder / "label.json", dict)["kinds"] == ["straggler"]
    assert len(list(folder.glob("traced/trace-r*.json.gz"))) == 2
    waits = {}
    for rank in (0, 1):
        rows = [json.loads(line) for line in (folder / f"traced/steps-r{rank}.jsonl").read_text().splitlines()]
        waits[rank] = min(row["data_ns"] for row in rows if row["phase"] == "traced")
    assert waits[1] > 200e6 > 10 * waits[0]
    assert step_ms(folder, "traced")[0] > 200
    assert step_ms(folder, "timed") == []


@pytest.fixture
def results(tmp_path):
    """A run's folder around a real export, in whose tables something tells of the machine."""
    point = tmp_path / "out/points/ddp"
    unpack(shutil.copytree(DATA / "h200/two-nodes", point))
    for rank in (0, 1):
        path = point / f"traced/trace-r{rank}.sqlite"
        path.write_bytes(gzip.decompress((DATA / f"h200-ranks/ddp-r{rank}.sqlite.gz").read_bytes()))
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
            db.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'n1'), ('Password', 'swordfish-42')")
            db.execute("CREATE TABLE OSRT_API (start INTEGER, nameId INTEGER)")
    (point / "label.json").write_text('{"kinds": []}')
    return tmp_path / "out"


@pytest.mark.slow
def test_what_is_kept_reads_like_the_whole_export_and_tells_no_secret(results, tmp_path):
    assert store.store(results, tmp_path / "kept") == 0
    kept = tmp_path / "kept/ddp"
    for path in kept.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        content = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)(content)
        assert not any(word in content for word in (b"swordfish", b"OSRT_API", b'"n1"', b"GPU-cd68"))
    small = tmp_path / "trace-r0.sqlite"
    small.write_bytes(lzma.decompress((kept / "traced/trace-r0.sqlite.xz").read_bytes()))
    whole = results / "points/ddp/traced/trace-r0.sqlite"
    assert small.stat().st_size < whole.stat().st_size
    (before,), (after,) = (list(engine.analyse(path, "trace-r0")) for path in (whole, small))
    assert after["collectives"]["bytes"].null_count() == 0 < after["collectives"].height
    assert after["step_parts"].equals(before["step_parts"])
    assert {path.name for path in (kept / "traced").iterdir()} >= {"nvml-node1.arrow.gz", "steps-r0.jsonl.gz"}


def test_a_trace_that_lost_something_is_told(results):
    source = results / "points/ddp/traced/trace-r0.sqlite"
    shorter = source.with_name("shorter.sqlite")
    anonymizer = Anonymizer([], [])
    copy_nsys(source, shorter, anonymizer)
    assert store.differing(source, shorter, anonymizer) == []
    with closing(sqlite3.connect(shorter, isolation_level=None)) as db:
        db.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
    assert store.differing(source, shorter, anonymizer) == ["collectives", "nccl_calls"]


def test_a_lock_that_cannot_be_is_an_error(tmp_path):
    (tmp_path / ".gpu1").mkdir()
    with pytest.raises(IsADirectoryError):
        ahead.Turn(tmp_path, [0, 1], tmp_path / "go")


def test_a_run_that_starts_behind_another_is_given_its_time_too():
    host = Host(1)
    first = host.take(1)
    assert host.before(0) == 0
    host.take(1)
    assert host.before(0) == 1
    host.give_back(first)
    host.take(1)
    assert host.before(0) == 1
