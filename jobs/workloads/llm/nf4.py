"""A frozen linear layer whose weight is held in NF4 (arXiv 2305.14314), 4.13 bits a number.

torchao makes the numbers. They are held as plain tensors and not as torchao's tensor subclass, which turns back into
a full weight wherever a module is cast, is not sharded by ZeRO, and cannot be traced by torch.compile.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from nightsweep.jobs.workloads import dtypes

BLOCK = 64
SCALES_BLOCK = 256


def scales_block(numel: int) -> int:
    """Scales that share a second scale: 256, or fewer in layers too small."""
    return math.gcd(SCALES_BLOCK, numel // BLOCK)


class Nf4Linear(torch.nn.Linear):
    """Linear layer of NF4 numbers, two a byte: `weight` (out, in / 2) uint8, int8 `scales` of each 64 of them, which
    are again scaled by `factors` and moved by `mean`. Filled by `quantise`."""

    def __init__(self, like: torch.nn.Linear, dtype: torch.dtype) -> None:
        torch.nn.Module.__init__(self)
        device = like.weight.device
        self.in_features, self.out_features, self.dtype = like.in_features, like.out_features, dtype
        numel = like.weight.numel()
        blocks = numel // BLOCK

        def held(shape: tuple[int, ...], kind: torch.dtype) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(shape, dtype=kind, device=device), requires_grad=False)

        self.weight = held((like.out_features, like.in_features // 2), torch.uint8)
        self.scales = held((blocks,), torch.int8)
        self.factors = held((blocks // scales_block(numel),), dtype)
        self.mean = held((1,), dtype)
        self.register_parameter("bias", None)
        self.pairs: torch.Tensor
        self.register_buffer("pairs", torch.empty(256, 2, dtype=dtype, device=device), persistent=False)

    @torch.no_grad()
    def quantise(self, weight: torch.Tensor) -> None:
        """Take over a weight (out, in) of this layer's format."""
        from torchao.quantization import NF4Tensor

        numbers: Any = NF4Tensor.from_tensor(weight, BLOCK, scales_block(weight.numel()))
        self.weight.copy_(numbers.quantized_data.view_as(self.weight))
        self.scales.copy_(numbers.quantized_scalers)
        self.factors.copy_(numbers.quantization_factor)
        self.mean.copy_(numbers.scaler_mean)
        byte = torch.arange(256, device=weight.device)
        self.pairs.copy_(torch.stack((numbers.nf4[byte >> 4], numbers.nf4[byte & 15]), -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Product.apply(x, self.weight, self.scales, self.factors, self.mean, self.pairs)
        return out


def dequantise(
    codes: torch.Tensor, scales: torch.Tensor, factors: torch.Tensor, mean: torch.Tensor, pairs: torch.Tensor
) -> torch.Tensor:
    """The weight (out, in) in the format of `pairs`, the two numbers that each byte stands for."""
    scale = (scales.view(len(factors), -1) / factors[:, None]).to(pairs.dtype) + mean.to(pairs.dtype)
    numbers = pairs[codes.view(-1, BLOCK // 2).int()].flatten(1)
    return (numbers * scale.view(-1, 1)).view(codes.shape[0], -1)


class _Product(torch.autograd.Function):
    """x W^T, which makes W again for its backward pass: kept, the whole model would be there in full size."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, *numbers: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*numbers)
        dtype = dtypes.product_dtype(x)
        return F.linear(x.to(dtype), dequantise(*numbers).to(dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad @ dequantise(*ctx.saved_tensors).to(grad.dtype), None, None, None, None, None
