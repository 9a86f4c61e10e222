"""Number formats in which a point holds its weights."""

from __future__ import annotations

import torch

from nightsweep.jobs.point.point import Point

_COMPUTE = {"bf16": torch.bfloat16, "bf16_pure": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def compute(point: Point) -> torch.dtype:
    """The format of a forward pass, in which frozen weights are held."""
    return _COMPUTE.get(point.precision, torch.float32)


def weight_dtype(point: Point) -> torch.dtype:
    """The format of trained weights: fp32 in mixed precision."""
    return torch.float32 if point.precision in ("bf16", "fp16") else compute(point)


def product_dtype(x: torch.Tensor) -> torch.dtype:
    """The format in which x is multiplied here and now: autocast's, where that is on."""
    kind = x.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):  # autocast does not know the meta device
        return torch.get_autocast_dtype(kind)
    return x.dtype
