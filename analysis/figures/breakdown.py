"""Where the time of a step goes: mean time of each part, per rank and configuration, from the traced run."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import panels, style
from analysis.figures.family import Family, with_ids
from analysis.sweep import dataset
from analysis.tables.part_names import GROUPS

MOST = 40


def mean_parts(tables: dataset.Tables, by: str = "config") -> pl.DataFrame:
    """Per workload, configuration (or `by`), rank and part: mean over steps and repeats, ms; a part that is absent took
    none."""
    points = dataset.ok_points(tables).select("point_id", "workload", "config", "config_order")
    rows = tables["breakdown"].join(points, on="point_id")
    bar = list(dict.fromkeys(["workload", "config_order", "config", by, "rank"]))
    steps = rows.group_by(bar).agg(steps=pl.struct("point_id", "step").n_unique(), points=pl.col("point_id").n_unique())
    return (
        rows.group_by(*bar, "part")
        .agg(pl.col("duration_ns").sum())
        .join(steps, on=bar)
        .with_columns(mean_ms=pl.col("duration_ns") / pl.col("steps") / 1e6)
        .sort(*bar, "part")
    )


def _panel(axes: Axes, workload: str, bars: list[pl.DataFrame], count: int) -> None:
    means = [dict(zip(bar["part"], bar["mean_ms"], strict=True)) for bar in bars]
    panels.stack(axes, means, style.PART_COLOURS, style.PART_HATCHES)
    names = [f"{panels.brief(bar['config'][0])}, rank {bar['rank'][0]}, n = {bar['points'][0]}" for bar in bars]
    axes.set_yticks(range(len(bars)), names)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.grid(axis="x")
    axes.set_xlabel("Mean time in a step of the traced run (ms)")
    more = f" (the first {len(bars)} of {count} ranks)" if count > len(bars) else ""
    axes.set_title(f"{workload}{more}", loc="left")


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """Stacked bars, one a rank of a configuration, one panel a workload."""
    parts = mean_parts(tables)
    workloads = [
        (workload, part.partition_by("config_order", "rank", maintain_order=True))
        for workload, part in dataset.per_workload(parts)
    ]
    return panels.stacked_figure(workloads, MOST, _panel, len(GROUPS))


FAMILY = Family(
    "Where the time goes",
    "Mean time of each part of a step, per rank, in the traced run; the parts add up to the step.",
    "No point has a trace, so there is no breakdown of its steps.",
    lambda tables: with_ids(tables, tables["breakdown"]["point_id"]),
    paint,
    numbers=lambda _points, tables: mean_parts(tables),
    reading=(
        "Means are over traced steps and repeats; no spread is shown. A profiler ran, so lengths are not those "
        "of the timed run."
    ),
)
