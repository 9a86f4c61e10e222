"""Images: from every source and through every loader the same ones, each once an epoch."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.feed import Feed
from nightsweep.jobs.rank.loader import EndlessBatches, endless, make_loader, make_sampler, one_epoch, read_order
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads import image
from nightsweep.jobs.workloads.images import digits
from nightsweep.jobs.workloads.images.datasets import Digits
from tests.jobs.workloads.image_batches import CPU, SIZE, STEP, TINY, assert_same, batches, work_of

pytestmark = pytest.mark.usefixtures("image_cache")


@pytest.mark.parametrize(
    ("settings", "atol"),
    [
        # bytes of builtin's 17 greys are their nearest; what is enlarged of bytes may be off by one once more
        ({"source": "raw"}, 0.51 * STEP),
        ({"source": "raw", "pixels": "uint8"}, 0.51 * STEP),
        ({"source": "jpeg"}, 12 * STEP),
        ({"source": "jpeg", "pixels": "uint8"}, 12 * STEP),
        ({"source": "raw", "loader": "mmap"}, 0.51 * STEP),
        ({"source": "raw", "loader": "mmap", "pixels": "uint8"}, 0.51 * STEP),
        ({"loader": "mmap"}, 0.51 * STEP),
        ({"loader": "mmap", "pixels": "uint8"}, 1.02 * STEP),
        ({"loader": "mmap", "resize_on": "device"}, 0.51 * STEP),
        ({"loader": "mmap", "resize_on": "device", "pixels": "uint8"}, 0.51 * STEP),
        ({"pixels": "uint8"}, 0.51 * STEP),
        ({"resize_on": "device"}, 1e-6),
        ({"resize_on": "device", "pixels": "uint8"}, 0.51 * STEP),
        ({"layout": "nhwc"}, 0),
        ({"layout": "mixed", "pixels": "uint8"}, 0.51 * STEP),
        ({"device_prefetch": True}, 0),
    ],
)
def test_every_way_gives_the_same_images_in_the_same_order(alone, settings, atol):
    assert_same(batches(settings, 4), batches({}, 4), atol)


@pytest.mark.slow
def test_workers_give_what_the_rank_would(alone):
    settings = {"source": "raw", "loader": "mmap", "pixels": "uint8"}
    assert_same(batches(settings | {"loader_workers": 1}), batches(settings), 0)


def test_fp64_is_double_from_bytes_on(alone):
    plain, raw = (batches({"precision": "fp64", "pixels": pixels}, 1)[0]["image"] for pixels in ("float", "uint8"))
    assert plain.dtype == raw.dtype == torch.float64
    assert torch.allclose(plain, raw, atol=0.51 * STEP)


def test_bytes_and_floats_are_each_others_inverse():
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1)
    values = digits.from_bytes(every)
    assert torch.allclose(values.flatten(), torch.arange(256) / 127.5 - 1, atol=1e-6)
    assert torch.equal(digits.to_bytes(values), every.permute(0, 3, 1, 2))


def test_ranks_share_every_image_once_an_epoch(monkeypatch):
    point = complete(TINY)
    dataset, _ = image.datasets(point)
    monkeypatch.setattr(dist, "is_available", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 3)
    for epoch in (0, 1):
        seen = []
        for rank in range(3):
            monkeypatch.setattr(dist, "get_rank", lambda *_, rank=rank: rank)
            sampler = make_sampler(point, dataset)
            sampler.set_epoch(epoch)
            seen += list(sampler)
        assert sorted(seen) == list(range(len(dataset)))  # 1,797 is 3 times 599


@pytest.mark.parametrize("strategy", ["ddp", "ddp_ds"])
def test_across_epochs_is_the_order_of_epochs(alone, strategy):
    """To the worker there is no end, and the batches are those of one epoch after another."""
    orders = []
    for across in (False, True):
        point = complete(TINY | {"across_epochs": across, "strategy": strategy, "micro_batch": 500})
        images = np.zeros((1797, 1, 1), np.float32)
        loader = make_loader(point, Digits(images, np.arange(1797), None), CPU)
        assert len(loader) == 3 and isinstance(read_order(loader), EndlessBatches) is across
        found = endless(loader)
        orders.append([next(found)["label"] for _ in range(8)])
    assert all(torch.equal(*pair) for pair in zip(*orders, strict=True))
    assert not torch.equal(orders[0][0], orders[0][3])


def test_an_epoch_is_the_same_whatever_was_read_before(alone):
    for strategy in ("ddp", "ddp_ds"):
        point = complete(TINY | {"strategy": strategy})
        images = np.zeros((100, 1, 1), np.float32)
        orders = []
        for before in (0, 3):
            loader = make_loader(point, Digits(images, np.arange(100), None), CPU)
            found = endless(loader)
            for _ in range(before):
                next(found)
            orders.append([torch.cat([b["label"] for b in one_epoch(point, loader, epoch)]) for epoch in (1, 2)])
        assert torch.equal(orders[0][0], orders[1][0]) and torch.equal(orders[0][1], orders[1][1])
        assert not torch.equal(*orders[0])


def test_a_batch_on_the_device_is_the_first_of_the_order(alone):
    """Loading is off, not the data: the images, the length of an epoch and the layout are those of the point."""
    point = complete(TINY | {"loader": "device", "layout": "nhwc"})
    dataset, _ = image.datasets(point)
    loader = make_loader(point, dataset, CPU)
    found = endless(loader)
    one, other = next(found), next(found)
    assert one["image"] is other["image"] and one["image"].is_contiguous(memory_format=torch.channels_last)
    plain = complete(TINY)
    expected = next(endless(make_loader(plain, image.datasets(plain)[0], CPU)))
    assert torch.equal(one["image"], expected["image"]) and torch.equal(one["label"], expected["label"])
    assert image.preparation(point)(one)["image"] is one["image"]
    assert len(loader) == 1797 // 16 and len(dataset) == 1797
    many = complete(TINY | {"loader": "device", "micro_batch": 2000})
    assert next(endless(make_loader(many, dataset, CPU)))["image"].shape == (2000, 3, SIZE, SIZE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_batches_copied_ahead_are_those_that_are_trained_on(alone, layout):
    """The GPU is kept busy, so that a batch whose memory or copy were not waited for would show."""
    device = torch.device("cuda", 0)
    settings = {"source": "raw", "loader": "mmap", "pixels": "uint8", "micro_batch": 256, "image_size": 224}
    settings |= {"pin_memory": True, "non_blocking": True, "layout": layout}
    sums, busy = [], torch.randn(4096, 4096, device=device)
    for ahead in (False, True):
        point = complete(TINY | settings | {"device_prefetch": ahead})
        loader = make_loader(point, image.datasets(point)[0], device)
        feed = Feed(point, endless(loader), work_of(point), device, Tracer())
        found = []
        for _ in range(14):
            batch = feed.next()
            for _ in range(20):
                busy @ busy
            found.append(batch["image"].double().sum(dim=(1, 2, 3)) * batch["label"])
            del batch
        sums.append(torch.stack(found).cpu())
    assert torch.equal(*sums)
