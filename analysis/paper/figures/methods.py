"""Step time and peak memory of each method of tuning a language model."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.figures import palette, panels, style
from nightsweep.analysis.paper.figures.family import STEP, family, widest_block
from nightsweep.analysis.sweep import blocks, dataset
from nightsweep.analysis.sweep.labels import plural

_PANELS = (("step_ms_mean", 1.0, "Step time (ms)"), ("peak_memory_bytes", 2**-30, "Peak memory of a GPU (GiB)"))


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points that differ in method and GPUs alone."""
    return widest_block(tables, "llm", "method", *dataset.SHAPE)


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    """A bar a method and count of GPUs in each of two panels."""
    levels = blocks.levels(points, "method")
    rows = [
        (method, gpus, own)
        for method in levels
        for gpus in blocks.levels(points, "world_size")
        if (own := points.filter(method=method, world_size=gpus)).height
    ]
    several = points["world_size"].n_unique() > 1
    shown = [panel for panel in _PANELS if points[panel[0]].null_count() < points.height]
    made = style.figure(width_in, 0.17 * len(rows) + 0.45)
    for place, (axes, (value, scale, title)) in enumerate(
        zip(made.subplots(1, len(shown), squeeze=False)[0], shown, strict=True)
    ):
        for y, (method, _, own) in enumerate(rows):
            known = own.drop_nulls(value)
            if known.height:
                panels.bar(axes, y, known, value, *palette.fill_style("method", method, levels), scale=scale)
        names = [f"{method}, {plural(gpus, 'GPU')}" if several else method for method, gpus, _ in rows]
        axes.set_yticks(range(len(rows)), [] if place else names)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, axes.dataLim.xmax * 1.05)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(title)
        axes.grid(axis="x")
    return made


FAMILY = family(
    "Tuning methods: time and memory",
    "Time of a step with the same micro_batch for all, and peak memory of CUDA's allocator on the rank that needs "
    "most. Dots are repeats, bars their medians.",
    "No two points of a language model differ in method alone.",
    select_points,
    paint,
    reading=f"A sample of DPO is a pair of texts, so twice the tokens, and also passes a reference model. {STEP}",
)
