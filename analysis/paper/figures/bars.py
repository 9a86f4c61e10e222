"""Panels of grouped bars: a place on the axis for each value of one setting, a bar there for each value of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from nightsweep.analysis.figures import palette, panels, style
from nightsweep.analysis.sweep import blocks, dataset, labels
from nightsweep.analysis.sweep.labels import plural

ROOM = 0.8
"""Share of a place that its bars fill together."""
_PANEL_IN = 1.8
_BESIDE = {style.ONE_COLUMN_IN: 2, style.TWO_COLUMNS_IN: 3}
"""Panels side by side, by the width of the figure."""


def word(name: str, value: Any) -> str:
    """A value as axes, legends and titles say it."""
    if name == "world_size":
        return plural(value, "GPU")
    if name == "pin_memory":
        return "pinned" if value else "pageable"
    return labels.word(name, value) if name in dataset.SETTINGS else str(value)


def grid(count: int, width_in: float, panel_in: float = _PANEL_IN) -> tuple[Figure, list[Axes]]:
    """So many panels of one height."""
    beside = min(count, _BESIDE[width_in])
    rows = -(-count // beside)
    made = style.figure(width_in, panel_in * rows + 0.45)
    axes = list(made.subplots(rows, beside, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return made, axes[:count]


def legend(made: Figure, name: str, levels: list[Any]) -> None:
    """The colours of a setting's values, above the panels, in as many rows as the width asks for."""
    looks = [palette.fill_style(name, level, levels) for level in levels]
    handles = [
        Patch(facecolor=(colour, 0.35), edgecolor=colour, hatch=hatch, label=word(name, level))
        for level, (colour, hatch) in zip(levels, looks, strict=True)
    ]
    most = 4 if made.get_figwidth() <= style.ONE_COLUMN_IN else 8
    made.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), most))


def places(axes: Axes, levels: list[Any], name: str) -> None:
    """Names of the places, turned where they are too long to stand side by side."""
    words = [str(level) if name in ("image_size", "world_size") else word(name, level) for level in levels]
    long = max(len(line) for text in words for line in text.split("\n")) * len(words) > 34
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(range(len(levels)), words, **turned)
    room = max(0.0, (3 - len(levels)) / 3)
    axes.set_xlim(-0.5 - room, len(levels) - 0.5 + room)
    axes.set_xlabel({"image_size": "Image size (px)", "world_size": "GPUs"}.get(name, ""))


def _list_bars(
    frame: pl.DataFrame, x: str, series: str, places_of: list[Any], levels: list[Any]
) -> list[tuple[float, pl.DataFrame, str, str]]:
    """(place, rows, colour, hatch) of every bar."""
    width = ROOM / len(levels)
    bars = []
    for at, place in enumerate(places_of):
        for index, level in enumerate(levels):
            own = frame.filter(pl.col(x) == pl.lit(place), pl.col(series) == pl.lit(level))
            if own.height:
                bars.append(
                    (at + (index - (len(levels) - 1) / 2) * width, own, *palette.fill_style(series, level, levels))
                )
    return bars


def columns(axes: Axes, frame: pl.DataFrame, x: str, series: str, value: str, levels: list[Any]) -> None:
    """Bars at medians of repeats, with the repeats."""
    places_of = blocks.levels(frame, x)
    for at, own, colour, hatch in _list_bars(frame, x, series, places_of, levels):
        panels.column(axes, at, own, value, colour, hatch, ROOM / len(levels) * 0.92)
    places(axes, places_of, x)
    axes.set_ylim(0, max(axes.dataLim.ymax, 1e-12) * 1.07)  # with room for the highest marker
    axes.grid(axis="y")


def by_kind(
    frame: pl.DataFrame, kinds: Sequence[str], x: str, series: str, width_in: float, panel_in: float = _PANEL_IN
) -> Figure:
    """`ms` a step of each kind (calls.per_step), one panel a kind on a scale of its own, under one legend."""
    levels = blocks.levels(frame, series)
    made, axes = grid(len(kinds), width_in, panel_in)
    for own, kind in zip(axes, kinds, strict=True):
        columns(own, frame.filter(pl.col("kind") == kind), x, series, "ms", levels)
        own.set_title(kind, loc="left")
        own.set_ylabel("ms a step")
    legend(made, series, levels)
    return made
