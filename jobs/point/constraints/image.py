"""What image training cannot be."""

from __future__ import annotations

from jobs.point.constraints.reason import Reason
from jobs.point.point import Point
from jobs.point.settings.parallel import FLAT

PATCH_PX = 16


def vit_patches(p: Point) -> Reason | None:
    if p.model == "vit_s" and p.image_size is not None and p.image_size % PATCH_PX:
        return Reason(("image_size", "model"), f"{p.image_size} is not a multiple of {PATCH_PX}, as vit_s needs")
    return None


def mapped_jpeg(p: Point) -> Reason | None:
    if p.loader == "mmap" and p.source == "jpeg":
        return Reason(("loader", "source"), "loader mmap maps raw pixels; a JPEG file has none (source raw or small)")
    return None


def dali_decodes(p: Point) -> Reason | None:
    if p.loader != "dali":
        return None
    if p.dali_on == "mixed" and p.source != "jpeg":
        return Reason(("dali_on", "source"), f"dali_on mixed is for decoding; source {p.source} has nothing to decode")
    if p.dali_on == "gpu" and p.source == "jpeg":
        return Reason(("dali_on", "source"), "dali_on gpu: DALI begins decoding of JPEG on the CPU (dali_on mixed)")
    return None


def dali_threads(p: Point) -> Reason | None:
    if p.loader == "dali" and p.loader_workers == 0:
        return Reason(("loader_workers", "loader"), "loader dali works in loader_workers threads: at least 1")
    return None


def dali_device(p: Point) -> Reason | None:
    if p.loader == "dali" and p.dali_on != "cpu" and p.device == "cpu":
        return Reason(("dali_on", "device"), f"dali_on {p.dali_on} needs a GPU; device is cpu")
    return None


def dali_pinned(p: Point) -> Reason | None:
    if p.loader == "dali" and p.dali_on != "cpu" and p.pin_memory:
        return Reason(
            ("pin_memory", "dali_on"), f"pin_memory has no effect: dali_on {p.dali_on} gives batches on the GPU"
        )
    return None


def epochs_loader(p: Point) -> Reason | None:
    if p.epochs and p.loader in ("dali", "device"):
        why = "the order of its batches cannot be resumed" if p.loader == "dali" else "it has one batch, not a data set"
        return Reason(("epochs", "loader"), f"epochs with loader {p.loader}: {why}")
    return None


def epochs_strategy(p: Point) -> Reason | None:
    if p.epochs and p.strategy not in ("ddp", "ddp_ds", "fsdp2", "dp"):
        return Reason(("epochs", "strategy"), f"epochs with {p.strategy}: they are for ddp, ddp_ds, fsdp2 and dp")
    if p.epochs and p.comm_hook == "powersgd":
        return Reason(("epochs", "comm_hook"), "epochs with powersgd: what it carries over cannot be resumed")
    return None


def mixed_layout(p: Point) -> Reason | None:
    if p.layout == "mixed" and p.strategy in FLAT:
        text = f"layout mixed with {p.strategy}: it holds weights in flat pieces, which are never nhwc"
        return Reason(("layout", "strategy"), text)
    return None


CHECKS = (
    mixed_layout,
    vit_patches,
    mapped_jpeg,
    dali_decodes,
    dali_threads,
    dali_device,
    dali_pinned,
    epochs_loader,
    epochs_strategy,
)
