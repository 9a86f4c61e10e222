"""Step time of every configuration: each repeat a dot, a bar at their median, a whisker from least to most."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import data, panels, style


@style.styled
def draw(tables: data.Tables) -> Figure:
    """step_ms_median by configuration, one row a workload."""
    points = data.ok_points(tables).filter(pl.col("step_ms_median").is_not_null())
    if points.is_empty():
        return style.says("No point has step times.")
    return panels.dot_figure(points, "step_ms_median", "Step time (ms)")
