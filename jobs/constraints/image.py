"""What image training cannot be."""

from __future__ import annotations

from jobs.constraints.reason import Reason
from jobs.point import Point

PATCH_PX = 16


def vit_patches(p: Point) -> Reason | None:
    if p.model == "vit_s" and p.image_size is not None and p.image_size % PATCH_PX:
        return Reason(("image_size", "model"), f"{p.image_size} is not a multiple of {PATCH_PX}, as vit_s needs")
    return None


CHECKS = (vit_patches,)
