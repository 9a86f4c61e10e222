"""Peak memory of each method of tuning a language model, over GPUs."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.paper.figures import llm_time
from analysis.paper.figures.family import WHISKERS, family
from analysis.sweep import dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points that differ in method and GPUs alone, with a peak."""
    return llm_time.select_points(tables).filter(pl.col("peak_memory_bytes").is_not_null())


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    frame = points.with_columns(peak_gib=pl.col("peak_memory_bytes") / 2**30)
    return llm_time.by_method(frame, "peak_gib", "Peak memory of a GPU (GiB)", width_in)


FAMILY = family(
    "Tuning methods: memory",
    f"Peak memory of CUDA's allocator, of the rank that needs most. {WHISKERS}",
    "No two points of a language model differ in method alone, with a peak of memory.",
    select_points,
    paint,
)
