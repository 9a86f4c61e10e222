"""Copies and synchronisation per step, by loader and layout."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.paper.figures import bars, calls
from nightsweep.analysis.paper.figures.family import WHISKERS, family
from nightsweep.analysis.sweep import dataset

_KINDS = {
    "Copies to the GPU": calls.DIRECTIONS["HtoD"],
    "Copies within the GPU": calls.DIRECTIONS["DtoD"],
    "Synchronisation": calls.SYNCHRONISE,
}


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Traced image points that differ in loader and layout alone."""
    return calls.widest_block(tables, "image", ("loader", "layout"))


def paint(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    return bars.by_kind(calls.per_step(tables, points, _KINDS), [*_KINDS], "loader", "layout", width_in)


FAMILY = family(
    "Copies and synchronisation by loader and layout",
    "Time per step of copies on the GPU, and of API calls that wait for it, mean over ranks, in the traced run.",
    "No two image points with a trace of nsys differ in loader or layout alone.",
    select_points,
    paint,
    calls.numbers,
    reading=f"Each panel has its own scale. {WHISKERS}",
    place="supplement",
)
