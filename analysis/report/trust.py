"""The part of the report that says how far its numbers can be trusted: how starts differ, disturbed points, what
measuring cost, clocks, GPU events."""

from __future__ import annotations

from typing import Any

import polars as pl

from nightsweep.analysis.metrics.points import cost
from nightsweep.analysis.sweep import dataset, mean_precision, variance

_Rows = list[dict[str, Any]]

CONDITIONS = {
    "sampler": "samplers on ({tool})",
    "idle": "{tool} there, not capturing",
    "capturing": "{tool} capturing",
}
CLOCKS = {
    "utc-monotonic": "UTC of a host against its monotonic clock",
    "trace-steps": "trace against the step loop; taken out",
    "ranks": "ends of collectives against rank 0; taken out between hosts",
    "counters": "age of GPM values; not taken out",
}
GRAVEST = ("gpu_lost", "xid", "ecc", "low_gpu", "sampler_lost", "foreign_process", "field_missing")
"""Kinds of events, in the order in which they are shown."""
MOST_EVENTS = 50
MOST_CONFIGURATIONS = 20


def labels(tables: dataset.Tables) -> pl.DataFrame:
    """point_id, workload, config."""
    return dataset.labelled(tables).select("point_id", "workload", "config")


def costs(tables: dataset.Tables) -> _Rows:
    """One row a point with a control and condition: label, condition, pairs, plain_ms, ratio, error, low, high."""
    found = cost.summary(tables["cost"]).join(labels(tables), on="point_id", how="left", maintain_order="left")
    return [
        row | {"what": CONDITIONS[row["condition"]].format(tool=row["tool"] or "tracer")}
        for row in found.to_dicts()
        if row["condition"] in CONDITIONS
    ]


def conditions(tables: dataset.Tables) -> dict[str, int]:
    """Of the points that are ok, how many were `disturbed`, how many were not (`quiet`), and of how many that is not
    known; how many were still warming up in the second half of their window (`unsteady`), of how many that can tell
    (`windows`), and of how many first steps were left out (`cut`)."""
    points = tables["points"].filter(pl.col("status") == "ok")
    return {
        "disturbed": int(points["disturbed"].sum()),
        "quiet": int((~points["disturbed"]).sum()),
        "unknown": points["disturbed"].null_count(),
        "unsteady": int((~points["steady"]).sum()),
        "windows": points["steady"].count(),
        "cut": int((points["warm_from"] > 0).sum()),
    }


def components(starts: pl.DataFrame) -> list[tuple[str, list[variance.Component]]]:
    """By workload, the components of variance of its starts."""
    return [(workload, variance.components(own)) for workload, own in dataset.per_workload(starts.sort("workload"))]


def precision(starts: pl.DataFrame) -> dict[str, Any]:
    """How precisely configurations are known: `median` of all half widths, %, of `count`; `groups` of configurations
    with one start and with several (workload, several, count, half_percent, their median); `worst`, the first
    configurations."""
    found = mean_precision.configurations(starts)
    several = pl.col("starts") > 1
    groups = found.group_by("workload", several=several).agg(pl.len().alias("count"), pl.col("half_percent").median())
    return {
        "median": found["half_percent"].median(),
        "count": found.height,
        "groups": groups.sort("workload", "several", descending=[False, True]).to_dicts(),
        "worst": found.head(MOST_CONFIGURATIONS).to_dicts(),
    }


def clocks(tables: dataset.Tables) -> _Rows:
    """One row a kind of comparison, over all points: what, ranks, offset_us, residual_us, residual_max_us (the worst
    medians and the worst of all)."""
    known = tables["clocks"].filter(pl.col("events") > 0)
    made = known.group_by("between").agg(
        ranks=pl.len(),
        offset_us=pl.col("offset_us").abs().max(),
        residual_us=pl.col("residual_us").max(),
        residual_max_us=pl.col("residual_max_us").max(),
    )
    rows = {row["between"]: row for row in made.to_dicts()}
    return [rows[kind] | {"what": text} for kind, text in CLOCKS.items() if kind in rows]


def events(tables: dataset.Tables) -> tuple[_Rows, int]:
    """What happened to GPUs, the gravest first, then in order of time, with the point's label, at most MOST_EVENTS; and
    how many there are."""
    found = tables["gpu_events"].join(labels(tables), on="point_id", how="left", maintain_order="left")
    when = pl.from_epoch("t_ns", "ns").dt.strftime("%Y-%m-%d %H:%M:%S")
    grave = pl.col("kind").replace_strict({kind: n for n, kind in enumerate(GRAVEST)}, default=len(GRAVEST))
    return found.sort(grave, "t_ns", "host").with_columns(when=when).head(MOST_EVENTS).to_dicts(), found.height
