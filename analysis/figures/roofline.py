"""Achieved FLOP/s of points by their arithmetic intensity, under what the device could do (Williams, Waterman and
Patterson, CACM 52(4), 2009).

FLOP/s are the model's, of one GPU: flops_per_step over world_size and step_ms_mean. Bytes are those that the memory
interface moved: its share of busy cycles (GPM) while timed steps ran, times the bandwidth that the maker states.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from analysis.figures import panels, style
from analysis.figures.family import Family, with_ids
from analysis.metrics.points import peaks
from analysis.sweep import dataset


def roofline_points(tables: dataset.Tables) -> list[dict[str, Any]]:
    """Points with all that it takes, each with intensity (FLOP/byte) and flops_per_s (of one GPU)."""
    measured = dataset.ok_points(tables).filter(pl.col("mfu_percent").is_not_null())
    rows = []
    for row in measured.to_dicts():
        peak, busy_percent = peaks.peak_of(row["accelerator"]), row["dram_active_percent"]
        if peak is not None and busy_percent:
            achieved = row["flops_per_step"] / row["world_size"] / (row["step_ms_mean"] / 1e3)
            placed = {"flops_per_s": achieved, "intensity": achieved / (busy_percent / 100 * peak.memory_bytes_per_s)}
            rows.append(row | placed | {"precision": peaks.format_of(row)})
    return rows


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """One roofline a model of GPU."""
    rows = roofline_points(tables)
    models = sorted({row["accelerator"] for row in rows})
    made, rooms = style.facets(len(models), 3.0)
    for axes, model in zip(rooms, models, strict=True):
        _panel(axes, [row for row in rows if row["accelerator"] == model])
        axes.set_title(model, loc="left")
    return made


def _panel(axes: Axes, rows: list[dict[str, Any]]) -> None:
    peak = peaks.peak_of(rows[0]["accelerator"])
    assert peak is not None
    precisions = sorted({row["precision"] for row in rows})
    tops = {p: next(r["peak_flops_per_s"] for r in rows if r["precision"] == p) for p in precisions}
    balance = max(tops.values()) / peak.memory_bytes_per_s
    spread = [row["intensity"] for row in rows] + [balance]
    x = np.geomspace(min(spread) / 3, max(spread) * 3, 200)
    for precision in precisions:
        roof = np.minimum(x * peak.memory_bytes_per_s, tops[precision])
        axes.plot(x, roof / 1e12, color=style.PRECISION_COLOURS[precision], label=f"{precision}: peak")
        for place, workload in enumerate(sorted(style.WORKLOAD_COLOURS)):
            own = [row for row in rows if (row["precision"], row["workload"]) == (precision, workload)]
            look: dict[str, Any] = {
                "color": style.PRECISION_COLOURS[precision],
                "marker": style.MARKERS[place],
                "linestyle": "",
            }
            if own:
                points = [row["intensity"] for row in own], [row["flops_per_s"] / 1e12 for row in own]
                axes.plot(
                    *points, label=f"{precision}: {workload}", markeredgecolor="black", markeredgewidth=0.4, **look
                )
    x, y = (np.array([row[name] for row in rows]) for name in ("intensity", "flops_per_s"))
    panels.mark_disturbed(axes, x, y / 1e12, np.array([bool(row["disturbed"]) for row in rows]))
    axes.set(xscale="log", yscale="log", ylabel="TFLOP/s of a GPU")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FormatStrFormatter("%g"))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("Arithmetic intensity (model FLOPs a byte of GPU memory traffic)")
    axes.grid()
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def numbers(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """Where each point stands."""
    names = ("point_id", "config", "precision", "accelerator", "intensity", "flops_per_s", "peak_flops_per_s")
    return pl.DataFrame(roofline_points(tables), infer_schema_length=None).select(names)


FAMILY = Family(
    "Roofline",
    "Model FLOP/s of a GPU in the timed run, by arithmetic intensity. The roof is the memory bandwidth or the "
    "peak of the precision, whichever is lower, as the maker states them.",
    "No point has both an MFU and counters of its GPU's memory, so there is no roofline.",
    lambda tables: with_ids(tables, [row["point_id"] for row in roofline_points(tables)]),
    paint,
    numbers=numbers,
    reading="Bytes are those that the memory interface moved, by the GPU's own counters (GPM).",
)
