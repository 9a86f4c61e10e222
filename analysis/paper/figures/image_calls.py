"""The seven times that the paper's authors chose in Nsight Systems, per step of an image job."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.paper.figures import bars, calls
from nightsweep.analysis.paper.figures.family import WHISKERS, family
from nightsweep.analysis.sweep import dataset

_FACTORS = ("precision", "pin_memory", "ranks_per_node")


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Traced image points that differ in precision, pinned memory and GPUs alone."""
    return calls.widest_block(tables, "image", _FACTORS)


def paint(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    frame = calls.per_step(tables, points, calls.AUTHORS)
    memory = pl.when("pin_memory").then(pl.lit("pinned")).otherwise(pl.lit("pageable"))
    frame = frame.with_columns(case=pl.format("{}\n{} GPU", memory, "world_size"))
    kinds = [kind for kind in calls.AUTHORS if frame.filter(pl.col("kind") == kind)["ms"].sum()]
    return bars.by_kind(frame, kinds, "case", "precision", width_in, 1.9)


FAMILY = family(
    "Image jobs in Nsight Systems",
    "Time per step of copies and kernels on the GPU and of API calls on the host, in the traced run, mean over "
    "ranks. They overlap, so they must not be added up.",
    "No two image points with a trace of nsys differ in precision, pinned memory or GPUs alone.",
    select_points,
    paint,
    calls.numbers,
    reading=f"Each panel has its own scale; one where all are 0 is left out. {WHISKERS}",
    place="supplement",
)
