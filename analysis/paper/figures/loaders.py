"""Step time with each loader, over image size, one panel a layout and count of GPUs."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.paper.figures import bars
from nightsweep.analysis.paper.figures.family import STEP, WHISKERS, family, widest_block
from nightsweep.analysis.sweep import blocks, dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points that differ in loader, size, layout and GPUs alone."""
    return widest_block(tables, "image", "loader", "image_size", "layout", *dataset.SHAPE)


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    """Step time over image size, a bar a loader, one panel a layout and count of GPUs, on one scale."""
    parts = points.sort("world_size", "layout").partition_by("world_size", "layout", maintain_order=True)
    levels = blocks.levels(points, "loader")
    made, axes = bars.grid(len(parts), width_in)
    for own, part in zip(axes, parts, strict=True):
        bars.columns(own, part, "image_size", "loader", "step_ms_mean", levels)
        names = (bars.word(name, part[name][0]) for name in ("world_size", "layout"))
        own.set_title(", ".join(names), loc="left")
        own.set_ylabel("Step time (ms)")
    top = max(own.get_ylim()[1] for own in axes)
    for own in axes:
        own.set_ylim(0, top)
    bars.legend(made, "loader", levels)
    return made


FAMILY = family(
    "Loaders",
    "Time of a step. torch: PyTorch's DataLoader, image by image; mmap: the same in bulk from one mapped array; "
    "dali: NVIDIA DALI.",
    "No two image points differ in loader alone.",
    select_points,
    paint,
    reading=f"{STEP} {WHISKERS}",
)
