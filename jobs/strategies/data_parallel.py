"""torch.nn.DataParallel: one process drives all GPUs of the node. Each pass copies the model to all of them, splits the
batch, and gathers losses and gradients on the first."""

from __future__ import annotations

from typing import Any

import torch

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies import precision
from nightsweep.jobs.strategies.base import Trainer
from nightsweep.jobs.workloads.base import Batch, Work


class LossOf(torch.nn.Module):
    """Loss of a part of a batch, shape (1,): so that losses, and not outputs, are gathered."""

    def __init__(self, network: torch.nn.Module, loss_of: Any, autocast: torch.autocast) -> None:
        super().__init__()
        self.network, self.loss_of, self.autocast = network, loss_of, autocast

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        # In here, because the threads that run the replicas do not take autocast's dtype with them.
        with self.autocast:
            loss: torch.Tensor = self.loss_of(self.network, batch)
        return loss.reshape(1)


class DpTrainer(Trainer):
    """DataParallel over the first ranks_per_node GPUs, each with a micro_batch; on a CPU the model alone."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        gpus = torch.cuda.device_count() if device.type == "cuda" else 1
        if point.ranks_per_node > gpus:
            raise Unsupported(f"dp over {point.ranks_per_node} GPUs: {gpus if device.type == 'cuda' else 'none'} here")
        model = precision.place(point, work.model, device)
        self.equip(point, work, device, model)
        self.losses: torch.nn.Module = LossOf(model, work.loss, self.autocast)
        if device.type == "cuda":
            self.losses = torch.nn.DataParallel(self.losses, device_ids=list(range(point.ranks_per_node)))

    def forward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        loss: torch.Tensor = self.losses(**batch).mean()
        return loss
