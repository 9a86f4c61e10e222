"""Batches without end, sharded over the ranks or not, in an order that follows the seed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, Sampler, default_collate

from nightsweep.jobs.hook import release
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.record.failures import TOO_FEW_SAMPLES
from nightsweep.jobs.workloads.images import augmentation

Batch = dict[str, torch.Tensor]


def make_loader(point: Point, dataset: Any, device: torch.device) -> Any:
    """The point's loader: batches of an epoch when iterated, as many as its `len` says."""
    sampler = make_sampler(point, dataset)
    if point.loader == "device":
        return OneBatch(point, dataset, sampler, device)
    if point.loader == "dali":
        from nightsweep.jobs.workloads.images.dali import DaliLoader

        return DaliLoader(point, dataset, device)
    workers = point.loader_workers
    if point.release_unlocked:
        release.unlock()
    # a data set that gives whole batches has nothing to be collated
    collate = getattr(dataset, "collate", default_collate)
    if point.augment == "worker":
        collate = functools.partial(augmentation.collate, own=collate)
    taken: dict[str, Any] = {"batch_size": point.samples(0), "sampler": sampler, "drop_last": True}
    if point.across_epochs:
        taken = {"batch_sampler": EndlessBatches(sampler, point.samples(0))}
    return DataLoader(
        dataset,
        **taken,
        num_workers=workers,
        pin_memory=point.pin_memory and torch.cuda.is_available(),
        collate_fn=collate,
        # fork would copy a process that holds a GPU and, when traced, the profiler's threads
        multiprocessing_context="forkserver" if workers else None,
        persistent_workers=workers > 0 and point.persistent_workers,
        prefetch_factor=point.prefetch_factor if workers else None,
    )


def make_sampler(point: Point, dataset: Dataset[Any]) -> Sampler[int]:
    """Strategy ddp gives every rank the whole set, each in its own order; all others shard it, over ranks or, where
    several ranks split a model, over their groups."""
    seed = point.seed + point.repeat
    if point.strategy == "ddp":
        generator = torch.Generator().manual_seed(seed * 1000 + dist.get_rank())
        return RandomSampler(dataset, generator=generator)  # type: ignore[arg-type]
    shared = point.ranks_per_batch
    groups, own = dist.get_world_size() // shared, dist.get_rank() // shared
    return DistributedSampler(dataset, groups, own, seed=seed, drop_last=True)


def begin_epoch(sampler: Any, epoch: int) -> None:
    """Where the order of a sampler follows the number of the epoch, tell it."""
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


class EndlessBatches(Sampler[list[int]]):
    """Batches of one epoch after another without a pause between them; its `len` is that of one epoch."""

    def __init__(self, sampler: Sampler[int], size: int) -> None:
        self.sampler, self.size, self.epoch = sampler, size, 0

    def __len__(self) -> int:
        return len(self.sampler) // self.size  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.epoch
        while len(self):
            begin_epoch(self.sampler, epoch)
            order = iter(self.sampler)
            for _ in range(len(self)):
                yield list(islice(order, self.size))
            for _ in order:  # to its end, where RandomSampler draws once more
                pass
            epoch += 1


class OneBatch:
    """The first batch of the order, made on the device once; samples are taken again where there are too few."""

    def __init__(self, point: Point, dataset: Dataset[Any], sampler: Sampler[int], device: torch.device) -> None:
        from nightsweep.jobs.workloads.image import images_layout

        order = list(sampler)
        items = [dataset[order[n % len(order)]] for n in range(point.samples(0))]
        batch = {name: value.to(device) for name, value in default_collate(items).items()}
        image = batch["image"].double() if point.precision == "fp64" else batch["image"]
        self.batch = batch | {"image": image.contiguous(memory_format=images_layout(point))}
        self.batches = max(1, len(order) // point.samples(0))

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self.batches):
            yield dict(self.batch)


def read_order(loader: Any) -> Any:
    """What decides on the order of a loader's samples."""
    batches = getattr(loader, "batch_sampler", None)
    return batches if isinstance(batches, EndlessBatches) else getattr(loader, "sampler", None)


def endless(loader: Any) -> Iterator[Batch]:
    """Epoch after epoch. Raises ValueError where a rank's share is smaller than a batch."""
    if len(loader) == 0:
        raise ValueError(TOO_FEW_SAMPLES)
    epoch = 0
    while True:
        begin_epoch(read_order(loader), epoch)
        yield from loader
        epoch += 1


def one_epoch(point: Point, loader: Any, epoch: int) -> Iterator[Batch]:
    """The batches of one epoch, whose order follows the seed and the epoch's number, whatever was read before."""
    order = read_order(loader)
    begin_epoch(order, epoch)
    own = getattr(order, "sampler", order)
    if isinstance(own, RandomSampler):
        own.generator.manual_seed(((point.seed + point.repeat) * 1000 + dist.get_rank()) * 100_003 + epoch)
    return islice(iter(loader), len(loader))
