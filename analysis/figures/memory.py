"""Peak memory of every configuration, of the rank that needs most."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import panels, style
from analysis.sweep import dataset


def what(points: pl.DataFrame) -> str:
    """Which memory it is: not the same thing on a GPU and on a CPU."""
    devices = set(points["device_used"].drop_nulls())
    return {frozenset({"cuda"}): "allocated by CUDA", frozenset({"cpu"}): "RSS"}.get(frozenset(devices), "")


@style.styled
def draw(tables: dataset.Tables) -> Figure:
    """peak_memory_bytes by configuration, GiB, one row a workload."""
    points = dataset.ok_points(tables).filter(pl.col("peak_memory_bytes").is_not_null())
    if points.is_empty():
        return style.says("No point has a peak of memory.")
    kind = what(points)
    return panels.dot_figure(
        points, "peak_memory_bytes", f"Peak memory{', ' * bool(kind)}{kind} (GiB)", scale=1 / 2**30
    )
