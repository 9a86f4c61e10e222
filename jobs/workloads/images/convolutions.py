"""Convolutions of transformers' networks, computed in a faster shape: the same sums of the same weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F


def fuse_padding(mobile: torch.nn.Module) -> None:
    """Let the convolutions of stride 1 pad: there TensorFlow's padding, for which transformers copies each input, is
    symmetric, and for kernels of 1 x 1 none at all."""
    layer: Any
    for layer in mobile.modules():
        convolution = getattr(layer, "convolution", None)
        if convolution is not None and convolution.stride == (1, 1):
            convolution.padding = tuple(
                reach * (edge - 1) // 2
                for edge, reach in zip(convolution.kernel_size, convolution.dilation, strict=True)
            )
            layer.config = copy.copy(layer.config)
            layer.config.tf_padding = False


class SpaceToDepth(torch.nn.Conv2d):
    """A convolution of 7 x 7, stride 2, padding 3 over 3 channels, as one of 4 x 4, stride 1 over 12: blocks of 2 x 2
    pixels become channels, and the kernel, with a row and a column of zeros put before it, is split likewise.
    docs/techniques.md has what it gives; channels padded to 4 or 8 gave nothing to speak of."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Maps (N, 64, ceil(H / 2), ceil(W / 2)) of images (N, 3, H, W)."""
        height, width = images.shape[-2:]
        order = (
            torch.channels_last if images.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
        )
        blocks = F.pixel_unshuffle(F.pad(images, (4, 2 + width % 2, 4, 2 + height % 2)), 2)
        kernel = F.pixel_unshuffle(F.pad(self.weight, (1, 0, 1, 0)), 2)
        return F.conv2d(blocks.contiguous(memory_format=order), kernel.contiguous(memory_format=order))


def block_stem(resnet: Any) -> None:
    """ResNet's first convolution by space to depth; its weight stays what it is, under its name."""
    first = resnet.resnet.embedder.embedder.convolution
    blocked = SpaceToDepth(3, first.out_channels, 7, stride=2, padding=3, bias=False)
    blocked.weight = first.weight
    resnet.resnet.embedder.embedder.convolution = blocked
