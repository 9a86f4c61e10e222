"""Local SGD (arXiv 1805.09767): ranks train apart, and every so many steps put the mean of their weights in
their place. The optimizer's state stays each rank's own."""

from __future__ import annotations

import torch

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies import precision
from nightsweep.jobs.strategies.averaging import average
from nightsweep.jobs.strategies.base import Trainer
from nightsweep.jobs.workloads.base import Work


class LocalSgdTrainer(Trainer):
    """The plain model, with autocast for bf16 and fp16, and a loss scaler for fp16."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        self.equip(point, work, device, precision.place(point, work.model, device))
        self.every = point.local_steps
        self.taken = 0

    def step(self) -> None:
        super().step()
        self.taken += 1
        if self.taken % self.every == 0:
            average(p.data for p in self.model.parameters() if p.requires_grad)
