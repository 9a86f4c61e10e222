"""What the profiler counts, per step: times of copies, kernels and API calls of a point, mean over its ranks.

Calls, kernels and copies overlap in time: a call that waits for a kernel is as long as the kernel. So these times are
shown beside each other, and only calls of one thread, or copies of one direction, are added up.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from nightsweep.analysis.metrics.launches import sums
from nightsweep.analysis.paper.figures.family import measured_points
from nightsweep.analysis.sweep import blocks, dataset

_NAME = pl.col("name")
_CALL = pl.col("category").is_in(["runtime", "sync"])
LAUNCH = _CALL & _NAME.str.contains(r"^cu(da)?(Launch|GraphLaunch)")
SYNCHRONISE = pl.col("category") == "sync"
COPY_CALL = _CALL & _NAME.str.contains(r"^cu(da)?Mem(cpy|set)")
CALLS = {
    "launches": LAUNCH,
    "synchronisation": SYNCHRONISE,
    "copies": COPY_CALL,
    "other calls": _CALL & ~(LAUNCH | SYNCHRONISE | COPY_CALL),
}
"""Every API call, once."""
KERNELS = {
    "compute": pl.col("category") == "compute",
    "communication": pl.col("category") == "communication",
    "copies": pl.col("category").is_in(["copy", "memset"]),
}
"""All work of the GPU, once. Streams run beside each other, so it may add up to more than the step."""
DIRECTIONS = {name: (pl.col("category") == "copy") & (name == _NAME) for name in ("HtoD", "DtoH", "DtoD", "PtoP")}
_SOURCES = {
    "api_sum": _CALL,
    "kernel_sum": pl.col("category") == "communication",
    "copy_time_sum": DIRECTIONS["HtoD"],
}
AUTHORS = {
    figure: _SOURCES[source] & (True if source == "copy_time_sum" else _NAME.str.contains(pattern))
    for figure, (source, pattern) in sums.PAPER.items()
}
"""The seven that the paper's authors chose. They are of three reports of nsys and overlap: never to be added up."""


def traced_points(tables: dataset.Tables, workload: str) -> pl.DataFrame:
    """Measured points of the workload that have counts of a trace by nsys: Kineto's API calls are not all of them."""
    have = tables["activities"]["point_id"].unique().to_list()
    return measured_points(tables, workload).filter(pl.col("point_id").is_in(have), pl.col("tracer_used") == "nsys")


def widest_block(tables: dataset.Tables, workload: str, factors: tuple[str, ...]) -> pl.DataFrame:
    """Traced points of the widest block in which the first of the factors that varies does, the others being free."""
    points = traced_points(tables, workload)
    for factor in factors:
        found, _ = blocks.widest_block(points, factor, [name for name in factors if name != factor])
        if found.height:
            return found
    return points.clear()


def per_step(tables: dataset.Tables, points: pl.DataFrame, kinds: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """point_id, kind, ms, gb, count: of one step, mean over ranks; 0 where the trace has none."""
    activities = tables["activities"].filter(pl.col("point_id").is_in(points["point_id"].to_list()))
    steps = tables["breakdown"].group_by("point_id", "rank").agg(steps=pl.col("step").n_unique())
    named = points.select("point_id", planned="traced_steps")
    rows = activities.join(steps, on=["point_id", "rank"], how="left").join(named, on="point_id")
    rows = rows.with_columns(pl.coalesce("steps", "planned").alias("steps"))
    ranks = rows.group_by("point_id").agg(ranks=pl.col("rank").n_unique())
    parts = []
    for kind, which in kinds.items():
        of_step = [
            (pl.col(column).filter(which).sum() / pl.col("steps").first() * scale).alias(name)
            for name, column, scale in (("ms", "total_ns", 1e-6), ("gb", "bytes", 1e-9), ("count", "count", 1))
        ]
        by_rank = rows.group_by("point_id", "rank").agg(of_step).sort("point_id", "rank")
        own = by_rank.group_by("point_id", maintain_order=True).agg(pl.col("ms", "gb", "count").sum())
        own = own.join(ranks, on="point_id").with_columns(pl.col("ms", "gb", "count") / pl.col("ranks"))
        parts.append(own.select("point_id", pl.lit(kind).alias("kind"), "ms", "gb", "count"))
    return pl.concat(parts).join(points, on="point_id").sort("kind", "point_id")


def numbers(points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """Times, bytes and counts of a step, by kind of call, kernel and copy: what figures of calls show, and more."""
    rows = per_step(tables, points, CALLS | KERNELS | DIRECTIONS | AUTHORS)
    vary = [name for name in dataset.varying(points, but=()) if name not in ("kind", "count")]
    return rows.select("point_id", *vary, "kind", "ms", "gb", "count")
