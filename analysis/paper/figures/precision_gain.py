"""How many times faster than FP64 each number format is, over image size, one panel a count of GPUs."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.paper.figures import bars, precision
from analysis.paper.figures.family import RATIOS, STEP, family, ratios
from analysis.sweep import dataset, nights

_BY = ["world_size", "image_size"]


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points that differ in precision, size and GPUs alone, where fp64 is among those of the night."""
    points = nights.select_shared_nights(precision.select_points(tables), _BY, "precision")
    return points.filter((pl.col("precision") == "fp64").any().over(*_BY, "night"))


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    frame = ratios(points, "precision", "fp64", "step_ms_mean", _BY)

    def panel(axes: Axes, own: pl.DataFrame, levels: list[Any]) -> None:
        bars.ratio_columns(axes, own, "image_size", "precision", levels)
        axes.axhline(1, color=style.BLACK, linewidth=0.8)
        axes.set_ylabel("Times as fast as FP64")

    return bars.draw_panels(frame, ["world_size"], "precision", width_in, panel)


FAMILY = family(
    "Gain over FP64",
    "Step time in FP64 over that in another precision; above 1 is faster.",
    "No two image points of a night differ in precision alone, one of them fp64.",
    select_points,
    paint,
    reading=f"{STEP} {RATIOS}",
)
