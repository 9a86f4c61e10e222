"""Where a step's time goes, of every configuration with a trace: its parts, and beside them all API calls and all work
of the GPU, which overlap."""

from __future__ import annotations

import functools

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.figures import palette, panels, style
from nightsweep.analysis.figures.family import Family, with_ids
from nightsweep.analysis.paper.figures import calls
from nightsweep.analysis.sweep import dataset, short_labels, step_parts
from nightsweep.analysis.tables.part_names import GROUPS

MOST = 60
"""Rows that a page has room for."""
_LONGEST = {style.ONE_COLUMN_IN: 27, style.TWO_COLUMNS_IN: 44}
KINDS = {f"api {name}": which for name, which in calls.CALLS.items()} | {
    f"gpu {name}": which for name, which in calls.KERNELS.items()
}
"""What is beside the parts, by column of `shares`."""
_ROW = ["workload", "model", "label"]
_COLOURS = style.PART_COLOURS | palette.COLOURS["call"]
_HATCHES = style.PART_HATCHES | {"launches": "----", "synchronisation": "||||", "other calls": ""}


def traced_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points whose steps have parts, without those that were disturbed."""
    return dataset.undisturbed(with_ids(tables, tables["breakdown"]["point_id"]))


@functools.lru_cache(maxsize=1)  # the figure, its numbers and its note ask for them
def point_times(tables: dataset.Tables) -> pl.DataFrame:
    """The traced points with their labels and, of a step, ms, mean over ranks: step_ms, its parts, and the calls
    and work of KINDS, null without a trace of nsys (Kineto's has not all API calls)."""
    points = traced_points(tables).join(step_parts.mean_parts(tables), on="point_id")
    points = short_labels.add_labels(points, dataset.ASIDE).with_columns(step_ms=pl.sum_horizontal(GROUPS))
    traced = points.filter(pl.col("tracer_used") == "nsys").select("point_id", "traced_steps")
    beside = pl.DataFrame(schema={"point_id": pl.String(), **dict.fromkeys(KINDS, pl.Float64())})
    if traced.height and tables["activities"].height:
        times = calls.per_step(tables, traced, KINDS)
        beside = times.pivot("kind", index="point_id", values="ms").select("point_id", *KINDS)
    # In order, for means of floats depend on it.
    return points.sort("point_id").join(beside, on="point_id", how="left", maintain_order="left")


def shares(tables: dataset.Tables) -> pl.DataFrame:
    """A row a configuration, those of a model with most idle time first: n, step_ms, and `point_times` in % of it."""
    columns = [*GROUPS, *KINDS]
    rows = point_times(tables).with_columns(pl.col(name) / pl.col("step_ms") * 100 for name in columns)
    found = rows.group_by(_ROW, maintain_order=True).agg(pl.len().alias("n"), pl.col("step_ms", *columns).mean())
    return found.sort("workload", "model", "idle", "label", descending=[False, False, True, False])


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    """A row a configuration, in up to three panels."""
    everything = shares(tables)
    kept = everything.sort("idle", descending=True).head(MOST).select(_ROW)
    rows = everything.join(kept, on=_ROW, how="semi", nulls_equal=True, maintain_order="left").to_dicts()
    columns = {"Step (%)": {name: name for name in GROUPS}}
    if has_calls(everything):
        columns["API (%)"] = {name: f"api {name}" for name in calls.CALLS}
        columns["GPU (%)"] = {name: f"gpu {name}" for name in calls.KERNELS}
    names = [(row["model"] or row["workload"], row["label"]) for row in rows]
    height = panels.ROW_IN * (len(rows) + len({model for model, _ in names})) + 0.75
    made = style.figure(width_in, height)
    axes = made.subplots(1, len(columns), squeeze=False)[0]
    known = set()
    for place, (own, (title, kinds)) in enumerate(zip(axes, columns.items(), strict=True)):
        places = panels.model_rows(own, names, _LONGEST[width_in])
        bars = [{kind: row[column] or 0.0 for kind, column in kinds.items()} for row in rows]
        used = {kind for bar in bars for kind, value in bar.items() if value}
        panels.stack(own, bars, {k: c for k, c in _COLOURS.items() if k in used}, _HATCHES, places)
        known |= used
        if place:
            own.tick_params(labelleft=False)
        own.set_xlim(0, 1.02 * max(100.0, own.dataLim.xmax))
        own.grid(axis="x")
        own.set_xlabel(title)
    handles = {label: handle for own in axes for handle, label in zip(*own.get_legend_handles_labels(), strict=True)}
    made.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=8 if width_in > style.ONE_COLUMN_IN else 3
    )
    if everything.height > len(rows):
        axes[0].set_title(f"The {len(rows)} that idle most of {everything.height}", loc="left")
    return made


def has_calls(found: pl.DataFrame) -> bool:
    """Whether a row of `shares` has more than its parts."""
    return found["api launches"].null_count() < found.height


def note(_points: pl.DataFrame, tables: dataset.Tables) -> str:
    """What the second and the third panel show, where there are any."""
    said = (
        "Beside the parts all CUDA API calls and all work of the GPU, which overlap: a call that waits is as long as "
        "what it waits for. Points traced by Kineto have the parts alone."
    )
    return said if has_calls(shares(tables)) else ""


FAMILY = Family(
    "Where a step's time goes",
    "Parts of a step of the traced run, in % of the step, those of a model that idle most first.",
    "No point has a trace, so there are no parts of its steps.",
    traced_points,
    paint,
    numbers=lambda _points, tables: shares(tables),
    labelled=traced_points,
    reading=(
        "Means over ranks, traced steps and repeats. A profiler ran, so lengths are not those of the timed run. The "
        "parts add up to the step."
    ),
    note=note,
)
