"""What page-locked memory gains, over image size and number format, one panel a count of GPUs."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.paper.figures import bars
from analysis.paper.figures.family import RATIOS, STEP, family, ratios, widest_block
from analysis.sweep import dataset, nights

_BY = ["world_size", "image_size", "precision"]
REPORTED = (16, 30)
"""Gain in % that the paper's sibling (arXiv 2503.15252) reports."""


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points that differ in pinned memory, precision, size and GPUs alone, of nights with both."""
    found = widest_block(tables, "image", "pin_memory", "precision", "image_size", *dataset.SHAPE)
    return nights.select_shared_nights(found, _BY, "pin_memory")


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    frame = ratios(points, "pin_memory", False, "step_ms_mean", _BY)
    frame = frame.with_columns((pl.col(name) - 1) * 100 for name in ("ratio", "least", "most"))

    def panel(axes: Axes, own: pl.DataFrame, levels: list[Any]) -> None:
        axes.axhspan(*REPORTED, color="0.9", zorder=0)
        bars.ratio_columns(axes, own, "image_size", "precision", levels)
        axes.axhline(0, color=style.BLACK, linewidth=0.8)
        axes.set_ylabel("Gain of pinned memory (%)")

    return bars.draw_panels(frame, ["world_size"], "precision", width_in, panel)


FAMILY = family(
    "Pinned memory",
    "Step time from pageable memory over that from page-locked memory, minus 1; above 0 pinning is faster. "
    f"Shaded: the {REPORTED[0]} to {REPORTED[1]} % of arXiv 2503.15252.",
    "No two image points of a night differ in pin_memory alone.",
    select_points,
    paint,
    reading=f"{STEP} {RATIOS}",
)
