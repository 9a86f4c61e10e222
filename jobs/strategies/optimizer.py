"""The optimizer over what is trained."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from nightsweep.jobs.point.point import Point

KERNELS: dict[str, dict[str, bool]] = {
    "default": {},
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def make_optimizer(point: Point, model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW with torch's betas (0.9 and 0.999), or SGD with momentum 0.9."""
    # Kernels over lists of tensors take lists of one kind: a group for plain ones, and one for each mesh of DTensors.
    kinds: dict[Any, list[torch.nn.Parameter]] = defaultdict(list)
    for parameter in model.parameters():
        if parameter.requires_grad:
            kinds[getattr(parameter, "device_mesh", None)].append(parameter)  # of a DTensor, slow to import to ask
    groups = [{"params": parameters} for parameters in kinds.values()]
    kernels: dict[str, Any] = KERNELS[point.optimizer_kernels]
    if point.optimizer == "adamw" and point.offload != "none" and not kernels:
        kernels = KERNELS["fused"]  # on a CPU torch's default is a loop over tensors, five times as slow
    options = {"lr": point.learning_rate} | kernels
    if point.weight_decay is not None:
        options["weight_decay"] = point.weight_decay
    if point.optimizer == "adamw":
        return torch.optim.AdamW(groups, **options)
    return torch.optim.SGD(groups, momentum=0.9, **options)
