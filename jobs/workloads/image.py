"""Image classification: MobileNet v2, ResNet-50 or ViT-S on handwritten digits, enlarged to the asked size.

The networks come from transformers (which needs no torchvision). The digits are MNIST's idx files where a folder is
given, else the 1,797 real 8 x 8 digits that scikit-learn ships. Grey becomes three channels, as in the paper.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from jobs.point import Point
from jobs.workloads import Batch, Work

NUM_CLASSES = 10


class Digits(Dataset[Batch]):
    """Digits as float32 (3, H, W) in about [-1, 1]; enlarged here when `size` is given, else at their own size."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, size: int | None) -> None:
        self.images, self.labels, self.size = images, labels, size

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        image = torch.from_numpy(self.images[index]).expand(3, -1, -1)
        if self.size is not None:
            image = enlarge(image[None], self.size)[0]
        return {"image": image.contiguous(), "label": torch.tensor(int(self.labels[index]))}


def enlarge(images: torch.Tensor, size: int) -> torch.Tensor:
    """Bilinear enlargement of (N, C, h, w) to (N, C, size, size)."""
    return F.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)


def read_idx(path: Path) -> np.ndarray:
    """An array from an idx file of unsigned bytes (MNIST's format, gzipped or not)."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path}: not an idx file of unsigned bytes")
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def load_digits(data: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, h, w) float32 in [-1, 1] and labels (N,)."""
    if data == "builtin":
        from sklearn.datasets import load_digits as bundled

        digits = bundled()
        return (digits.images / 8.0 - 1.0).astype(np.float32), digits.target
    arrays = []
    for stem in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        found = sorted(Path(data).glob(stem.replace("-idx", "?idx") + "*"))
        if not found:
            raise FileNotFoundError(f"{data}: no {stem}[.gz] in this folder")
        arrays.append(read_idx(found[0]))
    return (arrays[0] / 127.5 - 1.0).astype(np.float32), arrays[1]


def build_model(point: Point) -> tuple[torch.nn.Module, tuple[torch.nn.Module, ...]]:
    """The network with random weights, and its blocks."""
    import transformers as hf

    size, common = point.image_size, {"num_labels": NUM_CLASSES}
    if point.model == "mobilenet_v2":
        mobile = hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(image_size=size, **common))
        return mobile, tuple(mobile.mobilenet_v2.layer)
    if point.model == "resnet50":
        resnet = hf.ResNetForImageClassification(hf.ResNetConfig(**common))
        return resnet, tuple(resnet.resnet.encoder.stages)
    config = hf.ViTConfig(
        image_size=size, hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_hidden_layers=12, **common
    )
    vit = hf.ViTForImageClassification(config)
    blocks = vit.vit.encoder.layer if hasattr(vit.vit, "encoder") else vit.vit.layers
    return vit, tuple(blocks)


def loss(network: Any, batch: Batch) -> torch.Tensor:
    """Cross entropy of one micro-batch, mean over its images."""
    logits = network(pixel_values=batch["image"]).logits
    return F.cross_entropy(logits.float() if logits.dtype != torch.float64 else logits, batch["label"])


def blank(point: Point) -> Batch:
    """A micro-batch of zeros of the shapes that `loss` takes."""
    size = point.image_size
    assert size is not None
    image = torch.zeros(point.micro_batch, 3, size, size)
    return {"image": image, "label": torch.zeros(point.micro_batch, dtype=torch.int64)}


def build(point: Point) -> Work:
    size = point.image_size
    assert size is not None
    model, layers = build_model(point)
    memory = torch.channels_last if point.layout == "nhwc" else torch.contiguous_format
    model = model.to(memory_format=memory)  # type: ignore[call-overload]
    images, labels = load_digits(point.data)

    def prepare(batch: Batch) -> Batch:
        image = batch["image"]
        if point.resize_on == "device":
            image = enlarge(image, size)
        return {"image": image.contiguous(memory_format=memory), "label": batch["label"]}

    dataset = Digits(images, labels, size if point.resize_on == "worker" else None)
    return Work(model, dataset, prepare, loss, layers, tokens_per_sample=None)
