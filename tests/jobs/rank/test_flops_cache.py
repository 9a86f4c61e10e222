"""Counts of FLOPs that are kept: who shares one, what makes another, and what a broken file does."""

import fcntl
import json
import threading
import time
from dataclasses import replace

import pytest

from nightsweep.jobs.host import cache
from nightsweep.jobs.point.point import Point, complete
from nightsweep.jobs.rank import flops, flops_cache
from nightsweep.jobs.record.launch_files import Flops

NANO = {"workload": "llm", "model": "llama-nano", "micro_batch": 2, "seq_len": 64}
IMAGE = {"workload": "image", "model": "resnet50", "micro_batch": 2, "image_size": 32}


@pytest.fixture
def counted(image_cache, monkeypatch):
    """The points whose micro-batch was counted, in order."""
    points, plain = [], flops.count_micro_batch
    monkeypatch.setattr(flops, "count_micro_batch", lambda point: (points.append(point), plain(point))[1])
    monkeypatch.setattr(cache, "POLL_S", 0.01)
    return points


def file_of(point):
    return flops_cache.entry(flops.by_its_products(point))


@pytest.mark.parametrize(
    "same",
    [
        {"repeat": 3, "seed": 7},
        {"grad_accum": 4},
        {"strategy": "fsdp2", "ranks_per_node": 2, "device": "cpu"},
        {"strategy": "pp", "ranks_per_node": 2, "grad_accum": 2},
        {"timed_steps": 99, "loader_workers": 2},
        {"compile": "default"},
        {"method": "qat"},
    ],
)
def test_points_of_the_same_products_share_a_count(counted, same):
    first, other = complete(NANO), complete(NANO | same)
    assert [flops_cache.count(p) for p in (first, other)] == [
        flops.count(p, flops.count_micro_batch) for p in (first, other)
    ]
    assert len(counted) == 3  # the last two by this test


@pytest.mark.parametrize(
    ("base", "other"),
    [
        (NANO, {"micro_batch": 3}),
        (NANO, {"seq_len": 32}),
        (NANO, {"method": "lora"}),
        (NANO | {"method": "lora"}, {"lora_rank": 4}),
        (NANO, {"activation_checkpointing": True}),
        (IMAGE, {"image_size": 64}),
        (IMAGE, {"model": "mobilenet_v2"}),
    ],
)
def test_points_of_other_products_do_not(counted, base, other):
    found = [flops_cache.count(complete(base | more)) for more in ({}, other, {}, other)]
    assert len(counted) == 2 and found[:2] == found[2:] and found[0] != found[1]


@pytest.mark.parametrize(
    "settings",
    [
        *({"model": model} for model in ("mobilenet_v2", "resnet50", "vit_s")),
        *({"method": method} for method in ("full", "lora", "qlora", "dpo", "dpo_lora", "dpo_qlora", "qat")),
        {"sequences": "packed", "loss_chunks": 2, "activation_checkpointing": True},
        {"float8": "rowwise", "precision": "bf16"},
    ],
)
def test_the_key_has_every_setting_that_a_count_reads(image_cache, settings):
    """A setting that is read and not in the key would give one point the count of another."""
    read = set()

    class Watched(Point):
        def __getattribute__(self, name):
            read.add(name)
            return super().__getattribute__(name)

    plain = complete((NANO if "model" not in settings else IMAGE) | settings)
    same = flops.by_its_products(plain)
    watched = Watched(**{name: getattr(same, name) for name in Point.__dataclass_fields__})
    read.clear()
    work = flops.workloads.module(watched)
    with flops.torch.device("meta"):
        work.build_model(watched)
        work.blank(watched)
    assert "model" in read and not read & flops_cache.WITHOUT_EFFECT


@pytest.mark.parametrize("content", ["", '{"forward": {"aten.mm": 1', "[]", '{"forward": 1, "backward": 2}', "\0" * 50])
def test_a_broken_file_is_counted_anew(counted, content):
    point = complete(NANO)
    expected = flops_cache.count(point)
    file_of(point).write_text(content)
    assert flops_cache.count(point) == flops_cache.count(point) == expected
    assert len(counted) == 2 and json.loads(file_of(point).read_text())["hardware"] == expected.hardware_step


def test_ranks_at_once_count_once(counted, monkeypatch):
    plain, beats, found = flops.count_micro_batch, [], []
    monkeypatch.setattr(flops, "count_micro_batch", lambda point: (time.sleep(0.1), plain(point))[1])
    point = complete(NANO)
    threads = [
        threading.Thread(target=lambda: found.append(flops_cache.count(point, lambda: beats.append(1))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == 1 and found == [found[0]] * 4 and found[0].step and beats
    assert sorted(path.suffix for path in file_of(point).parent.iterdir()) == [".json", ".lock"]


def test_a_rank_does_not_wait_for_one_that_hangs(counted, monkeypatch):
    point = complete(NANO)
    monkeypatch.setattr(flops_cache, "PATIENCE_S", 0.05)
    with file_of(point).with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert flops_cache.count(point).step and len(counted) == 1


def test_without_a_folder_each_counts(counted, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    point = complete(NANO)
    assert flops_cache.count(point) == flops_cache.count(point) and len(counted) == 2


def test_what_cannot_be_counted_is_not_kept(counted, monkeypatch):
    point, plain = complete(NANO), flops.passes
    monkeypatch.setattr(flops, "passes", lambda point: 1 / 0)
    assert flops_cache.count(point) == Flops(reason="ZeroDivisionError: division by zero")
    monkeypatch.setattr(flops, "passes", plain)
    assert flops_cache.count(point).step and len(counted) == 2


def test_other_software_makes_another_count(image_cache, tmp_path, monkeypatch):
    point = complete(NANO)
    keys = {flops_cache.key(point)}
    monkeypatch.setattr(flops_cache, "package_versions", lambda names: dict.fromkeys(names, "1.0"))
    keys.add(flops_cache.key(point))
    (tmp_path / "workloads/llm").mkdir(parents=True)
    hash_of = flops_cache.source_hash
    monkeypatch.setattr(flops_cache, "source_hash", lambda: hash_of(tmp_path))
    for source in ("a = 1", "a = 2"):
        (tmp_path / "workloads/llm/model.py").write_text(source)
        keys.add(flops_cache.key(point))
    (tmp_path / "config.json").write_text("{}")
    of_checkpoint = replace(point, weights=str(tmp_path))
    keys.add(flops_cache.key(of_checkpoint))
    (tmp_path / "config.json").write_text('{"head_dim": 64}')
    keys.add(flops_cache.key(of_checkpoint))
    assert len(keys) == 6
