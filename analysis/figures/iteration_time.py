"""Step time of every configuration: each repeat a dot, a bar at their median, a whisker from least to most."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import panels, style
from analysis.sweep import dataset


@style.styled
def draw(tables: dataset.Tables) -> Figure:
    """step_ms_median by configuration, one row a workload."""
    points = dataset.ok_points(tables).filter(pl.col("step_ms_median").is_not_null())
    if points.is_empty():
        return style.says("No point has step times.")
    return panels.dot_figure(points, "step_ms_median", "Step time (ms)")
