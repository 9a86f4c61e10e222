"""Efficiency over ranks, of points that differ in nothing else, and which parts of the step what is lost goes to. Weak
scaling: micro_batch is the batch of each rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import breakdown, panels, style
from analysis.figures.family import Family
from analysis.sweep import dataset, nights
from analysis.tables.part_names import GROUPS
from jobs.point.strategies import SCALING

MOST, MOST_LOST = 32, 12

GROUP = ["workload", "config_order", "config", "strategy", "precision"]
SHAPE = ["world", *dataset.SHAPE]
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
)
"""Settings of how ranks share the work. A rank that is alone shares with nobody: to a group that did not run on one,
any point on one rank that is alike in all other settings is its base."""


def scaling_points(tables: dataset.Tables) -> pl.DataFrame:
    """The points of nights in which their group ran on several numbers of ranks (`world`) or of nodes (`shape` tells
    both). One that is the base of several groups is there for each."""
    ranks = pl.coalesce("world_size", pl.col("nodes") * pl.col("ranks_per_node"))
    points = dataset.ok_points(tables, (*dataset.ASIDE, *dataset.SHAPE)).filter(pl.col("samples_per_s") > 0)
    points = dataset.undisturbed(points)
    points = points.with_columns(world=ranks, shape=pl.format("{} x {}", *dataset.SHAPE))
    both = pl.concat([points, _alone(points)])
    return nights.select_shared_nights(nights.add_nights(both, tables["points"]), GROUP, "shape")


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
    bars = breakdown.mean_parts(tables, by="point_id").pivot("part", index=["point_id", "rank"], values="mean_ms")
    parts = list(GROUPS)
    bars = bars.with_columns(pl.lit(0.0).alias(part) for part in parts if part not in bars.columns)
    means = bars.group_by("point_id").agg(pl.col(part).fill_null(0).mean() for part in parts)
    traced = nights.select_shared_nights(scaling_points(tables).join(means, on="point_id"), GROUP, "shape")
    cells = traced.group_by(*GROUP, "night", "world", "nodes").agg(pl.col(*parts).mean(), n=pl.len())
    cells = cells.sort("night", "world", "nodes")
    base = cells.unique([*GROUP, "night"], keep="first", maintain_order=True)
    pairs = cells.join(base, on=[*GROUP, "night"], suffix="_base", nulls_equal=True)
    pairs = pairs.filter((pl.col("world") > pl.col("world_base")) | (pl.col("nodes") > pl.col("nodes_base")))
    whole = pl.sum_horizontal(f"{part}_base" for part in parts)
    shares = pairs.with_columns((pl.col(part) - pl.col(f"{part}_base")) / whole for part in parts)
    own = shares.group_by(*GROUP, "world", "nodes").agg(pl.col(*parts).mean(), pl.col("n").sum())
    return own.unpivot(parts, index=[*GROUP, "world", "nodes", "n"], variable_name="part", value_name="share").sort(
        *GROUP, "world", "nodes", "part"
    )


def _efficiency(axes: Axes, groups: list[pl.DataFrame], looks: list[dict[str, Any]]) -> None:
    drawn = [group.slice(1) for group in groups]  # all but the base
    kinds = sorted({kind for group in drawn for kind in group.select("world", "nodes").iter_rows()})
    markers = dict(zip(kinds, itertools.cycle(style.MARKERS)))
    axes.axvline(100, color=style.GREY, linestyle=":", linewidth=1, zorder=0)
    for y, (group, look) in enumerate(zip(drawn, looks, strict=True)):
        shapes = group.to_dicts()
        for place, row in zip(np.linspace(-0.2, 0.2, len(shapes) + 2)[1:-1], shapes, strict=True):
            ends = [row[name] / row["ideal"] * 100 for name in ("least_up", "most_up")]
            axes.hlines(y + place, *ends, color="black", linewidth=0.8)
            dot = {"color": look["color"], "markeredgecolor": "black", "markeredgewidth": 0.4}
            axes.plot(row["efficiency"] * 100, y + place, markers[row["world"], row["nodes"]], **dot)
    _rows(axes, [f"{panels.brief(group['config'][0])}, n = {_counts(group)}" for group in groups])
    axes.set_xlabel("Efficiency (%): samples/s a rank, over those on the fewest ranks")
    axes.legend(handles=[_marker(_ranks(*kind), marker) for kind, marker in markers.items()], **_BESIDE)


def _ranks(world: int, nodes: int) -> str:
    return f"{world} ranks" + (f", {nodes} nodes" if nodes > 1 else "")


_BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}


def _marker(label: str, marker: str) -> Line2D:
    return Line2D([], [], color=style.GREY, marker=marker, linestyle="", markeredgecolor="black", label=label)


def _rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid()


def _lost(axes: Axes, bars: list[pl.DataFrame]) -> None:
    for y, bar in enumerate(bars):
        shares = dict(zip(bar["part"], bar["share"] * 100, strict=True))
        ends = {True: 0.0, False: 0.0}
        for part in GROUPS:
            share = shares.get(part, 0.0)
            look: dict[str, Any] = {
                "color": style.PART_COLOURS[part],
                "hatch": style.PART_HATCHES[part],
                "edgecolor": "#333333",
            }
            name = None if y else part.replace("_", " ")
            axes.barh(y, share, left=ends[share > 0], height=0.72, linewidth=0.4, label=name, **look)
            ends[share > 0] += share
        axes.plot(sum(shares.values()), y, "D", color="white", markeredgecolor="black", label=None if y else "all")
    axes.axvline(0, color="black", linewidth=0.8)
    _rows(
        axes, [f"{panels.brief(b['config'][0])}, {_ranks(b['world'][0], b['nodes'][0])}, n = {b['n'][0]}" for b in bars]
    )
    axes.set_xlabel("Longer than the step on the fewest ranks by (% of it), traced run")
    axes.legend(**_BESIDE)


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """Efficiency, one row a group; under it what is lost, where there are traces."""
    shapes = speed_ups(tables)
    groups = shapes.partition_by("workload", "config_order", maintain_order=True)
    more = f", the first {MOST} of {len(groups)} groups" if len(groups) > MOST else ""
    groups = groups[:MOST]
    looks = [panels.line_style(index, group, shapes) for index, group in enumerate(groups)]
    lost = losses(tables).partition_by(*GROUP, "world", "nodes", maintain_order=True)[:MOST_LOST]
    heights = [0.17 * len(groups) + 0.75, 0.17 * max(len(lost), len(GROUPS)) + 0.75][: 1 + bool(lost)]
    made = style.figure(height_in=sum(heights) + 0.3)
    axes = made.subplots(len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    _efficiency(axes[0], groups, looks)
    if lost:
        _lost(axes[1], lost)
    made.suptitle(f"Weak scaling (each rank keeps its micro_batch){more}", fontsize=8)
    return made


def _counts(group: pl.DataFrame) -> str:
    least, most = min(group["n"]), max(group["n"])
    return f"{least}" if least == most else f"{least} to {most}"


def note(points: pl.DataFrame) -> str:
    """What samples under ddp are."""
    said = "Under ddp each rank walks the whole data set, so its samples are not distinct."
    return said if "ddp" in set(points["strategy"]) else ""


FAMILY = Family(
    "Scaling over ranks",
    "Samples per second of a rank, relative to the fewest ranks that ran. Below: by how much each part of a step "
    "grows with the ranks, in traced points of one night.",
    "No two points differ only in their number of ranks or nodes.",
    lambda tables: scaling_points(tables).unique("point_id", maintain_order=True),
    paint,
    numbers=lambda _points, tables: speed_ups(tables),
    note=note,
    reading=(
        "Weak scaling: micro_batch is per rank, so the work of a step grows with the ranks. Ratios are of "
        "medians of repeats of the same night, over several nights their geometric mean; whiskers run from the "
        "min to the max that two repeats of a night give. Colours tell strategies or precisions apart. A "
        "strategy that did not run on one rank is compared with one that did and is otherwise alike. Parts of a "
        "step are means over ranks."
    ),
)
