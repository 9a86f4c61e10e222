"""Peak memory of every configuration, of the rank that needs most."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import panels
from analysis.figures.family import SPREAD, Family, results, with_value
from analysis.sweep import dataset


def what(points: pl.DataFrame) -> str:
    """Which memory it is: not the same thing on a GPU and on a CPU."""
    devices = set(points["device_used"].drop_nulls())
    return {frozenset({"cuda"}): "allocated by CUDA", frozenset({"cpu"}): "RSS"}.get(frozenset(devices), "")


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """peak_memory_bytes by configuration, GiB, one row a workload."""
    points = dataset.ok_points(tables).filter(pl.col("peak_memory_bytes").is_not_null())
    kind = what(points)
    return panels.dot_figure(
        points, "peak_memory_bytes", f"Peak memory{', ' * bool(kind)}{kind} (GiB)", scale=1 / 2**30
    )


FAMILY = Family(
    "Peak memory",
    "Peak memory of the rank that needs most: of CUDA's allocator on GPUs, resident memory of the process on "
    f"CPUs. {SPREAD}",
    "No point has a peak of memory.",
    with_value("peak_memory_bytes"),
    paint,
    numbers=results("world_size", "peak_memory_bytes"),
)
