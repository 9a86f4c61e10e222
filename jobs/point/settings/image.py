"""Image training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nightsweep.jobs.point.reason import Reason
from nightsweep.jobs.point.settings.field import except_for, only, setting
from nightsweep.jobs.point.strategies import FLAT

if TYPE_CHECKING:
    from nightsweep.jobs.point.point import Point


@dataclass(frozen=True, kw_only=True)
class Image:
    """Settings of the image workload; None in others."""

    image_size: int | None = setting(
        "Edge of the square image that the network sees, px.", 224, only="image", minimum=32, maximum=8192
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
        needs=[only("model", "mobilenet_v2")],
    )
    space_to_depth: bool | None = setting(
        "resnet50's first convolution over blocks of 2 x 2 pixels: 12 channels instead of 3, the same sums.",
        False,
        only="image",
        needs=[only("model", "resnet50")],
    )
    resize_on: Literal["worker", "device"] | None = setting(
        "Where the small source image is enlarged: by the loading process, or by the device after the copy.",
        "worker",
        only="image",
        needs=[only("source", "small"), only("loader", "torch", "mmap")],
    )
    source: Literal["small", "jpeg", "raw"] | None = setting(
        "Images as the loader finds them: small ones, which are enlarged (the paper's scenario A), or already at "
        "image_size (scenario B), made once of these and kept in $XDG_CACHE_HOME: JPEG files, or raw bytes.",
        "small",
        only="image",
        needs=[except_for("loader", "device")],
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
        needs=[only("loader", "dali")],
    )
    pixels: Literal["float", "uint8"] | None = setting(
        "What is copied to the device: normalised floats, or bytes that the device normalises.",
        "float",
        only="image",
        needs=[except_for("loader", "device")],
    )
    augment: Literal["none", "worker", "device"] | None = setting(
        "Where images that are trained on are turned, scaled and moved at random: by the loading process, or by the "
        "device after the copy.",
        "none",
        only="image",
    )
    epochs: int | None = setting(
        "Epochs of training after the timed window, each evaluated on images held back (one in six); 0: timing only.",
        0,
        only="image",
        minimum=0,
        maximum=100_000,
    )
    target_accuracy: float | None = setting(
        "Stop the epochs once this share of the held-back images is right.",
        1.0,
        only="image",
        exclusiveMinimum=0,
        maximum=1,
        needs=[except_for("epochs", 0)],
    )


PATCH_PX = 16


def conflicts(p: Point) -> Iterator[Reason]:
    if p.layout == "mixed" and p.strategy in FLAT:
        text = f"layout mixed with {p.strategy}: it holds weights in flat pieces, which are never nhwc"
        yield Reason(("layout", "strategy"), text)
    if p.model == "vit_s" and p.image_size is not None and p.image_size % PATCH_PX:
        yield Reason(("image_size", "model"), f"{p.image_size} is not a multiple of {PATCH_PX}, as vit_s needs")


def loader_conflicts(p: Point) -> Iterator[Reason]:
    if p.loader == "mmap" and p.source == "jpeg":
        yield Reason(("loader", "source"), "loader mmap maps raw pixels; a JPEG file has none (source raw or small)")
    if p.loader == "dali":
        yield from _dali_conflicts(p)
    if p.augment == "worker" and p.loader in ("dali", "device"):
        yield Reason(("augment", "loader"), f"loader {p.loader} has no process that augments (augment device)")


def _dali_conflicts(p: Point) -> Iterator[Reason]:
    if p.dali_on == "mixed" and p.source != "jpeg":
        yield Reason(("dali_on", "source"), f"dali_on mixed is for decoding; source {p.source} has nothing to decode")
    if p.dali_on == "gpu" and p.source == "jpeg":
        yield Reason(("dali_on", "source"), "dali_on gpu: DALI begins decoding of JPEG on the CPU (dali_on mixed)")
    if p.loader_workers == 0:
        yield Reason(("loader_workers", "loader"), "loader dali works in loader_workers threads: at least 1")
    if p.dali_on != "cpu" and p.device == "cpu":
        yield Reason(("dali_on", "device"), f"dali_on {p.dali_on} needs a GPU; device is cpu")
    if p.dali_on != "cpu" and p.pin_memory:
        text = f"pin_memory has no effect: dali_on {p.dali_on} gives batches on the GPU"
        yield Reason(("pin_memory", "dali_on"), text)


def epoch_conflicts(p: Point) -> Iterator[Reason]:
    if not p.epochs:
        return
    if p.loader in ("dali", "device"):
        why = "the order of its batches cannot be resumed" if p.loader == "dali" else "it has one batch, not a data set"
        yield Reason(("epochs", "loader"), f"epochs with loader {p.loader}: {why}")
    if p.strategy not in ("ddp", "ddp_ds", "fsdp2", "dp"):
        yield Reason(("epochs", "strategy"), f"epochs with {p.strategy}: they are for ddp, ddp_ds, fsdp2 and dp")
    elif p.comm_hook in ("powersgd", "topk"):
        yield Reason(("epochs", "comm_hook"), f"epochs with {p.comm_hook}: what it carries over cannot be resumed")


CHECKS = (conflicts, loader_conflicts, epoch_conflicts)
