"""Distributed data parallel: every rank holds the model, gradients are averaged as they become ready."""

from __future__ import annotations

import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel

from jobs.point import Point
from jobs.strategies import compute_dtype, freeze_in_compute_dtype, make_optimizer
from jobs.workloads import Work


class DdpTrainer:
    """DDP with autocast for bf16 and fp16, and a loss scaler for fp16."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        model = work.model.to(device, torch.float64 if point.precision == "fp64" else None)
        freeze_in_compute_dtype(point, model)
        ids = [device.index] if device.type == "cuda" else None
        self.model = DistributedDataParallel(model, device_ids=ids)
        self.optimizer = make_optimizer(point, self.model)
        self.scaler = torch.amp.GradScaler(device.type, enabled=point.precision == "fp16")
        self.accumulate = point.grad_accum
        self.loss_of = work.loss
        mixed = point.precision in ("bf16", "fp16")
        self.autocast = torch.autocast(device.type, compute_dtype(point) if mixed else torch.bfloat16, enabled=mixed)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with self.autocast:
            return self.loss_of(self.model, batch)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        with contextlib.nullcontext() if last else self.model.no_sync():
            self.scaler.scale(loss / self.accumulate).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
