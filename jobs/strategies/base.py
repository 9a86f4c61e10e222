"""How ranks share the training: one file a strategy, behind one small class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.settings.compute import GRAPHING_MODES
from nightsweep.jobs.strategies import precision
from nightsweep.jobs.strategies.optimizer import make_optimizer
from nightsweep.jobs.telemetry.trace.tracers import Tracer
from nightsweep.jobs.workloads.base import Batch, Work

Spoil = Callable[[torch.Tensor], torch.Tensor]
"""Takes a micro-batch's loss and gives it back, but for a failure made on purpose."""


class Trainer:
    """A model made ready on this rank. A step is its micro-batches, then `step`.

    A strategy gives `forward` or `backward` where its passes differ from those of the plain model, and `micro_batches`
    where it needs all of them at once."""

    model: Any
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    autocast: torch.autocast
    accumulate: int
    loss_of: Callable[[Any, Batch], torch.Tensor]
    keep_gradients = False
    """Gradients are zeroed where they lie, and not dropped, after a step."""

    def equip(self, point: Point, work: Work, device: torch.device, model: torch.nn.Module) -> None:
        """What training takes beside the model, which is on the device, wrapped or split."""
        self.model = model
        self.optimizer = make_optimizer(point, model)
        self.scaler = precision.scaler(point, device)
        self.autocast = precision.autocast(point, device)
        self.accumulate = point.grad_accum
        self.loss_of = work.loss
        if point.compile in GRAPHING_MODES and point.grad_accum > 1:
            # The next micro-batch overwrites what torch.compile's graphs wrote: gradients are added to sums of our own.
            self.keep_gradients = True
            for weight in model.parameters():
                weight.grad = torch.zeros_like(weight) if weight.requires_grad else None

    def forward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        """Loss of one micro-batch (mean over its samples); `last` is the step's last one."""
        with self.autocast:
            return self.loss_of(self.model, batch)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Gradients, scaled for accumulation; those of the last micro-batch may communicate."""
        self.scaler.scale(loss / self.accumulate).backward()

    def micro_batches(self, batches: Iterable[Batch], tracer: Tracer, spoil: Spoil) -> list[torch.Tensor]:
        """Forward and backward passes of a step's micro-batches; their losses, on the device."""
        losses = []
        for micro, batch in enumerate(batches):
            last = micro == self.accumulate - 1
            with tracer.range("forward"):
                loss = spoil(self.forward(batch, last=last))
            with tracer.range("backward"):
                self.backward(loss, last=last)
            losses.append(loss.detach())
        return losses

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=not self.keep_gradients)

    def close(self) -> None:
        """Let go of what would keep the process group from ending."""
