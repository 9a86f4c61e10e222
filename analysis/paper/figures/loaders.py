"""Step time with each loader, over image size, one panel a layout and count of GPUs."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.paper.figures import bars
from analysis.paper.figures.family import STEP, WHISKERS, family, widest_block
from analysis.sweep import dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points that differ in loader, size, layout and GPUs alone."""
    return widest_block(tables, "image", "loader", "image_size", "layout", *dataset.SHAPE)


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    return bars.step_times(points, ["world_size", "layout"], "loader", width_in)


FAMILY = family(
    "Loaders",
    "Time of a step. torch: PyTorch's DataLoader, image by image; mmap: the same in bulk from one mapped array; "
    "dali: NVIDIA DALI.",
    "No two image points differ in loader alone.",
    select_points,
    paint,
    reading=f"{STEP} {WHISKERS}",
)
