"""FSDP2: each block's weights, gradients and optimizer state are sharded over all ranks and gathered when used."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import FSDPModule

from jobs.point import Point
from jobs.strategies import compute_dtype, make_optimizer
from jobs.workloads import Work


class Fsdp2Trainer:
    """fully_shard over each block and the root; bf16 and fp16 compute with fp32 shards and fp32 gradient reduction."""

    model: Any

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        model = work.model.to(device, torch.float64 if point.precision == "fp64" else None)
        mixed = point.precision in ("bf16", "fp16")
        policy = (
            MixedPrecisionPolicy(param_dtype=compute_dtype(point), reduce_dtype=torch.float32)
            if mixed
            else MixedPrecisionPolicy()
        )
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        for layer in work.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        self.model = fully_shard(model, mesh=mesh, mp_policy=policy)
        self.optimizer = make_optimizer(point, self.model)
        self.scaler = torch.amp.GradScaler(device.type, enabled=point.precision == "fp16")
        self.accumulate = point.grad_accum
        self.loss_of = work.loss

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.loss_of(self.model, batch)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        self.scaler.scale(loss / self.accumulate).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
