"""FSDP2: each block's weights, gradients and optimizer state are sharded over ranks and gathered when used.

With `replicas` the shards lie in several groups of ranks, whose gradients are averaged (HSDP); with `tensor_parallel`
each layer is also split over ranks that see the same samples. The device mesh is (replicas, shard, tensor)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from nightsweep.jobs.host.unsupported import Unsupported
from nightsweep.jobs.point.point import Point
from nightsweep.jobs.strategies import precision
from nightsweep.jobs.strategies.base import Trainer
from nightsweep.jobs.strategies.mesh import make_mesh
from nightsweep.jobs.workloads import dtypes
from nightsweep.jobs.workloads.base import Batch, Work

SHARDS_INTEGERS = (2, 13)
"""The first PyTorch whose fully_shard was seen to take weights of integers; that of 2.11 asks gradients of them."""


class Fsdp2Trainer(Trainer):
    """fully_shard over each block and the root; bf16 and fp16 compute with fp32 shards."""

    def __init__(self, point: Point, work: Work, device: torch.device) -> None:
        model = precision.place(point, work.model, device)
        mesh = mesh_of(point, device)
        if point.tensor_parallel > 1:
            from nightsweep.jobs.strategies.tensor import split_layers

            split_layers(model, mesh["tensor"])
        offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if point.offload == "all" else OffloadPolicy()
        options: dict[str, Any] = {
            "mesh": mesh["replicas", "shard"] if point.replicas > 1 else mesh["shard"],
            "mp_policy": mixed_precision(point),
            "offload_policy": offload,
        }
        require_weights(model)
        if point.precision in precision.MIXED:
            precision.shorten_statistics(model, dtypes.compute(point))
        for layer in work.layers:
            fully_shard(layer, reshard_after_forward=point.reshard_after_forward, **options)
        # The root keeps what it gathered: its weights are used last and first.
        fully_shard(model, **options)
        prefetch(work.layers, point.prefetch_layers)
        self.equip(point, work, device, model)

    def forward(self, batch: Batch, *, last: bool) -> torch.Tensor:
        # The shards' policy casts, and not autocast.
        return self.loss_of(self.model, batch)

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        assert isinstance(self.model, FSDPModule)
        self.model.set_requires_gradient_sync(last)
        super().backward(loss, last=last)


def shards_integers() -> bool:
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= SHARDS_INTEGERS


def require_weights(model: torch.nn.Module) -> None:
    """Raise Unsupported where weights are integers, as QLoRA's are, and this PyTorch cannot shard such."""
    if not shards_integers() and not all(weight.is_floating_point() for weight in model.parameters()):
        wanted = ".".join(map(str, SHARDS_INTEGERS))
        raise Unsupported(f"fsdp2 of quantised weights needs PyTorch {wanted}; this is {torch.__version__}")


def mesh_of(point: Point, device: torch.device) -> DeviceMesh:
    """All ranks; those of a tensor-parallel group next to each other."""
    shard = torch.distributed.get_world_size() // (point.replicas * point.tensor_parallel)
    return make_mesh(device.type, "shard", replicas=point.replicas, shard=shard, tensor=point.tensor_parallel)


def mixed_precision(point: Point) -> MixedPrecisionPolicy:
    """Formats of the passes and of the sum of gradients, where they are not those of the weights."""
    reduce = torch.bfloat16 if point.reduce_dtype == "bf16" else torch.float32
    if point.precision in precision.MIXED:
        return MixedPrecisionPolicy(param_dtype=dtypes.compute(point), reduce_dtype=reduce)
    if point.precision == "bf16_pure":
        return MixedPrecisionPolicy(reduce_dtype=reduce)
    return MixedPrecisionPolicy()


def prefetch(layers: Sequence[torch.nn.Module], ahead: int) -> None:
    """Gather the weights of so many layers while the one before them is at work, in either direction."""
    for index, layer in enumerate(layers if ahead else ()):
        assert isinstance(layer, FSDPModule)
        layer.set_modules_to_forward_prefetch(list(layers[index + 1 : index + 1 + ahead]))  # type: ignore[arg-type]
        layer.set_modules_to_backward_prefetch(list(layers[max(0, index - ahead) : index])[::-1])  # type: ignore[arg-type]
