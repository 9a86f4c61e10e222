"""Efficiency over ranks, of points that differ in nothing else, and which parts of the step what is lost goes to. Weak
scaling: micro_batch is the batch of each rank."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nightsweep.analysis.figures import panels, style
from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.sweep import dataset, nights, short_labels, step_parts
from nightsweep.analysis.tables.part_names import GROUPS
from nightsweep.jobs.point.strategies import SCALING

MOST, MOST_LOST = 48, 24
_LONGEST = {style.ONE_COLUMN_IN: 37, style.TWO_COLUMNS_IN: 56}
"""Characters of a label, by the width of the figure."""

GROUP = ["workload", "config_order", "config", "strategy", "precision"]
SHAPE = ["world", *dataset.SHAPE]
ASIDE = (*dataset.ASIDE, *dataset.SHAPE)
SHARING = (
    "strategy",
    "ddp_bucket_mb",
    "ddp_bucket_view",
    "ddp_static_graph",
    "comm_hook",
    "local_steps",
    "replicas",
    "reduce_dtype",
    "reshard_after_forward",
    "prefetch_layers",
    "zero_communication",
    "zero_messages",
    "zero_bucket_millions",
    "nccl_transport",
    "nccl_algo",
    "nccl_proto",
    "nccl_ctas",
)
"""Settings of how ranks share the work. A rank that is alone shares with nobody: to a group that did not run on one,
any point on one rank that is alike in all other settings is its base."""


@functools.lru_cache(maxsize=1)  # the figure, its numbers and its labels ask for them
def scaling_points(tables: dataset.Tables) -> pl.DataFrame:
    """The points of nights in which their group ran on several numbers of ranks (`world`) or of nodes (`shape` tells
    both), the fewest of them among these. One that is the base of several groups is there for each."""
    ranks = pl.coalesce("world_size", pl.col("nodes") * pl.col("ranks_per_node"))
    points = dataset.ok_points(tables, ASIDE).filter(pl.col("samples_per_s") > 0)
    points = dataset.undisturbed(points)
    points = points.with_columns(world=ranks, shape=pl.format("{} x {}", *dataset.SHAPE))
    both = pl.concat([points, _alone(points)])
    shared = nights.select_shared_nights(nights.add_nights(both, tables["points"]), GROUP)
    fewest = shared.with_columns(base=pl.col("shape").sort_by(*SHAPE).first().over(GROUP))
    return fewest.filter((pl.col("shape") == pl.col("base")).any().over(*GROUP, "night"))


def _alone(points: pl.DataFrame) -> pl.DataFrame:
    """Points on one rank, as those of groups that did not run on one."""
    alike = [name for name in dataset.SETTINGS if name not in (*dataset.ASIDE, *dataset.SHAPE, *SHARING)]
    own = [name for name in GROUP if name not in alike]
    lacking = (
        points.filter(pl.col("strategy").is_in(SCALING), pl.col("world").min().over(GROUP) > 1)
        .unique(GROUP, maintain_order=True)
        .select(*alike, *own)
    )
    alone = points.filter(pl.col("world") == 1).drop(own)
    return lacking.join(alone, on=alike, nulls_equal=True, maintain_order="left_right").select(points.columns)


def speed_ups(tables: dataset.Tables) -> pl.DataFrame:
    """Per group and shape: speed-up of samples/s over the group's fewest ranks in the same nights (median_up, least_up,
    most_up), what would be ideal, efficiency (1 is ideal), and n, the runs.

    Where the fewest ranks come in two shapes (1 x 2, 2 x 1), the one on fewer nodes is the base.
    """
    points = scaling_points(tables)
    bases = points.sort(*SHAPE).group_by(GROUP, maintain_order=True).agg(pl.col(SHAPE).first())
    found = nights.ratios(points, "samples_per_s", GROUP, SHAPE, bases)
    names = {"ratio": "median_up", "least": "least_up", "most": "most_up"}
    return (
        found.rename(names)
        .with_columns(ideal=pl.col("world") / pl.col("world").min().over(GROUP))
        .with_columns(efficiency=pl.col("median_up") / pl.col("ideal"))
    )


def losses(tables: dataset.Tables) -> pl.DataFrame:
    """Per group, numbers of ranks and nodes, and part: by how much of the step on the fewest ranks the part is longer
    than there (`share`; shorter: below 0), mean over ranks, in the traced runs of the same nights; `n`, the points on
    so many."""
    parts = list(GROUPS)
    means = step_parts.mean_parts(tables)
    traced = nights.select_shared_nights(scaling_points(tables).join(means, on="point_id"), GROUP)
    cells = (
        traced.sort("point_id")
        .group_by(*GROUP, "night", "world", "nodes", maintain_order=True)
        .agg(pl.col(*parts).mean(), n=pl.len())
    )
    cells = cells.sort("night", "world", "nodes")
    base = cells.unique([*GROUP, "night"], keep="first", maintain_order=True)
    pairs = cells.join(base, on=[*GROUP, "night"], suffix="_base", nulls_equal=True)
    pairs = pairs.filter((pl.col("world") > pl.col("world_base")) | (pl.col("nodes") > pl.col("nodes_base")))
    whole = pl.sum_horizontal(f"{part}_base" for part in parts)
    shares = pairs.with_columns((pl.col(part) - pl.col(f"{part}_base")) / whole for part in parts)
    own = (
        shares.sort("night")
        .group_by(*GROUP, "world", "nodes", maintain_order=True)
        .agg(pl.col(*parts).mean(), pl.col("n").sum())
    )
    return own.unpivot(parts, index=[*GROUP, "world", "nodes", "n"], variable_name="part", value_name="share").sort(
        *GROUP, "world", "nodes", "part"
    )


def group_points(tables: dataset.Tables) -> pl.DataFrame:
    """A point of each group that is not its base, and so has its settings."""
    points = scaling_points(tables)
    return points.filter(pl.col("world") == pl.col("world").max().over(GROUP)).unique(GROUP, maintain_order=True)


def group_labels(tables: dataset.Tables) -> dict[tuple[str, int], tuple[str, str]]:
    """Of each group, its model and label, by workload and order."""
    labelled = short_labels.add_labels(group_points(tables), ASIDE, always="strategy")
    names = labelled.select("workload", "config_order", pl.coalesce("model", "workload").alias("model"), "label")
    return {(workload, order): (model, label) for workload, order, model, label in names.iter_rows()}


def _efficiency(axes: Axes, groups: list[pl.DataFrame], names: list[tuple[str, str]], longest: int) -> None:
    drawn = [group.slice(1) for group in groups]  # all but the base
    kinds = sorted({kind for group in drawn for kind in group.select("world", "nodes").iter_rows()})
    markers = dict(zip(kinds, itertools.cycle(style.MARKERS)))
    axes.axvline(100, color=style.BLACK, linewidth=0.6, zorder=0)
    for y, group, rows in zip(panels.model_rows(axes, names, longest), groups, drawn, strict=True):
        shapes = rows.to_dicts()
        for place, row in zip(np.linspace(-0.3, 0.3, len(shapes) + 2)[1:-1], shapes, strict=True):
            ends = [row[name] / row["ideal"] * 100 for name in ("least_up", "most_up")]
            axes.hlines(y + place, *ends, color=style.BLUE, linewidth=0.8)
            face = style.BLUE if min(row["n"], group["n"][0]) > 1 else "white"
            marker = markers[row["world"], row["nodes"]]
            axes.plot(row["efficiency"] * 100, y + place, marker, color=style.BLUE, markerfacecolor=face)
    axes.grid(axis="x")
    axes.set_xlabel("Efficiency (%)")
    handles = [_marker(_ranks(*kind), marker) for kind, marker in markers.items()]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)


def _ranks(world: int, nodes: int) -> str:
    return f"{world} ranks" + (f", {nodes} nodes" if nodes > 1 else "")


def _marker(label: str, marker: str) -> Line2D:
    return Line2D([], [], color=style.BLUE, marker=marker, linestyle="", label=label)


def _lost(axes: Axes, bars: list[pl.DataFrame], names: list[tuple[str, str]], longest: int) -> None:
    shares = [dict(zip(bar["part"], bar["share"] * 100, strict=True)) for bar in bars]
    told = [
        (model, f"{label}, {_ranks(bar['world'][0], bar['nodes'][0])}")
        for (model, label), bar in zip(names, bars, strict=True)
    ]
    places = panels.model_rows(axes, told, longest)
    panels.stack(axes, shares, style.PART_COLOURS, style.PART_HATCHES, places)
    axes.plot([sum(own.values()) for own in shares], places, "D", color="white", markeredgecolor="black", label="all")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.grid(axis="x")
    axes.set_xlabel("Growth of the step (%)")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    """Efficiency, one row a group; under it what is lost, where there are traces."""
    groups = speed_ups(tables).partition_by("workload", "config_order", maintain_order=True)
    labels = group_labels(tables)
    order = sorted(groups, key=lambda group: (group["workload"][0], *labels[_key(group)]))[:MOST]
    grown = losses(tables).partition_by(*GROUP, "world", "nodes", maintain_order=True)
    lost = grown[:MOST_LOST]
    names = [[labels[_key(bar)] for bar in bars] for bars in (order, lost) if bars]
    names[:1] = [[_over(name, group["world"][0]) for name, group in zip(names[0], order, strict=True)]]
    heights = [panels.ROW_IN * (len(own) + len({model for model, _ in own})) + 0.6 for own in names]
    made = style.figure(width_in, sum(heights) + 0.15)
    axes = made.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    _efficiency(axes[0], order, names[0], _LONGEST[width_in])
    if lost:
        _lost(axes[1], lost, names[1], _LONGEST[width_in])
    for own, shown, found in zip(axes, (order, lost), (groups, grown), strict=False):
        if len(found) > len(shown):
            own.set_title(f"The first {len(shown)} of {len(found)}", loc="left")
    return made


def _over(name: tuple[str, str], fewest: int) -> tuple[str, str]:
    """A row's name, with what its efficiency is relative to where that is not one rank."""
    model, label = name
    return name if fewest == 1 else (model, f"{label}, over {fewest} ranks")


def _key(group: pl.DataFrame) -> tuple[str, int]:
    return group["workload"][0], group["config_order"][0]


def note(points: pl.DataFrame, _tables: dataset.Tables) -> str:
    """What samples under ddp are."""
    said = "Under ddp each rank walks the whole data set, so its samples are not distinct."
    return said if "ddp" in set(points["strategy"]) else ""


FAMILY = Family(
    "Scaling over ranks",
    "Samples per second of a rank, relative to the fewest ranks that ran; hollow: one run a side. Below: by how much "
    "each part of a step grows, in traced points of one night.",
    "No two points differ only in their number of ranks or nodes.",
    lambda tables: scaling_points(tables).unique("point_id", maintain_order=True),
    paint,
    numbers=lambda _points, tables: speed_ups(tables),
    aside=ASIDE,
    labelled=group_points,
    note=note,
    reading=(
        "Weak scaling: micro_batch is per rank, so the work of a step grows with the ranks. Ratios are of "
        "medians of repeats of the same night, over several nights their geometric mean; whiskers run from the "
        "min to the max that two repeats of a night give. A strategy that did not run on one rank is compared with "
        "one that did and is otherwise alike. Parts of a step are means over ranks."
    ),
)
