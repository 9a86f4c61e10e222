"""A panel that several figures use: one bar at the median of each configuration, each repeat a dot."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import data, style

MOST = 32
_CHARACTER_IN = 0.062
_PANEL_IN = 6.3


def colour_of(points: pl.DataFrame) -> tuple[str, dict[str, str]]:
    """The setting that colours tell apart (the first of strategy, precision that varies), and its colours."""
    for name, colours in (("strategy", style.STRATEGY_COLOURS), ("precision", style.PRECISION_COLOURS)):
        if points[name].n_unique() > 1:
            return name, colours
    return "workload", style.WORKLOAD_COLOURS


def look(index: int, curve: pl.DataFrame, among: pl.DataFrame) -> dict[str, Any]:
    """The line of a configuration: the colour of its strategy or precision where that varies in its workload."""
    by, colours = colour_of(among.filter(pl.col("workload") == curve["workload"][0]))
    return style.line(index, None if by == "workload" else colours.get(str(curve[by][0])))


def _ticks(axes: Axes, labels: list[str], counts: list[int]) -> None:
    """Labels in lines where they fit side by side, else upright."""
    lines = [f"{text.replace(', ', chr(10))}\nn = {n}" for text, n in zip(labels, counts, strict=True)]
    widest = max(len(part) for text in lines for part in text.split("\n"))
    axes.set_xticks(range(len(labels)))
    if widest * _CHARACTER_IN < _PANEL_IN / len(labels):
        axes.set_xticklabels(lines)
    else:
        joined = [f"{text}, n = {n}" for text, n in zip(labels, counts, strict=True)]
        axes.set_xticklabels(
            joined, rotation=90 if len(labels) > 14 else 30, ha="center" if len(labels) > 14 else "right"
        )
        for tick in axes.get_xticklabels():
            tick.set_rotation_mode("default" if len(labels) > 14 else "anchor")


def column(axes: Axes, x: float, values: np.ndarray, colour: str, hatch: str, width: float = 0.6) -> None:
    """A bar at the median of the repeats' values, a dot for each, a whisker from the least to the most."""
    median = float(np.median(values))
    axes.bar(x, median, width=width, color=colour, alpha=0.35, edgecolor="none")
    axes.bar(x, median, width=width, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0.8)
    axes.hlines(median, x - width / 2, x + width / 2, color="black", linewidth=1.2)
    axes.vlines(x, values.min(), values.max(), color="black", linewidth=0.8)
    spread = np.linspace(-width / 4, width / 4, len(values)) if len(values) > 1 else np.zeros(1)
    axes.plot(x + spread, values, "o", color="white", markeredgecolor="black", markeredgewidth=0.7, markersize=3)


def dots(axes: Axes, points: pl.DataFrame, value: str, scale: float = 1.0) -> str:
    """Draw the configurations of one workload; returns what the title must add."""
    shown, more = data.leading(points, MOST)
    by, colours = colour_of(points)
    hatches = dict(zip(colours, ("", "////", "\\\\\\\\", "....", "xxxx", "----"), strict=False))
    groups = shown.partition_by("config_order", maintain_order=True)
    for x, group in enumerate(groups):
        kind = str(group[by][0])
        column(axes, x, group[value].to_numpy() * scale, colours.get(kind, style.GREY), hatches.get(kind, ""))
    _ticks(axes, [group["config"][0] for group in groups], [group.height for group in groups])
    # A lone bar would else fill the panel.
    room = max(0.0, (4 - len(groups)) / 2)
    axes.set_xlim(-0.6 - room, len(groups) - 0.4 + room)
    style.from_zero(axes)
    axes.grid(axis="y")
    return more


def _row_in(points: pl.DataFrame) -> float:
    """Height of a row: upright or slanted labels need their own length below the axes."""
    count, longest = min(points["config_order"].n_unique(), MOST), max(map(len, points["config"])) + len(", n = 10")
    if longest * _CHARACTER_IN / 2 < _PANEL_IN / count:
        return 2.7
    return 2.1 + longest * _CHARACTER_IN * (1 if count > 14 else 0.5)


def dot_figure(points: pl.DataFrame, value: str, title: str, scale: float = 1.0) -> Figure:
    """One row a workload."""
    parts = data.per_workload(points)
    made, rows = style.facets(len(parts), max(_row_in(part) for _, part in parts))
    for axes, (workload, part) in zip(rows, parts, strict=True):
        more = dots(axes, part, value, scale)
        axes.set_ylabel(title)
        axes.set_title(f"{workload}{more}", loc="left")
    return made
