"""NVIDIA DALI as the loader: native readers and decoders, in threads, on the CPU or the GPU.

Written for DALI 1.43 to 2.4, which is no dependency: it is imported where a point asks for it. A pipeline reads
prepared files (JPEG, or raw bytes), decodes them, enlarges small ones, and gives batches of the same shapes and values
as the DataLoader does. Ranks share the files as shards of one order, which is shuffled after each epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.workloads.images.datasets import Files

READER = "files"


def shards(point: Point) -> tuple[int, int, int]:
    """Number of this rank's shard, number of shards, and seed of the order; the same in all ranks that share it."""
    seed = point.seed + point.repeat
    if point.strategy == "ddp":
        return 0, 1, seed * 1000 + dist.get_rank()
    shared = point.ranks_per_batch
    return dist.get_rank() // shared, dist.get_world_size() // shared, seed


def pipeline(point: Point, dataset: Files, device: torch.device) -> Any:
    """The pipeline of this rank's shard; outputs: images, (N, 3, H, W) floats or (N, H, W, 3) bytes, and labels."""
    from nvidia.dali import fn, pipeline_def, types

    shard, count, seed = shards(point)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()
    files = [str(dataset.prepared.file(int(dataset.rows[place]))) for place in order]
    labels = [int(dataset.labels[place]) for place in order]
    on_gpu = point.dali_on != "cpu"

    # DALI would rewrite `if` in the function for conditions on data; these are on settings.
    @pipeline_def(  # type: ignore[untyped-decorator]
        batch_size=point.samples(0),
        num_threads=point.loader_workers,
        device_id=device.index if on_gpu else None,
        prefetch_queue_depth=point.prefetch_factor,
        seed=seed,
        enable_conditionals=False,
    )
    def pipe() -> Any:
        read, label = fn.readers.file(
            files=files, labels=labels, shard_id=shard, num_shards=count, name=READER, shuffle_after_epoch=True,
            shuffle_after_epoch_seed=seed,
        )  # fmt: skip
        if dataset.prepared.form == "jpeg":
            image = fn.decoders.image(read, device="mixed" if on_gpu else "cpu", output_type=types.RGB)
        else:
            image = fn.reinterpret(read.gpu() if on_gpu else read, shape=list(dataset.shape), layout="HWC")
        if point.source == "small":
            image = fn.resize(image, size=[point.image_size, point.image_size], antialias=False)
        if point.pixels == "float":
            image = fn.crop_mirror_normalize(
                image, dtype=types.FLOAT, output_layout="CHW", mean=[127.5] * 3, std=[127.5] * 3
            )
        return image, label

    return pipe()


class DaliLoader:
    """Batches of this rank's shard, epoch after epoch. Raises Unsupported where DALI, or a GPU for it, is absent."""

    def __init__(self, point: Point, dataset: Files, device: torch.device) -> None:
        if point.dali_on != "cpu" and device.type != "cuda":
            raise Unsupported(f"dali_on {point.dali_on} needs a GPU; this rank has a CPU")
        try:
            from nvidia.dali.plugin.base_iterator import LastBatchPolicy
            from nvidia.dali.plugin.pytorch import DALIGenericIterator
        except ImportError as error:
            raise Unsupported(f"loader dali needs NVIDIA DALI, which is not installed here ({error})") from None
        self.pin = point.pin_memory and torch.cuda.is_available()
        built = pipeline(point, dataset, device)
        self.batches = DALIGenericIterator(
            [built], ["image", "label"], reader_name=READER, last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
        )

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for (batch,) in self.batches:
            batch["label"] = batch["label"].flatten().long()
            yield {name: value.pin_memory() for name, value in batch.items()} if self.pin else batch
