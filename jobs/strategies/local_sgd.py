"""Local SGD (arXiv 1805.09767): ranks train apart, and every so many steps put the mean of their weights in
their place. The optimizer's state stays each rank's own."""

from __future__ import annotations

import torch

from jobs.point import Point
from jobs.strategies import Trainer, precision
from jobs.strategies.averaging import average
from jobs.strategies.optimizer import make_optimizer
from jobs.workloads import Batch, Work


class LocalSgdTrainer(Trainer):
    """The plain model, with autocast for bf16 and fp16, and a loss scaler for fp16."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        self.model = precision.place(point, work.model, device)
        self.optimizer = make_optimizer(point, self.model)
        self.scaler = precision.scaler(point, device)
        self.accumulate = point.grad_accum
        self.loss_of = work.loss
        self.autocast = precision.autocast(point, device)
        self.every = point.local_steps
        self.taken = 0

    def forward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        with self.autocast:
            return self.loss_of(self.model, batch)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        self.scaler.scale(loss / self.accumulate).backward()

    def step(self) -> None:
        super().step()
        self.taken += 1
        if self.taken % self.every == 0:
            average(p.data for p in self.model.parameters() if p.requires_grad)
