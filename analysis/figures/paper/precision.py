"""Step time over image size in each number format, one panel a count of GPUs."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import data
from analysis.figures.paper import bars
from analysis.figures.paper.family import STEP, WHISKERS, Family, widest


def shown(tables: data.Tables) -> pl.DataFrame:
    """Image points that differ in precision, size and GPUs alone."""
    return widest(tables, "image", "precision", "image_size", *data.SHAPE)


def paint(points: pl.DataFrame, _tables: data.Tables, width_in: float) -> Figure:
    def panel(axes: Axes, own: pl.DataFrame, levels: list[Any]) -> None:
        bars.columns(axes, own, "image_size", "precision", "step_ms_mean", levels)
        axes.set_ylabel("Step time (ms)")

    return bars.panelled(points, ["world_size"], "precision", width_in, panel)


FAMILY = Family(
    "Precision and image size",
    f"{STEP} {WHISKERS}",
    "No two image points differ in precision alone.",
    shown,
    paint,
)
