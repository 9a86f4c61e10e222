"""Epochs after the window: what counts, what a checkpoint keeps, and an attempt that goes on where one was killed."""

import gc
import json
import os
import signal
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from msgspec import structs
from torch import nn

from nightsweep.analysis.ingest import point_tables
from nightsweep.jobs.point import check as constraints
from nightsweep.jobs.point.plan import Block
from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank import epochs
from nightsweep.jobs.rank.checkpoint import Checkpoints
from nightsweep.jobs.rank.loader import make_loader
from nightsweep.jobs.rank.loop import Loop
from nightsweep.jobs.record.failures import LossNotFinite
from nightsweep.jobs.record.folder import RunFolder
from nightsweep.jobs.record.heartbeat import Heartbeat
from nightsweep.jobs.record.json_files import read_lines
from nightsweep.jobs.record.launch_files import EpochLine
from nightsweep.jobs.strategies.make import make_trainer
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads.base import Work
from nightsweep.jobs.workloads.images import digits
from nightsweep.jobs.workloads.images.datasets import Digits

CPU = torch.device("cpu")
IMAGE = {"workload": "image", "model": "mobilenet_v2", "image_size": 32, "device": "cpu", "micro_batch": 16}
RUN = {"epochs": 3, "warmup_steps": 1, "timed_steps": 2, "traced_steps": 0}


class Small(nn.Module):
    """With all that a checkpoint must keep: weights, running means, dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 3))

    def forward(self, x):
        return self.body(x)


def trainer(point):
    torch.manual_seed(1)
    model = Small()

    def loss(network, batch):
        return nn.functional.cross_entropy(network(batch["x"]), batch["label"])

    return make_trainer(point, Work(model, None, lambda batch: batch, loss, tuple(model.body[::3]), None), CPU)


def steps(own, count, seed):
    """Losses of so many steps."""
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        x = torch.randn(16, 8, generator=generator)
        loss = own.forward({"x": x, "label": (x[:, 0] > 0).long()}, last=True)
        own.backward(loss, last=True)
        own.step()
        losses.append(loss.item())
    return losses


def epoch(number):
    return EpochLine(epoch=number, accuracy=0.5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "sgd"}, {"precision": "fp16"}, {"strategy": "fsdp2"}, {"strategy": "fsdp2", "optimizer": "sgd"}],
)
def test_training_goes_on_as_if_it_had_not_stopped(alone, tmp_path, settings):
    point = complete(IMAGE | settings)
    one = trainer(point)
    steps(one, 5, 0)
    Checkpoints(tmp_path / "c", "timed.1", 0).save([epoch(1)], one, CPU)
    expected = steps(one, 5, 1)
    other = trainer(point)
    steps(other, 2, 9)
    assert Checkpoints(tmp_path / "c", "timed.2", 0).load(other, CPU) == [epoch(1)]
    assert steps(other, 5, 1) == expected
    weights = (dict(t.model.state_dict()) for t in (one, other))
    for name, weight in next(weights).items():
        assert torch.equal(weight, other.model.state_dict()[name]), name


def test_the_last_whole_checkpoint_counts(alone, tmp_path):
    own = trainer(complete(IMAGE))
    steps(own, 1, 0)
    kept = Checkpoints(tmp_path, "timed.1", 0)
    assert kept.load(own, CPU) == []
    for last in (9, 10):
        kept.save([epoch(number) for number in range(1, last + 1)], own, CPU)
    (tmp_path / ".timed.1").mkdir()
    (tmp_path / ".timed.1/rank0.pt").write_bytes(b"half of on")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".timed.1", "epoch-10"]
    again = Checkpoints(tmp_path, "timed.1", 0)
    assert len(again.load(own, CPU)) == 10
    again.save([epoch(11)], own, CPU)  # over what the killed one left
    assert again.last() == "epoch-11"


class Flat(Small):
    """On the digits themselves, 8 x 8 px."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)
        )

    def forward(self, batch):
        return self.body(batch["image"][:, 0].flatten(1))


def loop_of(tmp_path, attempt, **settings):
    """What the worker would train the digits with, after its window."""
    point = complete(IMAGE | {"micro_batch": 32} | settings)
    torch.manual_seed(point.seed)
    images, labels = digits.load_digits("builtin")
    train, held = (Digits(images[rows], labels[rows], None) for rows in digits.split(len(labels), point.seed))
    work = Work(
        Flat(), train, lambda batch: batch, lambda network, b: nn.functional.cross_entropy(network(b), b["label"]), (),
        tokens_per_sample=None, held_back=held, correct=lambda network, b: (network(b).argmax(1) == b["label"]).sum(),
    )  # fmt: skip
    run_folder = RunFolder(tmp_path / f"timed.{attempt}")
    run_folder.path.mkdir()
    heart = Heartbeat(run_folder.rank_file(0, "heartbeat"))
    loader = make_loader(point, train, CPU)
    own = Loop(point, work, make_trainer(point, work, CPU), loader, CPU, Tracer(), run_folder, 0, heart, Still())
    own.run(run_folder, [Block("timed", 2)])
    return own


class Still:
    """Samplers that are not there."""

    def set(self, _):
        pass


def test_timed_steps_do_not_look_through_what_warm_up_left(alone, tmp_path):
    """A collection of all objects is a pause of 0.4 s where a compiler has made some: before the timed steps, not in
    them."""
    made = [[] for _ in range(100_000)]
    looked = []

    def note(phase, info):
        if phase == "stop" and info["generation"] == 2:
            looked.append(time.time_ns())

    gc.callbacks.append(note)
    own = loop_of(tmp_path, 1)
    gc.callbacks.remove(note)
    warm, timed = ([step for step in own.steps if step.phase == phase] for phase in ("warmup", "timed"))
    assert any(warm[-1].end_ns < when < timed[0].start_ns for when in looked)
    assert gc.get_freeze_count() > len(made)


def test_digits_are_learned_to_the_target(alone, tmp_path):
    rows = epochs.run(loop_of(tmp_path, 1, epochs=60, target_accuracy=0.98))
    assert rows[-1].accuracy >= 0.98 > max(row.accuracy for row in rows[:-1])
    assert rows[-1].train_loss < rows[0].train_loss / 5
    assert {(row.samples, row.held_back) for row in rows} == {(1472, 299)}


@pytest.mark.parametrize("strategy", ["ddp", "ddp_ds"])
@pytest.mark.parametrize("settings", [{}, {"device_prefetch": True, "grad_accum": 2}])
def test_an_attempt_goes_on_to_the_same_losses(alone, tmp_path, strategy, settings):
    settings = settings | {"strategy": strategy}
    (tmp_path / "whole").mkdir()
    whole = epochs.run(loop_of(tmp_path / "whole", 1, epochs=4, **settings))
    epochs.run(loop_of(tmp_path, 1, epochs=2, **settings))
    resumed = loop_of(tmp_path, 2, epochs=4, warmup_steps=9, **settings)
    rows = epochs.run(resumed)
    shown = read_lines(resumed.run_folder.accuracy, EpochLine)
    assert shown == rows and len(rows) == 4
    for row, other in zip(rows, whole, strict=True):
        assert structs.replace(row, seconds=0) == structs.replace(other, seconds=0)


def test_a_loss_that_is_not_finite_ends_it(alone, tmp_path):
    own = loop_of(tmp_path, 1, epochs=1)
    with torch.no_grad():
        own.work.model.body[0].weight.fill_(float("nan"))
    with pytest.raises(LossNotFinite, match="loss is nan at step"):
        epochs.run(own)


@pytest.mark.parametrize("count", [1, 16, 40, 48])
@pytest.mark.parametrize("ranks", [1, 3])
def test_every_held_back_image_counts_once(alone, monkeypatch, tmp_path, count, ranks):
    """And each rank makes as many forward passes, for they may be collective."""
    images = np.random.default_rng(0).normal(size=(count, 4, 4)).astype(np.float32)
    images[:, 0, 0] = np.arange(count)
    dataset = Digits(images, np.arange(count) % 7, None)
    seen, passes = [], []

    def correct(_, batch):
        seen.append(batch["image"][:, 0, 0, 0].tolist())
        return (batch["image"][:, 0, 0, 0] % 2 == 0).sum()

    sums = []
    monkeypatch.setattr(epochs, "sum_over_ranks", lambda value, _: float(value))
    for rank in range(ranks):
        monkeypatch.setattr(dist, "get_rank", lambda *_, rank=rank: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda *_: ranks)
        work = Work(nn.Linear(1, 1), None, lambda b: b, None, (), None, held_back=dataset, correct=correct)
        loop = SimpleNamespace(point=complete(IMAGE), work=work, trainer=SimpleNamespace(model=work.model), device=CPU,
                               tracer=Tracer(), heart=Heartbeat(tmp_path / "h"))  # fmt: skip
        before = len(seen)
        sums.append(epochs.evaluate(loop, epochs.held_back_loader(loop)) * count)
        passes.append(len(seen) - before)
        assert work.model.training
    assert sum(sums) == pytest.approx((count + 1) // 2)
    assert len(set(passes)) == 1
    assert {n for batch in seen for n in batch} == set(range(count))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loader": "device"}, "epochs with loader device: it has one batch, not a data set"),
        ({"strategy": "zero2"}, "epochs with zero2: they are for ddp, ddp_ds, fsdp2 and dp"),
        ({"comm_hook": "powersgd"}, "epochs with powersgd: what it carries over cannot be resumed"),
        ({"epochs": 0, "target_accuracy": 0.9}, "target_accuracy 0.9 has no effect: epochs is 0"),
    ],
)
def test_what_cannot_be_is_refused(settings, words):
    assert [r.text for r in constraints.reasons(complete(IMAGE | {"epochs": 1} | settings))] == [words]


@pytest.fixture
def place(tmp_path):
    """A folder of data: 16 of the real digits of each of 0 to 5, so that an epoch is short."""
    from sklearn.datasets import load_digits  # which takes a second

    found = load_digits()
    few = np.concatenate([np.flatnonzero(found.target == n)[:16] for n in range(6)])
    images = (found.images[few] * 255 / 16).round().astype(np.uint8)
    folder = tmp_path / "few"
    folder.mkdir()
    head = struct.pack(">4B3I", 0, 0, 8, 3, len(few), 8, 8)
    (folder / "train-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = struct.pack(">4BI", 0, 0, 8, 1, len(few))
    (folder / "train-labels-idx1-ubyte").write_bytes(head + found.target[few].astype(np.uint8).tobytes())
    return folder


def begin(tmp_path, point):
    """A launch of the point; its process and folder."""
    folder = tmp_path / "points" / point.id
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"name": "t", "points": [{"point_id": point.id, "settings": point.settings()}]}))
    command = [sys.executable, "-m", "nightsweep.jobs.launch.launch", str(folder), "--sweep", str(sweep)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), folder


def ended(process, folder):
    told = process.communicate(timeout=240)[0]
    record = json.loads((folder / "record.json").read_text())
    return record, [json.loads(line) for line in RunFolder(folder / "timed").accuracy.read_text().splitlines()], told


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_end(tmp_path, place):
    point = complete(IMAGE | RUN | {"data": str(place)})
    (tmp_path / "whole").mkdir()
    record, whole, told = ended(*begin(tmp_path / "whole", point))
    assert record["status"] == "ok", told
    assert [row["epoch"] for row in whole] == [1, 2, 3]
    assert {row["held_back"] for row in whole} == {16} and {row["samples"] for row in whole} == {80}

    process, folder = begin(tmp_path, point)
    while not (folder / "checkpoint/epoch-1").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    os.kill(json.loads((folder / "timed.1/rank0.pid.json").read_text())["pid"], signal.SIGKILL)
    record, first, _ = ended(process, folder)
    assert record["reason"] == "rank_killed"
    assert len(first) < 3 and (folder / "checkpoint").is_dir()

    record, rows, told = ended(*begin(tmp_path, point))
    assert (record["status"], record["attempt"]) == ("ok", 2), told
    assert rows[: len(first)] == first  # to the second that it took: nothing was trained again
    for name in ("train_loss", "accuracy", "samples"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in whole], rel=1e-6), name
    assert not (folder / "checkpoint").exists()
    table = point_tables.ingest(folder, folder / "tables")["accuracy"]
    assert table["epoch"].to_list() == [1, 2, 3] and table["point_id"].unique().to_list() == [point.id]
    assert table["total_s"].to_list() == pytest.approx(np.cumsum([row["seconds"] for row in rows]))
    # the window stands as it would without epochs
    steps = point_tables.ingest(folder, folder / "tables")["steps"]
    assert steps.filter(pl.col("phase") == "timed")["step"].to_list() == [1, 2]
