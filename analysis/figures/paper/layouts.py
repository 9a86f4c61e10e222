"""Step time in each memory layout, over image size, one panel a loader and count of GPUs."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import data
from analysis.figures.paper import bars
from analysis.figures.paper.family import STEP, WHISKERS, Family, widest


def shown(tables: data.Tables) -> pl.DataFrame:
    """Image points that differ in layout, loader, size and GPUs alone."""
    return widest(tables, "image", "layout", "image_size", "loader", *data.SHAPE)


def paint(points: pl.DataFrame, _tables: data.Tables, width_in: float) -> Figure:
    return bars.step_times(points, ["world_size", "loader"], "layout", width_in)


FAMILY = Family(
    "Layouts",
    f"nhwc: channels last in images and weights; nchw: channels first. {STEP} {WHISKERS}",
    "No two image points differ in layout alone.",
    shown,
    paint,
)
