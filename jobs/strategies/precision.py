"""Number formats of weights and of the passes."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.workloads import dtypes

MIXED = ("bf16", "fp16")
"""Precisions whose passes compute in a shorter format than that of the trained weights."""


def place(point: Point, model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model on the device, its weights in the format in which the point holds them."""
    model = model.to(device, torch.float64 if point.precision == "fp64" else None)
    if point.precision == "bf16_pure":
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(torch.bfloat16)
        shorten_batch_norms(model, torch.bfloat16)
    return model


def shorten_batch_norms(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast batch norms with their running statistics, which must be of the format of their weights. They are all of a
    model's buffers that may be cast: rotary frequencies in bf16 would put tokens in wrong places."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.to(dtype)


def shorten_statistics(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast the running statistics of batch norms whose weights are cast for each pass, and held as they are."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.to(dtype))


def autocast(point: Point, device: torch.device) -> torch.autocast:
    """The context of a forward pass: it casts for bf16 and fp16, and does nothing else."""
    mixed = point.precision in MIXED
    # A weight that a CUDA graph casts must be cast again in each replay.
    cache = not point.cuda_graph
    dtype = dtypes.compute(point) if mixed else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=mixed, cache_enabled=cache)


def scaler(point: Point, device: torch.device) -> torch.amp.GradScaler:
    """Scales losses for fp16, and does nothing elsewhere."""
    return torch.amp.GradScaler(device.type, enabled=point.precision == "fp16")
