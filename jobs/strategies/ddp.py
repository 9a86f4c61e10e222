"""Distributed data parallel: every rank holds the model, gradients are averaged as they become ready."""

from __future__ import annotations

import contextlib

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies import precision
from nightsweep.jobs.strategies.base import Trainer
from nightsweep.jobs.strategies.top_k import TopK
from nightsweep.jobs.workloads.base import Batch, Work

POWERSGD_RANK = 1
POWERSGD_START = 2
"""The first steps average plainly; 2 is the least that PowerSGD takes, so that warm-up steps hide the change."""


class DdpTrainer(Trainer):
    """DDP with autocast for bf16 and fp16, and a loss scaler for fp16."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        if point.comm_hook == "bf16" and device.type == "cpu":
            raise Unsupported("comm_hook bf16 needs NCCL; this rank has a CPU")
        model = DistributedDataParallel(
            precision.place(point, work.model, device),
            device_ids=[device.index] if device.type == "cuda" else None,
            bucket_cap_mb=point.ddp_bucket_mb,
            gradient_as_bucket_view=point.ddp_bucket_view,
            static_graph=point.ddp_static_graph,
        )
        compress(model, point.comm_hook)
        self.equip(point, work, device, model)

    def forward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        # DDP decides in the forward pass whether the backward pass is to communicate.
        with contextlib.nullcontext() if last else self.model.no_sync():
            return super().forward(batch, last=last)


def compress(model: DistributedDataParallel, hook: str) -> None:
    """Have DDP send gradients as bf16 or fp16 numbers, as factors of rank 1 with the error fed back (PowerSGD, arXiv
    1905.13727), or the largest alone."""
    if hook in ("bf16", "fp16"):
        model.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "topk":
        model.register_comm_hook(TopK(), lambda state, bucket: state.send(bucket))
