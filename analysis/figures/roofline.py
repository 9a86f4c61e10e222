"""How near GPUs come to what they can do, and what that costs: achieved FLOP/s by arithmetic intensity under the
device's ceilings (Williams, Waterman and Patterson, CACM 52(4), 2009), and the energy of a sample by its GPU time.

FLOP/s are the model's, of one GPU: flops_per_step over world_size and step_ms_mean. Bytes are those that the memory
interface moved: its share of busy cycles (GPM) while timed steps ran, times the bandwidth that the maker states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from nightsweep.analysis.figures import style
from nightsweep.analysis.figures.family import Family, with_ids
from nightsweep.analysis.metrics.points import peaks
from nightsweep.analysis.sweep import dataset

DISTURBED = "#b00000"
WATTS = (100, 200, 400, 700)
UNITS = {"image": ("sample", "samples_per_s", "sample_j"), "llm": ("token", "tokens_per_s", "token_j")}
"""By workload: what energy is counted by, the column of its rate, and that of its energy."""
_SUBS = {5: (1, 1.5, 2, 3, 5, 7), 30: (1, 2, 5), 300: (1, 3), float("inf"): (1,)}
"""The numbers of a decade that an axis names, by the ratio of its ends up to which it does."""
_ON_LINE: dict[str, Any] = {
    "fontsize": style.SMALLEST_PT,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    "zorder": 1.5,
}
_COLUMNS = ("point_id", "model", "workload", "format", "accelerator", "disturbed")


def roofline_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points with all that it takes: format, intensity (FLOP/byte), flops_per_s (of one GPU), peak_flops_per_s."""
    ok = tables["points"].filter(pl.col("status") == "ok", pl.col("mfu_percent").is_not_null())
    rows = []
    for row in ok.to_dicts():
        peak, busy_percent = peaks.peak_of(row["accelerator"]), row["dram_active_percent"]
        if peak is not None and busy_percent:
            achieved = row["flops_per_step"] / row["world_size"] / (row["step_ms_mean"] / 1e3)
            moved = busy_percent / 100 * peak.memory_bytes_per_s
            own = {"intensity": achieved / moved, "flops_per_s": achieved, "format": peaks.format_of(row)}
            rows.append(
                {name: (row | own)[name] for name in (*_COLUMNS, "peak_flops_per_s", "intensity", "flops_per_s")}
            )
    return pl.DataFrame(rows, infer_schema_length=None)


def energy_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points with the energy of their GPUs: format, unit (sample, token), gpu_ms and energy_mj of one; gpu_ms is the
    time of all of the point's GPUs together."""
    points = tables["points"].filter(pl.col("status") == "ok", pl.col("energy_j").is_not_null())
    parts = [
        points.filter(pl.col("workload") == workload, pl.col(rate) > 0, pl.col(energy) > 0).with_columns(
            unit=pl.lit(unit), gpu_ms=pl.col("world_size") / pl.col(rate) * 1e3, energy_mj=pl.col(energy) * 1e3
        )
        for workload, (unit, rate, energy) in UNITS.items()
    ]
    found = pl.concat(parts)
    formats = pl.Series("format", [peaks.format_of(row) for row in found.to_dicts()], pl.String)
    return found.with_columns(formats).select(*_COLUMNS, "unit", "gpu_ms", "energy_mj")


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points of either."""
    frames = [frame for frame in (roofline_points(tables), energy_points(tables)) if frame.height]
    return with_ids(tables, [point for frame in frames for point in frame["point_id"]])


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    """A roofline a model of GPU, then energy by workload."""
    placed, costs = roofline_points(tables), energy_points(tables)
    rooms = [(_roofline, part) for part in placed.partition_by("accelerator")] if placed.height else []
    rooms += [(_energy, part) for part in costs.sort("workload").partition_by("workload", maintain_order=True)]
    beside = min(len(rooms), 3) if width_in > style.ONE_COLUMN_IN else 1
    rows = -(-len(rooms) // beside)
    made = style.figure(width_in, (2.3 if beside > 1 else 2.0) * rows + 0.4)
    axes = list(made.subplots(rows, beside, squeeze=False).flat)
    for unused in axes[len(rooms) :]:
        unused.remove()
    for own, (draw, part) in zip(axes, rooms, strict=False):
        draw(own, part)
        _logarithmic(own)
    seen = {name for frame in (placed, costs) if frame.height for name in frame["format"]}
    looks = [
        Line2D([], [], linestyle="", label=name, **_look(name)) for name in style.PRECISION_COLOURS if name in seen
    ]
    made.legend(handles=looks, loc="outside upper center", ncols=7 if beside > 1 else 4)
    return made


def _look(name: str) -> dict[str, Any]:
    """Of the points of a format: by colour, and in grey by marker."""
    known = list(style.PRECISION_COLOURS)
    marker = style.MARKERS[known.index(name)] if name in known else style.MARKERS[-1]
    return {"marker": marker, "color": style.PRECISION_COLOURS.get(name, style.GREY), "markersize": 3}


def _scatter(axes: Axes, points: pl.DataFrame, x: str, y: str) -> None:
    for (name, workload), own in points.group_by("format", "workload", maintain_order=True):
        look = _look(str(name))
        face = "white" if workload == "image" else look["color"]
        axes.plot(own[x], own[y], markerfacecolor=face, linestyle="", **look)
    crossed = points.filter(pl.col("disturbed").fill_null(False))
    axes.plot(crossed[x], crossed[y], "x", color=DISTURBED, markersize=6, markeredgewidth=1.2, zorder=5)


def _logarithmic(axes: Axes) -> None:
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        axis.set_major_locator(LogLocator(subs=next(subs for most, subs in _SUBS.items() if high / low < most)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_locator(NullLocator())
    axes.grid()


def _roofline(axes: Axes, points: pl.DataFrame) -> None:
    peak = peaks.peak_of(points["accelerator"][0])
    assert peak is not None
    points = points.with_columns(pl.col("flops_per_s", "peak_flops_per_s") / 1e12)
    formats: dict[float, list[str]] = {}
    for top, name in (
        points.select("peak_flops_per_s", "format").unique().sort("peak_flops_per_s", "format").iter_rows()
    ):
        formats.setdefault(top, []).append(name.removesuffix("_pure"))
    slope, highest = peak.memory_bytes_per_s / 1e12, max(formats)
    left = min(points["intensity"].to_list()) / 3
    right = max([*points["intensity"].to_list(), highest / slope]) * 8
    axes.set(xscale="log", yscale="log", xlim=(left, right))
    axes.plot([left, highest / slope], [left * slope, highest], color=style.BLACK, linewidth=0.7, zorder=1)
    axes.text(left * 3, left * 3 * slope, f"{slope:.3g} TB/s", ha="center", va="center", **_ON_LINE)
    for top, names in formats.items():
        axes.plot([max(left, top / slope), right], [top, top], color=style.BLACK, linewidth=0.7, zorder=1)
        small: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": style.SMALLEST_PT}
        axes.text(right, top, f"{', '.join(dict.fromkeys(names))}: {top:.0f}", **small)
    _scatter(axes, points, "intensity", "flops_per_s")
    axes.set_ylim(min([*points["flops_per_s"].to_list(), left * slope]) / 1.5, highest * 3)
    axes.set_xlabel("Model FLOPs a byte of GPU memory traffic")
    axes.set_ylabel("TFLOP/s of a GPU")
    axes.set_title(points["accelerator"][0], loc="left", weight="bold")


def _energy(axes: Axes, points: pl.DataFrame) -> None:
    x, y = points["gpu_ms"].to_list(), points["energy_mj"].to_list()
    left, right, bottom, top = min(x) / 1.3, max(x) * 1.8, min(y) / 1.3, max(y) * 1.6
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    ends = {watts: min(right, top / watts) for watts in WATTS}
    inside = [watts for watts, end in ends.items() if end > left and end * watts > 1.2 * bottom]
    for watts in inside:
        line = np.array([left, ends[watts]])
        axes.plot(line, line * watts, color=style.GREY, linestyle=":", linewidth=0.8, zorder=0)
        text = f"{watts} W" if watts == inside[0] else str(watts)
        axes.text(line[1], line[1] * watts, text, ha="right", va="top", **_ON_LINE)
    _scatter(axes, points, "gpu_ms", "energy_mj")
    unit = points["unit"][0]
    axes.set_xlabel(f"GPU time of a {unit} (ms)")
    axes.set_ylabel(f"Energy of a {unit} (mJ)")
    axes.set_title(points["workload"][0], loc="left", weight="bold")


def numbers(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    frames = [frame for frame in (roofline_points(tables), energy_points(tables)) if frame.height]
    return pl.concat(frames, how="diagonal_relaxed").drop("disturbed")


FAMILY = Family(
    "Roofline and energy",
    "Model FLOP/s of a GPU by arithmetic intensity, under its memory bandwidth and peaks (TFLOP/s); energy of a sample "
    "or token by its time on all GPUs. Dotted: a GPU's mean power. Hollow: image jobs.",
    "No point has counters of its GPU's memory with an MFU, nor the energy of its GPUs.",
    select_points,
    paint,
    numbers=numbers,
    reading=(
        "All of the timed run. Ceilings are as the maker states them. Bytes are those that the memory interface moved, "
        "by the GPU's own counters (GPM); energy is by its own counter, too."
    ),
)
