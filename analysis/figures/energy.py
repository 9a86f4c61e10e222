"""Energy of a sample against the GPU time that it takes; their ratio is the mean power of a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from analysis.figures import panels, style
from analysis.figures.family import Family, results
from analysis.sweep import dataset

WATTS = (100, 200, 400, 700)
UNITS = {"image": ("sample", "samples_per_s", "sample_j"), "llm": ("token", "tokens_per_s", "token_j")}
"""By workload: what energy is counted by, the column of its rate, and that of its energy."""


def energy_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points with the energy of their GPUs: `unit` (sample, token), `gpu_ms` and `energy_mj` of one; gpu_ms is the time
    of all of the point's GPUs together."""
    points = dataset.ok_points(tables).filter(pl.col("energy_j").is_not_null())
    parts = [
        points.filter(pl.col("workload") == workload, pl.col(rate) > 0, pl.col(energy) > 0).with_columns(
            unit=pl.lit(unit), gpu_ms=pl.col("world_size") / pl.col(rate) * 1e3, energy_mj=pl.col(energy) * 1e3
        )
        for workload, (unit, rate, energy) in UNITS.items()
    ]
    return pl.concat(parts)


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """One panel a workload."""
    points = energy_points(tables)
    parts = dataset.per_workload(points)
    made, rows = style.facets(len(parts), 3.0)
    for axes, (workload, part) in zip(rows, parts, strict=True):
        _panel(axes, part)
        axes.set_title(workload, loc="left")
    return made


def _panel(axes: Axes, points: pl.DataFrame) -> None:
    models = points["model"].unique().sort().to_list()
    for place, model in enumerate(models):
        for precision, colour in style.PRECISION_COLOURS.items():
            own = points.filter(pl.col("model") == model, pl.col("precision") == precision)
            look: dict[str, Any] = {"color": colour, "markeredgecolor": "black", "markeredgewidth": 0.4}
            if own.height:
                kind = style.MARKERS[place % len(style.MARKERS)]
                axes.plot(own["gpu_ms"], own["energy_mj"], kind, label=style.in_legend(f"{model}, {precision}"), **look)
    everything = points.select("gpu_ms", "energy_mj", pl.col("disturbed").fill_null(False))
    panels.mark_disturbed(axes, *(everything[name].to_numpy() for name in everything.columns))
    axes.set(xscale="log", yscale="log")
    spread = points["gpu_ms"].to_numpy(), points["energy_mj"].to_numpy()
    axes.set_xlim(spread[0].min() / 1.3, spread[0].max() * 1.8)
    axes.set_ylim(spread[1].min() / 1.3, spread[1].max() * 1.3)
    _powers(axes)
    unit = points["unit"][0]
    axes.set_xlabel(f"GPU time of a {unit} (ms)")
    axes.set_ylabel(f"Energy of a {unit} (mJ)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_locator(NullLocator())
    axes.grid()
    if axes.get_legend_handles_labels()[0]:  # one of a kind alone is a point without a line
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def _powers(axes: Axes) -> None:
    """Lines of one power. It is written where the line leaves the panel at the right, or at the top."""
    (left, right), top = axes.get_xlim(), axes.get_ylim()[1]
    for watts in WATTS:
        ends = np.array([left, min(right, top / watts)])
        axes.plot(ends, ends * watts, color=style.GREY, linestyle=":", linewidth=0.8, zorder=0)
        if ends[1] > left:
            place: dict[str, Any] = {"ha": "right", "va": "bottom", "color": "#444444", "fontsize": 6}
            axes.text(ends[1], ends[1] * watts, f"{watts} W", **place)


FAMILY = Family(
    "Energy and time",
    "Energy per sample (image) or token (llm) against the time that it takes all GPUs together; each dot is a "
    "point. Dotted: a GPU's mean power.",
    "No point has the energy of its GPUs.",
    energy_points,
    paint,
    numbers=results("unit", "gpu_ms", "energy_mj"),
    reading="Energy is by the GPUs' own counters, over the timed window.",
)
