"""Images turned, scaled and moved at random, each in its own way: by a loader's worker, or on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from nightsweep.jobs.workloads.base import Batch
from nightsweep.jobs.workloads.images.digits import from_bytes, to_bytes

MOST_DEGREES, MOST_SCALE, MOST_SHIFT = 15.0, 0.1, 0.1
"""Either way; of the size, and of half the edge. A digit stays the digit that it is."""


def augment(images: torch.Tensor) -> torch.Tensor:
    """Images of the same kind: values (N, C, H, W), or bytes (N, H, W, C)."""
    if images.dtype == torch.uint8:
        return to_bytes(augment(from_bytes(images))).permute(0, 2, 3, 1).contiguous()
    # in bf16 a place is good to a pixel at best
    dtype = torch.promote_types(images.dtype, torch.float32)
    angle, scale, x, y = torch.rand(4, len(images), device=images.device, dtype=dtype) * 2 - 1
    angle, scale = angle * math.radians(MOST_DEGREES), 1 + scale * MOST_SCALE
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = torch.stack([cos, -sin, x * MOST_SHIFT, sin, cos, y * MOST_SHIFT], dim=1).view(-1, 2, 3)
    grid = F.affine_grid(rows, list(images.shape), align_corners=False)
    return F.grid_sample(images.to(dtype), grid, padding_mode="border", align_corners=False).to(images.dtype)


def collate(samples: Any, own: Callable[[Any], Batch]) -> Batch:
    """What a loader makes of samples with `own`, augmented."""
    batch = own(samples)
    return batch | {"image": augment(batch["image"])}
