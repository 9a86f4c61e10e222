"""Batches without end, sharded over the ranks or not, in an order that follows the seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from jobs.point import Point


def make_loader(point: Point, dataset: Dataset[Any]) -> DataLoader[Any]:
    """The point's loader. Strategy ddp gives every rank the whole set, each in its own order; all others shard it, over
    ranks or, where several ranks split a model, over their groups."""
    seed = point.seed + point.repeat
    sampler: Any
    if point.strategy == "ddp":
        generator = torch.Generator().manual_seed(seed * 1000 + dist.get_rank())
        sampler = RandomSampler(dataset, generator=generator)  # type: ignore[arg-type]
    else:
        shared = point.ranks_per_batch
        sampler = DistributedSampler(
            dataset, dist.get_world_size() // shared, dist.get_rank() // shared, seed=seed, drop_last=True
        )
    workers = point.loader_workers
    return DataLoader(
        dataset,
        batch_size=point.samples(0),
        sampler=sampler,
        num_workers=workers,
        pin_memory=point.pin_memory and torch.cuda.is_available(),
        drop_last=True,
        # fork would copy a process that holds a GPU and, when traced, the profiler's threads
        multiprocessing_context="forkserver" if workers else None,
        persistent_workers=workers > 0,
        prefetch_factor=point.prefetch_factor if workers else None,
    )


def endless(loader: DataLoader[Any]) -> Iterator[dict[str, torch.Tensor]]:
    """Epoch after epoch. Raises ValueError where a rank's share is smaller than a batch."""
    if len(loader) == 0:
        raise ValueError("this rank's share of the data is smaller than one micro_batch")
    epoch = 0
    while True:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1
