"""Memory transfers per step of each method of tuning a language model, by direction."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.paper.figures import bars, calls
from nightsweep.analysis.paper.figures.family import WHISKERS, family
from nightsweep.analysis.sweep import dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Traced points of a language model that differ in method alone."""
    return calls.widest_block(tables, "llm", ("method",))


def paint(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    frame = calls.per_step(tables, points, calls.DIRECTIONS)
    levels = [name for name in calls.DIRECTIONS if frame.filter(pl.col("kind") == name)["count"].sum()]
    frame = frame.filter(pl.col("kind").is_in(levels)).rename({"kind": "direction"})
    made, (time, size) = bars.grid(2, width_in)
    for axes, value, title in ((time, "ms", "Time (ms a step)"), (size, "gb", "Volume (GB a step)")):
        bars.columns(axes, frame, "method", "direction", value, levels)
        axes.set_ylabel(title)
    bars.legend(made, "direction", levels)
    return made


FAMILY = family(
    "Tuning methods: transfers",
    "Copies on the GPU in the traced run, mean over ranks: HtoD to the GPU, DtoH from it, DtoD within it, PtoP "
    "between GPUs outside NCCL.",
    "No two points of a language model with a trace of nsys differ in method alone.",
    select_points,
    paint,
    calls.numbers,
    reading=f"Methods without bars copy nothing. {WHISKERS}",
    place="supplement",
)
