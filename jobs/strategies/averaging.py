"""The mean of tensors over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def average(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Put the mean over the group in the place of each tensor; of DTensors, of this rank's part. The sums of all are
    under way together."""
    own = [t.to_local() if isinstance(t, DTensor) else t for t in tensors]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in own]
    for work in works:
        work.wait()
    torch._foreach_div_(own, dist.get_world_size(group))


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
