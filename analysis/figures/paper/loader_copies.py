"""Copies and synchronisation per step, by loader and layout."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis import blocks
from analysis.figures import data
from analysis.figures.paper import bars, calls
from analysis.figures.paper.family import WHISKERS, Family

_KINDS = {
    "Copies to the GPU": calls.DIRECTIONS["HtoD"],
    "Copies within the GPU": calls.DIRECTIONS["DtoD"],
    "Synchronisation": calls.SYNCHRONISE,
}


def shown(tables: data.Tables) -> pl.DataFrame:
    """Traced image points that differ in loader and layout alone."""
    points = calls.traced(tables, "image")
    for factor, other in (("loader", "layout"), ("layout", "loader")):
        found, _ = blocks.widest(points, factor, [other])
        if found.height:
            return found
    return points.clear()


def paint(points: pl.DataFrame, tables: data.Tables, width_in: float) -> Figure:
    frame = calls.per_step(tables, points, _KINDS)
    levels = blocks.levels(frame, "layout")
    made, panels = bars.grid(len(_KINDS), width_in)
    for axes, kind in zip(panels, _KINDS, strict=True):
        bars.columns(axes, frame.filter(pl.col("kind") == kind), "loader", "layout", "ms", levels)
        axes.set_title(kind, loc="left")
        axes.set_ylabel("ms a step")
    bars.legend(made, "layout", levels)
    return made


FAMILY = Family(
    "Copies and synchronisation by loader and layout",
    "Time a step of copies on the GPU, and of API calls that wait for it, mean over ranks, in the traced look. Each "
    f"panel has its own scale. {WHISKERS}",
    "No two image points with a trace of nsys differ in loader or layout alone.",
    shown,
    paint,
)
