"""What the interactive figures show beside the data of the points' own pages (page/charts/)."""

from __future__ import annotations

from typing import Any

import polars as pl

from nightsweep.analysis.figures import palette, scaling, style
from nightsweep.analysis.paper.figures import calls, traced_steps
from nightsweep.analysis.report import table
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables.part_names import GROUPS

WAYS = {
    "parts of the step": {part: (part, style.PART_COLOURS[part]) for part in GROUPS},
    "CUDA API calls": {kind: (f"api {kind}", palette.COLOURS["call"][kind]) for kind in calls.CALLS},
    "work of the GPU": {kind: (f"gpu {kind}", style.PART_COLOURS[kind]) for kind in calls.KERNELS},
}
"""Ways to look at the time of a traced step: of each, its kinds, their columns in `point_times` and colours."""


def chart_data(tables: dataset.Tables, points: pl.DataFrame) -> dict[str, Any]:
    """Of points, in their order; a point stands for its place.

    Returns:
        measures: (heading, column, what it is divided by, decimals) of results that points are compared by. chosen:
        settings that points of a workload differ in. times: `step_times`. scaling: `efficiencies`. cycle: colours of
        lines and markers.
    """
    places = {point: place for place, point in enumerate(points["point_id"])}
    known = [result for result in table.RESULTS if points[result[1]].null_count() < points.height]
    vary = {name for _, part in dataset.per_workload(points) for name in dataset.varying(part)}
    return {
        "measures": [result for result in known if result[1] != "world_size"],
        "chosen": [name for name in dataset.SETTINGS if name in vary and name != "model"],
        "times": step_times(tables, places),
        "scaling": efficiencies(tables.own, places),
        "cycle": style.CYCLE,
    }


def step_times(tables: dataset.Tables, places: dict[str, int]) -> list[dict[str, Any]]:
    """The time of a traced step in each of WAYS: `kinds` with their `colours`, and `rows`, of each point its place, its
    step, ms, and the ms of each kind. Points whose tracer does not see a kind are absent."""
    times = traced_steps.point_times(tables).with_columns(pl.selectors.float().round_sig_figs(6))
    ways = []
    for title, kinds in WAYS.items():
        names = [column for column, _ in kinds.values()]
        rows = times.select("point_id", "step_ms", *names).drop_nulls().rows()
        colours = [colour for _, colour in kinds.values()]
        own = [[places[point], *numbers] for point, *numbers in rows if point in places]
        ways.append({"title": title, "kinds": list(kinds), "colours": colours, "rows": own})
    return [way for way in ways if way["rows"]]


def efficiencies(tables: dataset.Tables, places: dict[str, int]) -> list[dict[str, Any]]:
    """Groups of points that differ in ranks and nodes alone: `model`, `label`, and `shapes`: of each number of ranks
    and of nodes the efficiency over the fewest ranks, the least and the most, and the places of its points."""
    ids = scaling.scaling_points(tables).group_by(*scaling.GROUP, *scaling.SHAPE).agg(pl.col("point_id").unique())
    found = scaling.speed_ups(tables).join(ids, on=[*scaling.GROUP, *scaling.SHAPE], how="left", nulls_equal=True)
    named = scaling.group_labels(tables)
    groups: dict[tuple[str, int], dict[str, Any]] = {}
    for row in found.sort("workload", "config_order", "world", "nodes").to_dicts():
        key = (row["workload"], row["config_order"])
        model, label = named.get(key, ("", row["config"]))
        group = groups.setdefault(key, {"model": model, "label": label, "shapes": []})
        shares = [float(f"{row[name] / row['ideal']:.4g}") for name in ("median_up", "least_up", "most_up")]
        own = sorted(places[point] for point in row["point_id"] if point in places)
        group["shapes"].append([row["world"], row["nodes"], *shares, own])
    return [group for group in groups.values() if len(group["shapes"]) > 1]
