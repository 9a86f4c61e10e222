"""Image training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jobs.point.settings.field import setting


@dataclass(frozen=True, kw_only=True)
class Image:
    """Settings of the image workload; None in others."""

    image_size: int | None = setting(
        "Edge of the square image that the network sees, px.", 224, only="image", minimum=32
    )
    layout: Literal["nchw", "nhwc", "mixed"] | None = setting(
        "Memory layout of images and convolution weights; mixed, a mistake made on purpose: weights nhwc, images nchw. "
        "Weights of fsdp2 and zero stay nchw.",
        "nchw",
        only="image",
    )
    fused_padding: bool | None = setting(
        "mobilenet_v2 pads within its convolutions where that is the same (47 of 52); else as transformers has it, "
        "with a copy of the input before each.",
        False,
        only="image",
    )
    space_to_depth: bool | None = setting(
        "resnet50's first convolution over blocks of 2 x 2 pixels: 12 channels instead of 3, the same sums.",
        False,
        only="image",
    )
    resize_on: Literal["worker", "device"] | None = setting(
        "Where the small source image is enlarged: by the loading process, or by the device after the copy.",
        "worker",
        only="image",
    )
    source: Literal["small", "jpeg", "raw"] | None = setting(
        "Images as the loader finds them: small ones, which are enlarged (the paper's scenario A), or already at "
        "image_size (scenario B), made once of these and kept in $XDG_CACHE_HOME: JPEG files, or raw bytes.",
        "small",
        only="image",
    )
    loader: Literal["torch", "mmap", "dali", "device"] | None = setting(
        "Who loads: PyTorch's DataLoader, image by image; mmap: the same from one memory-mapped array of the images "
        "(small or raw), a batch at a time; NVIDIA DALI, where it is installed; or nobody: device makes one batch "
        "there, once, so that loading costs nothing.",
        "torch",
        only="image",
    )
    dali_on: Literal["cpu", "mixed", "gpu"] | None = setting(
        "Where DALI works: all on the CPU; mixed (JPEG): decoding begun there and ended on the GPU, as is the rest; "
        "gpu (small, raw): all but reading on the GPU.",
        "cpu",
        only="image",
    )
    pixels: Literal["float", "uint8"] | None = setting(
        "What is copied to the device: normalised floats, or bytes that the device normalises.", "float", only="image"
    )
    epochs: int | None = setting(
        "Train on after the timed window for so many epochs, and evaluate each on images held back (one in six); 0: "
        "timing only.",
        0,
        only="image",
        minimum=0,
    )
    target_accuracy: float | None = setting(
        "Stop the epochs once this share of the held-back images is right.",
        1.0,
        only="image",
        exclusiveMinimum=0,
        maximum=1,
    )
