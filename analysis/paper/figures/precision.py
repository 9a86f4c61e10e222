"""Step time over image size in each number format, one panel a count of GPUs."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.paper.figures import bars
from analysis.paper.figures.family import STEP, WHISKERS, family, widest_block
from analysis.sweep import dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points that differ in precision, size and GPUs alone."""
    return widest_block(tables, "image", "precision", "image_size", *dataset.SHAPE)


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    return bars.step_times(points, ["world_size"], "precision", width_in)


FAMILY = family(
    "Precision and image size",
    f"Time of a step. {WHISKERS}",
    "No two image points differ in precision alone.",
    select_points,
    paint,
    reading=STEP,
)
