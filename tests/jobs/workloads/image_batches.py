"""Small images, and the batches of them that reach the network."""

import torch

from nightsweep.jobs.point.point import complete
from nightsweep.jobs.rank.feed import Feed
from nightsweep.jobs.rank.loader import make_loader, one_epoch
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads import image
from nightsweep.jobs.workloads.base import Work

CPU = torch.device("cpu")
SIZE = 40
TINY = {"workload": "image", "model": "resnet50", "image_size": SIZE, "micro_batch": 16}
STEP = 1 / 127.5
"""Of a byte's values, as floats from -1 to 1."""


def work_of(point):
    """As much of the work as a feed takes."""
    return Work(None, None, image.preparation(point), image.loss, (), tokens_per_sample=None)


def batches(settings, count=None):
    """The batches of an epoch as they reach the network."""
    point = complete(TINY | settings)
    dataset, _ = image.datasets(point)
    loader = make_loader(point, dataset, CPU)
    feed = Feed(point, one_epoch(point, loader, 3), work_of(point), CPU, Tracer())
    return [feed.next() for _ in range(count or len(loader))]


def assert_same(found, expected, atol):
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one["label"], other["label"])
        assert one["image"].shape == other["image"].shape == (16, 3, SIZE, SIZE)
        assert one["image"].dtype == other["image"].dtype
        assert torch.allclose(one["image"], other["image"], atol=atol)
