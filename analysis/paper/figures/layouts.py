"""Step time in each memory layout, over image size, one panel a loader and count of GPUs."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.paper.figures import bars
from analysis.paper.figures.family import STEP, WHISKERS, family, widest_block
from analysis.sweep import dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points that differ in layout, loader, size and GPUs alone."""
    return widest_block(tables, "image", "layout", "image_size", "loader", *dataset.SHAPE)


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    return bars.step_times(points, ["world_size", "loader"], "layout", width_in)


FAMILY = family(
    "Layouts",
    f"Time of a step. nhwc: channels last in images and weights; nchw: channels first. {WHISKERS}",
    "No two image points differ in layout alone.",
    select_points,
    paint,
    reading=STEP,
)
