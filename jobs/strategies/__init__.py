"""How ranks share the training: one file a strategy, behind one small protocol."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from jobs.point import Point
from jobs.workloads import Work


class Trainer(Protocol):
    """A model made ready on this rank. A micro-batch is forward then backward; `step` ends the optimizer step."""

    model: Any

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Loss of one micro-batch (mean over its samples)."""

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Gradients, scaled for accumulation; `last` is the step's last micro-batch, which may communicate."""

    def step(self) -> None:
        """Optimizer step."""


def make_optimizer(point: Point, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over what is trained."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if point.optimizer == "adamw":
        return torch.optim.AdamW(trained, lr=point.learning_rate)
    return torch.optim.SGD(trained, lr=point.learning_rate, momentum=0.9)


def compute_dtype(point: Point) -> torch.dtype:
    """The dtype of a forward pass."""
    special = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
    return special.get(point.precision, torch.float32)


def freeze_in_compute_dtype(point: Point, model: torch.nn.Module) -> None:
    """Frozen weights need no fp32 copy: store them as the forward pass uses them."""
    for parameter in model.parameters():
        if not parameter.requires_grad and parameter.is_floating_point():
            parameter.data = parameter.data.to(compute_dtype(point))


def make_trainer(point: Point, work: Work, device: torch.device) -> Trainer:
    """The point's strategy around its workload."""
    if point.strategy in ("ddp", "ddp_ds"):
        from jobs.strategies.ddp import DdpTrainer

        return DdpTrainer(point, work, device)
    if point.strategy == "fsdp2":
        from jobs.strategies.fsdp import Fsdp2Trainer

        return Fsdp2Trainer(point, work, device)
    from jobs.strategies.zero import ZeroTrainer

    return ZeroTrainer(point, work, device)
