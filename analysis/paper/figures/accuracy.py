"""Accuracy on images held back, by epoch, in each number format."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nightsweep.analysis.figures import palette, style
from nightsweep.analysis.paper.figures.family import family, measured_points
from nightsweep.analysis.sweep import blocks, dataset

GOAL = (98, 99)
"""Accuracy in % that the paper aims at within 20 epochs."""


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points with accuracies that differ in precision alone, of images that were given if there are such, for the
    built-in digits are easier than the paper's; where none do, those of one set of settings."""
    have = tables["accuracy"]["point_id"].unique().to_list()
    points = measured_points(tables, "image").filter(pl.col("point_id").is_in(have))
    found, _ = blocks.widest_block(points.filter(pl.col("data") != "builtin"), "precision")
    if found.is_empty():
        found, _ = blocks.widest_block(points, "precision")
    if found.is_empty() and points.height:
        alone = blocks.add_blocks(points, ())
        found = alone.filter(pl.col("block") == alone["block"].min()).sort("point_id")
    return found


def curves(points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """precision, epoch, median, least, most (%) over repeats."""
    percent = pl.col("accuracy") * 100
    return (
        tables["accuracy"]
        .join(points.select("point_id", "precision"), on="point_id")
        .group_by("precision", "epoch")
        .agg(median=percent.median(), least=percent.min(), most=percent.max())
        .sort("precision", "epoch")
    )


def paint(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    frame = curves(points, tables)
    made = style.figure(width_in, 2.6)
    axes = made.subplots()
    levels = blocks.levels(points, "precision")
    for index, level in enumerate(levels):
        own = frame.filter(pl.col("precision") == level)
        look = style.line(index, palette.fill_style("precision", level, levels)[0])
        axes.plot(own["epoch"], own["median"], label=level, **look)
        axes.fill_between(own["epoch"], own["least"], own["most"], color=look["color"], alpha=0.15, linewidth=0)
    axes.axhspan(*GOAL, color="0.85", zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("Epoch")
    axes.set_ylabel("Accuracy (%)")
    least = axes.get_ylim()[0]
    axes.set_ylim(least, 100 + (100 - least) / 20)
    axes.grid()
    axes.legend(loc="lower right")
    return made


FAMILY = family(
    "Accuracy by epoch",
    "Of images held back. Lines are medians of repeats; bands run from min to max. Shaded: the "
    f"{GOAL[0]} to {GOAL[1]} % that the paper aims at within 20 epochs.",
    "No image point has accuracies by epoch.",
    select_points,
    paint,
    curves,
    place="supplement",
)
