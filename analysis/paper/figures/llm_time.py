"""Step time of each method of tuning a language model, over GPUs."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.paper.figures import bars
from analysis.paper.figures.family import STEP, WHISKERS, family, widest_block
from analysis.sweep import blocks, dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points that differ in method and GPUs alone."""
    return widest_block(tables, "llm", "method", *dataset.SHAPE)


def by_method(points: pl.DataFrame, value: str, title: str, width_in: float) -> Figure:
    """One panel: a place for each count of GPUs, a bar for each method."""
    made = style.figure(width_in, 2.8)
    axes = made.subplots()
    levels = blocks.levels(points, "method")
    bars.columns(axes, points, "world_size", "method", value, levels)
    axes.set_xlim(-0.5, points["world_size"].n_unique() - 0.5)
    axes.set_ylabel(title)
    bars.legend(made, "method", levels)
    return made


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    return by_method(points, "step_ms_mean", "Step time (ms)", width_in)


FAMILY = family(
    "Tuning methods: step time",
    f"Time of a step, with the same micro_batch for all. {WHISKERS}",
    "No two points of a language model differ in method alone.",
    select_points,
    paint,
    reading=f"A sample of DPO is a pair of texts, so twice the tokens, and also passes a reference model. {STEP}",
)
