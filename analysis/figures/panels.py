"""A panel that several figures use: one bar at the median of each configuration, each repeat a dot. Bars of many
configurations lie, so that their labels can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.sweep import dataset

UPRIGHT = 14
"""Configurations of a panel whose bars stand."""
LYING = 40
"""Configurations of a figure whose bars lie: as many as a page has room for."""
DISTURBED = "#b00000"
_CHARACTER_IN = 0.062
_PANEL_IN = 6.3
_LONGEST = 64
_ROW_IN = 0.17


def colour_of(points: pl.DataFrame) -> tuple[str, dict[str, str]]:
    """The setting that colours tell apart (the first of strategy, precision that varies), and its colours."""
    for name, colours in (("strategy", style.STRATEGY_COLOURS), ("precision", style.PRECISION_COLOURS)):
        if points[name].n_unique() > 1:
            return name, colours
    return "workload", style.WORKLOAD_COLOURS


def line_style(index: int, curve: pl.DataFrame, among: pl.DataFrame) -> dict[str, Any]:
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
        axes.set_xticklabels(joined, rotation=30, ha="right", rotation_mode="anchor")


def brief(label: str) -> str:
    """A label, cut where it would leave no room for the bars."""
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1].rstrip(", ") + "\N{HORIZONTAL ELLIPSIS}"


def mark_disturbed(axes: Axes, x: np.ndarray, y: np.ndarray, disturbed: np.ndarray) -> None:
    """A cross on each point that something outside of its job disturbed."""
    axes.plot(x[disturbed], y[disturbed], "x", color=DISTURBED, markersize=6, markeredgewidth=1.2, zorder=5)


def median_of(points: pl.DataFrame, value: str) -> float:
    """The median of the repeats that nothing disturbed; of all where there are none."""
    quiet = dataset.undisturbed(points)
    return float(np.median((points if quiet.is_empty() else quiet)[value].to_numpy()))


def column(
    axes: Axes,
    x: float,
    repeats: pl.DataFrame,
    value: str,
    colour: str,
    hatch: str,
    width: float = 0.6,
    scale: float = 1.0,
) -> None:
    """A bar at the median of the repeats' values, a dot for each, a whisker from the least to the most."""
    values, median = repeats[value].to_numpy() * scale, median_of(repeats, value) * scale
    axes.bar(x, median, width=width, color=colour, alpha=0.35, edgecolor="none")
    axes.bar(x, median, width=width, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0.8)
    axes.hlines(median, x - width / 2, x + width / 2, color="black", linewidth=1.2)
    axes.vlines(x, values.min(), values.max(), color="black", linewidth=0.8)
    spread = np.linspace(-width / 4, width / 4, len(values)) if len(values) > 1 else np.zeros(1)
    axes.plot(x + spread, values, "o", color="white", markeredgecolor="black", markeredgewidth=0.7, markersize=3)
    mark_disturbed(axes, x + spread, values, _disturbed(repeats))


def bar(axes: Axes, y: float, repeats: pl.DataFrame, value: str, colour: str, hatch: str, scale: float = 1.0) -> None:
    """The same as `column`, from left to right."""
    values, median, height = repeats[value].to_numpy() * scale, median_of(repeats, value) * scale, 0.72
    axes.barh(y, median, height=height, color=colour, alpha=0.35, edgecolor="none")
    axes.barh(y, median, height=height, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0.8)
    axes.vlines(median, y - height / 2, y + height / 2, color="black", linewidth=1.2)
    axes.hlines(y, values.min(), values.max(), color="black", linewidth=0.8)
    axes.plot(values, np.full(len(values), y), "o", color="white", markeredgecolor="black", markersize=2.5)
    mark_disturbed(axes, values, np.full(len(values), y), _disturbed(repeats))


def _disturbed(points: pl.DataFrame) -> np.ndarray:
    return points["disturbed"].fill_null(False).to_numpy()


def dots(axes: Axes, points: pl.DataFrame, value: str, title: str, scale: float, most: int) -> str:
    """Draw the first configurations of one workload; returns what the title must add."""
    shown, more = dataset.leading(points, most)
    by, colours = colour_of(points)
    hatches = dict(zip(colours, ("", "////", "\\\\\\\\", "....", "xxxx", "----"), strict=False))
    groups = shown.partition_by("config_order", maintain_order=True)
    stand = len(groups) <= UPRIGHT
    for place, group in enumerate(groups):
        kind = str(group[by][0])
        look = colours.get(kind, style.GREY), hatches.get(kind, "")
        (column if stand else bar)(axes, place, group, value, *look, scale=scale)
    labels, counts = [group["config"][0] for group in groups], [group.height for group in groups]
    if stand:
        _ticks(axes, labels, counts)
        # A lone bar would else fill the panel.
        room = max(0.0, (4 - len(groups)) / 2)
        axes.set_xlim(-0.6 - room, len(groups) - 0.4 + room)
        style.from_zero(axes)
        axes.set_ylabel(title)
    else:
        axes.set_yticks(range(len(groups)), [f"{brief(t)}, n = {n}" for t, n in zip(labels, counts, strict=True)])
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.set_xlim(0, max(axes.dataLim.xmax, 1e-12) * 1.07)
        axes.set_xlabel(title)
    axes.grid(axis="y" if stand else "x")
    return more


def _height_in(points: pl.DataFrame, most: int) -> float:
    """Height of a panel; slanted labels need their own length below the axes."""
    count, longest = points["config_order"].n_unique(), max(map(len, points["config"])) + len(", n = 10")
    if min(count, most) > UPRIGHT:
        return 0.75 + _ROW_IN * min(count, most)
    return 2.7 if longest * _CHARACTER_IN / 2 < _PANEL_IN / count else 2.1 + longest * _CHARACTER_IN * 0.5


def stack(axes: Axes, bars: list[dict[str, float]], colours: dict[str, str], hatches: dict[str, str]) -> list[float]:
    """Lying bars, each of its values by kind, one after the other in the order of `colours`; returns where they end."""
    ends = [0.0] * len(bars)
    for kind, colour in colours.items():
        widths = [bar.get(kind, 0.0) for bar in bars]
        look: dict[str, Any] = {"color": colour, "hatch": hatches[kind], "edgecolor": "#333333", "linewidth": 0.4}
        axes.barh(range(len(bars)), widths, left=ends, height=0.72, label=kind.replace("_", " "), **look)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    return ends


def stacked_figure(
    workloads: list[tuple[str, list[pl.DataFrame]]],
    most: int,
    panel: Callable[[Axes, str, list[pl.DataFrame], int], None],
    columns: int,
) -> Figure:
    """A panel a workload, of lying bars that are stacked alike; a frame has one bar. All panels together have room for
    `most`: `panel` is given a workload's first, and how many there are. `columns`: of the legend."""
    room = most // len(workloads)
    heights = [min(len(bars), room) * _ROW_IN + 0.75 for _, bars in workloads]
    made = style.figure(height_in=sum(heights) + 0.3)
    rows = made.subplots(len(workloads), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, (workload, bars) in zip(rows, workloads, strict=True):
        panel(axes, workload, bars[:room], len(bars))
    handles, labels = rows[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=columns)
    return made


def dot_figure(points: pl.DataFrame, value: str, title: str, scale: float = 1.0) -> Figure:
    """One row a workload."""
    parts = dataset.per_workload(points)
    most = LYING // len(parts)
    heights = [_height_in(part, most) for _, part in parts]
    made = style.figure(height_in=sum(heights))
    rows = made.subplots(len(parts), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for axes, (workload, part) in zip(rows, parts, strict=True):
        more = dots(axes, part, value, title, scale, most)
        axes.set_title(f"{workload}{more}", loc="left")
    return made
