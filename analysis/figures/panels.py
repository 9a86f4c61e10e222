"""What several figures draw: a bar at the median of repeats, each of which is a dot; bars of parts; rows of
configurations under the names of their models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes

ROW_IN = 0.115
"""Height of a row of text."""


def column(
    axes: Axes, x: float, repeats: pl.DataFrame, value: str, colour: str, hatch: str, width: float = 0.6
) -> None:
    """A bar at the median of the repeats' values, a dot for each, a whisker from the least to the most."""
    values = repeats[value].to_numpy()
    median = float(np.median(values))
    axes.bar(x, median, width=width, color=colour, alpha=0.35, edgecolor="none")
    axes.bar(x, median, width=width, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0.8)
    axes.hlines(median, x - width / 2, x + width / 2, color="black", linewidth=1.2)
    axes.vlines(x, values.min(), values.max(), color="black", linewidth=0.8)
    spread = np.linspace(-width / 4, width / 4, len(values)) if len(values) > 1 else np.zeros(1)
    axes.plot(x + spread, values, "o", color="white", markeredgecolor="black", markeredgewidth=0.7, markersize=3)


def bar(axes: Axes, y: float, repeats: pl.DataFrame, value: str, colour: str, hatch: str, scale: float = 1.0) -> None:
    """The same as `column`, from left to right."""
    values, height = repeats[value].to_numpy() * scale, 0.72
    median = float(np.median(values))
    axes.barh(y, median, height=height, color=colour, alpha=0.35, edgecolor="none")
    axes.barh(y, median, height=height, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0.8)
    axes.vlines(median, y - height / 2, y + height / 2, color="black", linewidth=1.2)
    axes.hlines(y, values.min(), values.max(), color="black", linewidth=0.8)
    axes.plot(values, np.full(len(values), y), "o", color="white", markeredgecolor="black", markersize=2.5)


def cut(text: str, most: int) -> str:
    """A text of no more characters than there is room for."""
    return text if len(text) <= most else text[: most - 1].rstrip(", ") + "\N{HORIZONTAL ELLIPSIS}"


def model_rows(axes: Axes, rows: Sequence[tuple[str, str]], longest: int) -> list[int]:
    """Name rows by (model, label), those of a model under its name; returns their places from the top. `longest`:
    characters of a label that there is room for."""
    places: list[int] = []
    names: list[str] = []
    heads = []
    for index, (model, label) in enumerate(rows):
        if not index or model != rows[index - 1][0]:
            heads.append(len(names))
            names.append(cut(model, longest))
        places.append(len(names))
        names.append(cut(label, longest))
    axes.set_yticks(range(len(names)), names)
    for head in heads:
        axes.get_yticklabels()[head].set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return places


def stack(
    axes: Axes,
    bars: Sequence[dict[str, float]],
    colours: dict[str, str],
    hatches: dict[str, str],
    places: Sequence[float] | None = None,
) -> None:
    """Lying bars, each of its values by kind, one after the other in the order of `colours`; those below 0 to the left
    of it. `places`: of the bars, from the top."""
    ends = {sign: [0.0] * len(bars) for sign in (True, False)}
    for kind, colour in colours.items():
        widths = [bar.get(kind, 0.0) for bar in bars]
        starts = [ends[width > 0][at] for at, width in enumerate(widths)]
        look: dict[str, Any] = {"color": colour, "hatch": hatches[kind], "edgecolor": "#333333", "linewidth": 0.5}
        axes.barh(places or range(len(bars)), widths, left=starts, height=0.72, label=kind.replace("_", " "), **look)
        for at, width in enumerate(widths):
            ends[width > 0][at] += width
