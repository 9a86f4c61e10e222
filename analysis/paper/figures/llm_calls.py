"""Where API calls and the GPU spend the time of a step, for each method of tuning a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.figures import palette
from analysis.paper.figures import bars, calls, llm_transfers
from analysis.paper.figures.family import family
from analysis.sweep import blocks, dataset


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Traced points of a language model that differ in method alone."""
    return llm_transfers.select_points(tables)


def _stack(axes: Axes, frame: pl.DataFrame, name: str, kinds: Mapping[str, pl.Expr], title: str) -> None:
    methods = blocks.levels(frame, "method")
    levels = [kind for kind in kinds if frame.filter(pl.col("kind") == kind)["ms"].sum()]
    left = [0.0] * len(methods)
    for kind in levels:
        own = frame.filter(pl.col("kind") == kind).group_by("method").agg(pl.col("ms").median())
        widths = [dict(own.iter_rows()).get(method, 0.0) for method in methods]
        colour, hatch = palette.fill_style(name, kind, levels)
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "#333333", "linewidth": 0.4}
        axes.barh(range(len(methods)), widths, left=left, height=0.7, **look)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.set_xlabel(title)
    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="#333333", label=kind)
        for kind, (colour, hatch) in ((kind, palette.fill_style(name, kind, levels)) for kind in levels)
    ]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def paint(points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    made, (host, gpu) = bars.grid(2, width_in, 0.22 * points["method"].n_unique() + 1.1)
    _stack(host, calls.per_step(tables, points, calls.CALLS), "call", calls.CALLS, "CUDA API calls (ms a step)")
    _stack(gpu, calls.per_step(tables, points, calls.KERNELS), "kernel", calls.KERNELS, "Work of the GPU (ms a step)")
    return made


FAMILY = family(
    "Tuning methods: API calls and kernels",
    "Time of CUDA API calls on the host, by purpose, and of work on the GPU, in the traced run: mean over ranks, "
    "median over repeats.",
    "No two points of a language model with a trace of nsys differ in method alone.",
    select_points,
    paint,
    calls.numbers,
    reading="A call that waits is as long as what it waits for, so the two must not be added up.",
)
