"""Step time of every configuration: each repeat a dot, a bar at their median, a whisker from least to most."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import panels
from analysis.figures.family import SPREAD, Family, results, with_value
from analysis.sweep import dataset


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """step_ms_median by configuration, one row a workload."""
    points = dataset.ok_points(tables).filter(pl.col("step_ms_median").is_not_null())
    return panels.dot_figure(points, "step_ms_median", "Step time (ms)")


FAMILY = Family(
    "Step time",
    "Median time of an optimizer step in the timed run, without a profiler; a step is as slow as its slowest "
    f"rank. {SPREAD}",
    "No point has step times.",
    with_value("step_ms_median"),
    paint,
    numbers=results("world_size", "step_ms_median", "step_ms_p95"),
)
