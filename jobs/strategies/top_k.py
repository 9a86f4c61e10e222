"""A hook of DDP that sends the largest gradients alone and keeps the rest for the next step (arXiv 1809.07599)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

SHARE = 100
"""Of so many gradients one is sent."""
PLAIN_STEPS = 2
"""The first steps average plainly, as with PowerSGD: DDP makes its buckets anew after the first."""


class TopK:
    """Ranks send other places, so all gather the messages of all; what is not sent is added to the next gradients."""

    def __init__(self) -> None:
        self.step = 0
        self.left: dict[int, torch.Tensor] = {}

    def send(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """A future of DDP's bucket, with the mean over the ranks in it."""
        number = bucket.index()
        own: torch.Tensor = bucket.buffer()
        plain = self.step < PLAIN_STEPS
        self.step += bucket.is_last()
        if plain:
            return default_hooks.allreduce_hook(None, bucket)  # type: ignore[arg-type]  # None: the default group
        if number in self.left:
            own.add_(self.left[number])
        places = own.abs().topk(max(1, len(own) // SHARE), sorted=False).indices
        message = torch.cat([own[places].float().view(torch.int32), places.int()])
        self.left[number] = own.index_fill(0, places, 0)
        messages = [torch.empty_like(message) for _ in range(dist.get_world_size())]

        def mean(_: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            own.zero_()
            for one in messages:
                values, there = one.chunk(2)
                own.index_add_(0, there, values.view(torch.float32).to(own.dtype))
            return own.div_(len(messages))

        return dist.all_gather(messages, message, async_op=True).get_future().then(mean)  # type: ignore[no-any-return]
