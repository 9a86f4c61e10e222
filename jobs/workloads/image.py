"""Image classification: MobileNet v2, ResNet-50 or ViT-S on handwritten digits, enlarged to the asked size.

The networks come from transformers (which needs no torchvision); jobs/workloads/images has the data. Grey becomes
three channels, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from nightsweep.jobs.point.point import Point
from nightsweep.jobs.point.strategies import FLAT
from nightsweep.jobs.workloads.base import Batch, Work
from nightsweep.jobs.workloads.images import prepared
from nightsweep.jobs.workloads.images.augmentation import augment
from nightsweep.jobs.workloads.images.convolutions import block_stem, fuse_padding
from nightsweep.jobs.workloads.images.datasets import Digits, Files, Mapped
from nightsweep.jobs.workloads.images.digits import enlarge, from_bytes, load_digits, split

NUM_CLASSES = 10


def build_model(point: Point) -> tuple[torch.nn.Module, tuple[torch.nn.Module, ...]]:
    """The network with random weights, and its blocks."""
    import transformers as hf

    size, common = point.image_size, {"num_labels": NUM_CLASSES}
    if point.model == "mobilenet_v2":
        mobile = hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(image_size=size, **common))
        for module in mobile.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                # Transformers takes TensorFlow's decay, 0.997, for PyTorch's momentum, which is one less the decay: in
                # evaluation the last batch alone would count. Training does not use these means.
                module.momentum = 0.1
        if point.fused_padding:
            fuse_padding(mobile)
        return mobile, tuple(mobile.mobilenet_v2.layer)
    if point.model == "resnet50":
        resnet = hf.ResNetForImageClassification(hf.ResNetConfig(**common))
        if point.space_to_depth:
            block_stem(resnet)
        return resnet, tuple(resnet.resnet.encoder.stages)
    config = hf.ViTConfig(
        image_size=size, hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_hidden_layers=12, **common
    )
    from nightsweep.jobs.workloads.attention import UNMASKED

    config._attn_implementation = UNMASKED
    vit = hf.ViTForImageClassification(config)
    blocks = vit.vit.encoder.layer if hasattr(vit.vit, "encoder") else vit.vit.layers
    return vit, tuple(blocks)


def loss(network: Any, batch: Batch) -> torch.Tensor:
    """Cross entropy of one micro-batch, mean over its images."""
    logits = network(pixel_values=batch["image"]).logits
    return F.cross_entropy(logits.float() if logits.dtype != torch.float64 else logits, batch["label"])


def correct(network: Any, batch: Batch) -> torch.Tensor:
    """How many images of a batch the network names rightly, as a tensor of one count."""
    right: torch.Tensor = network(pixel_values=batch["image"]).logits.argmax(dim=1) == batch["label"]
    return right.sum()


def blank(point: Point) -> Batch:
    """A micro-batch of zeros of the shapes that `loss` takes."""
    size = point.image_size
    assert size is not None
    image = torch.zeros(point.micro_batch, 3, size, size)
    return {"image": image, "label": torch.zeros(point.micro_batch, dtype=torch.int64)}


def prepare_data(point: Point, beat: Callable[[], None]) -> None:
    """Make on disk what images are read from, where the point reads any."""
    prepared.images_of_point(point, beat)


def build(point: Point) -> Work:
    size = point.image_size
    assert size is not None
    model, layers = build_model(point)
    model = model.to(memory_format=weights_layout(point))  # type: ignore[call-overload]
    dataset, held_back = datasets(point)
    return Work(
        model, dataset, preparation(point), loss, layers, tokens_per_sample=None, held_back=held_back, correct=correct
    )


def preparation(point: Point) -> Callable[[Batch], Batch]:
    """What is done with a batch on the device: bytes to floats, enlargement, augmentation, and the images' layout.
    Those of loader device are ready but for augmentation."""
    size, layout = point.image_size, images_layout(point)
    assert size is not None
    here = point.resize_on == "device" and point.source == "small" and point.loader != "device"
    dtype = torch.float64 if point.precision == "fp64" else torch.float32

    def prepare(batch: Batch) -> Batch:
        image = batch["image"]
        if image.dtype == torch.uint8:
            image = from_bytes(image, dtype)
        if here:
            image = enlarge(image, size)
        if point.augment == "device" and torch.is_grad_enabled():  # which it is not where accuracy is measured
            image = augment(image)
        return {"image": image.contiguous(memory_format=layout), "label": batch["label"]}

    return prepare


def weights_layout(point: Point) -> torch.memory_format:
    """FSDP2 and ZeRO hold weights in flat pieces, which have no other layout: with nhwc images, each convolution turns
    its own weights."""
    nhwc = point.layout in ("nhwc", "mixed") and point.strategy not in FLAT
    return torch.channels_last if nhwc else torch.contiguous_format


def images_layout(point: Point) -> torch.memory_format:
    return torch.channels_last if point.layout == "nhwc" else torch.contiguous_format


def datasets(point: Point) -> tuple[Dataset[Batch], Dataset[Batch] | None]:
    """What is trained on, and what is held back from it, where accuracy is measured."""
    on_disk = prepared.images_of_point(point)
    source = on_disk or load_digits(point.data)
    count = len(source.labels() if isinstance(source, prepared.Prepared) else source[1])
    if not point.epochs:
        return dataset(point, source, np.arange(count)), None
    train, held = split(count, point.seed + point.repeat)
    return dataset(point, source, train), dataset(point, source, held)


def dataset(
    point: Point, source: prepared.Prepared | tuple[np.ndarray, np.ndarray], rows: np.ndarray
) -> Dataset[Batch]:
    """The images of these numbers: of what is on disk, or of digits in memory (images, labels)."""
    as_bytes = point.pixels == "uint8" and point.loader != "device"
    ahead = point.source == "small" and (point.resize_on == "worker" or point.loader == "device")
    size = point.image_size if ahead else None
    if not isinstance(source, prepared.Prepared):
        images, labels = source
        return Digits(images[rows], labels[rows], size, as_bytes)
    if source.form == "array":
        return Mapped(source, rows, size, as_bytes)
    return Files(source, rows, as_bytes)
