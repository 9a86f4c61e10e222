"""The last layer and the loss over it, in parts, so that the logits of a batch are never held whole.

The cross entropy's gradient is known as soon as its logits are: softmax(logits) minus one at the target. So each part
takes the gradients of hidden states and weight in the forward pass, and no product is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from nightsweep.jobs.workloads import dtypes

IGNORED = -100
"""Label of a token that is not to be predicted, as in PyTorch's cross entropy."""

Part = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def next_tokens(labels: torch.Tensor) -> torch.Tensor:
    """What each place is to predict: labels (N, S), one to the left."""
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def loss_and_gradient(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed cross entropy of logits (n, V) and its gradient, in the logits' format; computed in fp32 at least."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    valid = targets != IGNORED
    place = targets.clamp(min=0)[:, None]
    total = torch.logsumexp(wide, -1, keepdim=True)
    loss = ((total - wide.gather(-1, place)).squeeze(-1) * valid).sum()
    hit = torch.arange(logits.shape[-1], device=logits.device) == place
    return loss, (((wide - total).exp() - hit.to(wide.dtype)) * valid[:, None]).to(logits.dtype)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunks: int, part: Part
    ) -> torch.Tensor:
        dtype = dtypes.product_dtype(hidden)
        # unscaled until backward: in fp16 the mean over many tokens would underflow
        of_hidden = torch.empty_like(hidden, dtype=dtype) if ctx.needs_input_grad[0] else None
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        sums = []
        with torch.autocast("cpu" if hidden.is_meta else hidden.device.type, enabled=False):
            matrix = weight.to(dtype)
            for start, stop in bounds(len(targets), chunks):
                h = hidden[start:stop].to(dtype)
                loss, gradient = part(h @ matrix.T, targets[start:stop])
                sums.append(loss)
                if of_hidden is not None:
                    torch.mm(gradient, matrix, out=of_hidden[start:stop])
                if of_weight is not None and of_weight.dtype == dtype:
                    torch.addmm(of_weight, gradient.T, h, out=of_weight)
                elif of_weight is not None:
                    of_weight += gradient.T @ h
        count = (targets != IGNORED).sum()
        ctx.gradients = of_hidden, of_weight, count
        return torch.stack(sums).sum() / count

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, outer: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None, None]:
        of_hidden, of_weight, count = ctx.gradients
        del ctx.gradients
        scale = outer / count
        scaled = [None if g is None else g.mul_(scale.to(g.dtype)) for g in (of_hidden, of_weight)]
        return scaled[0], scaled[1], None, None, None


def bounds(length: int, chunks: int) -> list[tuple[int, int]]:
    """Starts and ends of so many parts of about one size, none empty."""
    size = -(-length // chunks)
    return [(start, min(start + size, length)) for start in range(0, length, size)]


class LossHead(torch.nn.Linear):
    """The last layer, hidden (..., H) to logits (..., V); given targets it is the loss, in so many parts (0: whole).

    It is one module, so that whatever gathers a sharded weight for the layer does so for the loss too."""

    def __init__(self, hidden: int, vocabulary: int, chunks: int, fuse: bool) -> None:
        super().__init__(hidden, vocabulary, bias=False)
        self.chunks = chunks
        self.part = torch.compile(loss_and_gradient, dynamic=False) if fuse else loss_and_gradient

    def forward(self, hidden: torch.Tensor, targets: torch.Tensor | None = None, each: bool = False) -> torch.Tensor:
        """Logits; with targets (N, S) their mean cross entropy or, `each`, log-probabilities (N, S), 0 if ignored."""
        if targets is None:
            return super().forward(hidden)
        flat, wanted = hidden.flatten(0, -2), targets.flatten()
        if not each:
            out: torch.Tensor = _ChunkedCrossEntropy.apply(flat, self.weight, wanted, self.chunks, self.part)
            return out
        if self.chunks == 0:
            return self._log_probabilities(flat, wanted).view(targets.shape)
        parts = [
            checkpoint(self._log_probabilities, flat[start:stop], wanted[start:stop], use_reentrant=False)
            for start, stop in bounds(len(wanted), self.chunks)
        ]
        return torch.cat(parts).view(targets.shape)

    def _log_probabilities(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = super().forward(hidden)
        return -F.cross_entropy(
            logits if logits.dtype == torch.float64 else logits.float(), targets, ignore_index=IGNORED, reduction="none"
        )
