"""Epochs after the timed window, and before any traced one, which would train the model further: trained as the window
is, each evaluated on images that are never trained on.

After each, all ranks keep a checkpoint in the point's folder, so that a later attempt at the same point goes on there.
The order of an epoch follows the seed and its number alone.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from nightsweep.jobs.host import clock
from nightsweep.jobs.rank.checkpoint import Checkpoints
from nightsweep.jobs.rank.feed import Feed
from nightsweep.jobs.rank.loader import one_epoch
from nightsweep.jobs.rank.loop import Loop, Step, synchronize
from nightsweep.jobs.record.failures import LossNotFinite
from nightsweep.jobs.record.json_files import json_line
from nightsweep.jobs.record.launch_files import EpochLine
from nightsweep.jobs.strategies import precision

FOLDER = "checkpoint"


def run(loop: Loop) -> list[EpochLine]:
    """All epochs that are left; the lines of accuracy.jsonl, which rank 0 writes after each."""
    point, device = loop.point, loop.device
    kept = Checkpoints(loop.run_folder.path.parent / FOLDER, loop.run_folder.path.name, loop.rank)
    rows = kept.load(loop.trainer, device)
    show(loop, rows)
    held_back = held_back_loader(loop)
    assert point.epochs is not None and point.target_accuracy is not None
    while len(rows) < point.epochs and not (rows and rows[-1].accuracy >= point.target_accuracy):
        epoch = len(rows) + 1
        trained = train(loop, epoch)
        loop.heart.beat(f"evaluation of epoch {epoch}")
        accuracy = evaluate(loop, held_back)
        rows.append(
            EpochLine(
                epoch=epoch,
                train_loss=trained.loss,
                accuracy=accuracy,
                held_back=len(loop.work.held_back),
                seconds=trained.seconds,
                samples=trained.samples,
            )
        )
        kept.save(rows, loop.trainer, device)
        show(loop, rows)
    loop.is_warm = False
    return rows


def show(loop: Loop, rows: list[EpochLine]) -> None:
    if loop.rank == 0:
        loop.run_folder.accuracy.write_text("".join(map(json_line, rows)))


@dataclass(frozen=True)
class Trained:
    """An epoch of training over all ranks: mean loss, seconds and samples."""

    loss: float
    seconds: float
    samples: int


def train(loop: Loop, epoch: int) -> Trained:
    """One epoch of steps, as those of the window. Raises LossNotFinite."""
    point = loop.point
    steps = len(loop.loader) // point.grad_accum
    if steps == 0:
        raise ValueError("this rank's share of the data is smaller than a step")
    loop.feed = Feed(point, one_epoch(point, loop.loader, epoch), loop.work, loop.device, loop.tracer)
    first = loop.total + (epoch - 1) * steps
    loop.trainer.model.train()
    losses: list[torch.Tensor] = []
    samples = 0
    began = time.perf_counter()
    for number in range(first, first + steps):
        loop.heart.step(number, loop.total + (point.epochs or 0) * steps)
        step = loop.one_step(Step(number, None, epoch, clock.now_ns(), time.monotonic_ns()))
        losses += step.losses
        samples += step.samples
    synchronize(loop.device)
    seconds = time.perf_counter() - began
    mean = torch.stack(losses).double().mean()
    if not math.isfinite(mean):
        bad = next(n for n, loss in enumerate(losses) if not math.isfinite(loss))
        raise LossNotFinite(first + bad // point.grad_accum, float(losses[bad]))
    total = sum_over_ranks(mean, loop.device)
    return Trained(total / dist.get_world_size(), seconds, int(sum_over_ranks(torch.tensor(samples), loop.device)))


def held_back_loader(loop: Loop) -> Any:
    """This rank's share of what is held back: every so-manieth image, in as many batches as each other rank has, for a
    forward pass may need them all. The batch of a rank that has run out is one image, which is not counted."""
    point, dataset = loop.point, loop.work.held_back
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = list(range(rank, len(dataset), ranks))
    batches = [own[n : n + point.samples(0)] for n in range(0, len(own), point.samples(0))]
    most = math.ceil(math.ceil(len(dataset) / ranks) / point.samples(0))
    workers = point.loader_workers
    return DataLoader(
        dataset,
        batch_sampler=batches + [[0]] * (most - len(batches)),
        num_workers=workers,
        pin_memory=point.pin_memory and torch.cuda.is_available(),
        collate_fn=getattr(dataset, "collate", None),
        multiprocessing_context="forkserver" if workers else None,
        persistent_workers=workers > 0,
    )


@torch.no_grad()
def evaluate(loop: Loop, loader: Any) -> float:
    """Share of the held-back images that the network names rightly."""
    point, model = loop.point, loop.trainer.model
    held_back = len(loop.work.held_back)
    own = len(range(dist.get_rank(), held_back, dist.get_world_size()))
    feed = Feed(point, iter(loader), loop.work, loop.device, loop.tracer)
    right = torch.zeros((), dtype=torch.int64, device=loop.device)
    model.eval()
    seen = 0
    for _ in range(len(loader)):
        loop.heart.pulse()
        batch = feed.next()
        # FSDP2 casts for itself
        with nullcontext() if point.strategy == "fsdp2" else precision.autocast(point, loop.device):
            found = loop.work.correct(model, batch)
        if seen < own:
            right += found
        seen += len(batch["label"])
    model.train()
    return sum_over_ranks(right, loop.device) / held_back


def sum_over_ranks(value: torch.Tensor, device: torch.device) -> float:
    """The sum of a number over all ranks."""
    total = value.to(device, torch.float64).clone()
    dist.all_reduce(total)
    return float(total)
