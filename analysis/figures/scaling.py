"""Speed-up over ranks, for points that differ in nothing else. Weak scaling: micro_batch is the batch of each rank."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import nights
from analysis.figures import data, panels, style

MOST = 16


GROUP = ["workload", "config_order", "config", "strategy", "precision"]
SHAPE = ["world", *data.SHAPE]


def compared(tables: data.Tables) -> pl.DataFrame:
    """The points of nights in which their group ran on several numbers of ranks (`world`)."""
    points = data.ok_points(tables, (*data.ASIDE, *data.SHAPE)).filter(pl.col("samples_per_s") > 0)
    ranks = pl.coalesce("world_size", pl.col("nodes") * pl.col("ranks_per_node"))
    return nights.shared(nights.numbered(points, tables["points"]).with_columns(world=ranks), GROUP, "world")


def speed_ups(tables: data.Tables) -> pl.DataFrame:
    """Per group and shape: speed-up of samples/s over the group's fewest ranks in the same nights (median_up, least_up,
    most_up), what would be ideal, efficiency (1 is ideal), and n, the runs.

    Where the fewest ranks come in two shapes (1 x 2, 2 x 1), the one on fewer nodes is the base.
    """
    points = compared(tables)
    bases = points.sort(*SHAPE).group_by(GROUP, maintain_order=True).agg(pl.col(SHAPE).first())
    found = nights.relative(points, "samples_per_s", GROUP, SHAPE, bases)
    names = {"ratio": "median_up", "least": "least_up", "most": "most_up"}
    return (
        found.rename(names)
        .with_columns(ideal=pl.col("world") / pl.col("world").min().over(GROUP))
        .with_columns(efficiency=pl.col("median_up") / pl.col("ideal"))
    )


def _speed(axes: Axes, groups: list[pl.DataFrame], looks: list[dict[str, Any]]) -> None:
    for group, look in zip(groups, looks, strict=True):
        world, up = group["world"].to_numpy(), group["median_up"].to_numpy()
        around = [up - group["least_up"].to_numpy(), group["most_up"].to_numpy() - up]
        axes.errorbar(world, up, yerr=around, capsize=2, elinewidth=0.8, **look)
        axes.plot(world, group["ideal"], color=style.GREY, linestyle=":", linewidth=1, zorder=0)
    axes.set_ylabel("Speed-up of samples/s")
    style.from_zero(axes)


def _efficiency(axes: Axes, groups: list[pl.DataFrame], looks: list[dict[str, Any]]) -> None:
    for group, look in zip(groups, looks, strict=True):
        axes.plot(group["world"], group["efficiency"] * 100, **look)
    axes.axhline(100, color=style.GREY, linestyle=":", linewidth=1, zorder=0)
    axes.set_ylabel("Efficiency (%)")
    style.from_zero(axes)


def _ranks(axes: Axes, shapes: pl.DataFrame) -> None:
    worlds = shapes["world"].unique().sort().to_list()
    axes.set_xscale("log", base=2)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.minorticks_off()
    axes.set_xlim(worlds[0] / 1.2, worlds[-1] * 1.2)
    axes.set_xlabel("Ranks")
    axes.grid()


@style.styled
def draw(tables: data.Tables) -> Figure:
    """Speed-up beside efficiency, one line a group."""
    shapes = speed_ups(tables)
    if shapes.is_empty():
        return style.says("No two points differ only in their number of ranks.")
    groups = shapes.partition_by("workload", "config_order", maintain_order=True)
    more = f", the first {MOST} of {len(groups)} groups" if len(groups) > MOST else ""
    groups = groups[:MOST]
    looks = [panels.look(index, group, shapes) for index, group in enumerate(groups)]
    made = style.figure(height_in=2.7 + 0.16 * len(groups))
    left, right = made.subplots(1, 2)
    _speed(left, groups, looks)
    _efficiency(right, groups, looks)
    for axes in (left, right):
        _ranks(axes, pl.concat(groups))
    names = [f"{group['workload'][0]}: {panels.brief(group['config'][0])}, n = {_counts(group)}" for group in groups]
    handles = [style.handle(name, look) for name, look in zip(names, looks, strict=True)]
    ideal = left.plot([], [], color=style.GREY, linestyle=":", linewidth=1, label="ideal")
    made.legend(handles=[*handles, *ideal], loc="outside lower center", ncols=1)
    made.suptitle(f"Weak scaling (each rank keeps its micro_batch){more}", fontsize=8)
    return made


def _counts(group: pl.DataFrame) -> str:
    least, most = min(group["n"]), max(group["n"])
    return f"{least}" if least == most else f"{least} to {most}"
