"""Speed-up over GPUs for each image size."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis import blocks
from analysis.figures import data, palette, style
from analysis.figures.paper.family import Family, measured

_BY = ["image_size", "world_size"]


def shown(tables: data.Tables) -> pl.DataFrame:
    """Image points that differ in GPUs and size alone, of sizes that ran on several counts of GPUs."""
    points = blocks.widest(measured(tables, "image"), "ranks_per_node", ("image_size", "nodes"))[0]
    return points.filter(pl.col("world_size").n_unique().over("image_size") > 1)


def speed_ups(points: pl.DataFrame) -> pl.DataFrame:
    """image_size, world_size, up, least, most: samples/s over the median of the fewest GPUs of that size."""
    rate = pl.col("samples_per_s")
    cells = points.group_by(_BY).agg(up=rate.median(), least=rate.min(), most=rate.max()).sort(_BY)
    base = pl.col("up").first().over("image_size")
    return cells.with_columns(pl.col(name) / base for name in ("up", "least", "most"))


def paint(points: pl.DataFrame, _tables: data.Tables, width_in: float) -> Figure:
    frame = speed_ups(points)
    sizes, worlds = blocks.levels(frame, "image_size"), blocks.levels(frame, "world_size")
    made = style.figure(width_in, 2.8)
    axes = made.subplots()
    ideal = [world / worlds[0] for world in worlds]
    axes.plot(worlds, ideal, color=style.GREY, linestyle=":", linewidth=1, label="ideal")
    for index, size in enumerate(sizes):
        own = frame.filter(pl.col("image_size") == size)
        up = own["up"].to_numpy()
        around = [up - own["least"].to_numpy(), own["most"].to_numpy() - up]
        line = style.line(index, palette.look("image_size", size, sizes)[0])
        axes.errorbar(own["world_size"], up, yerr=around, capsize=2, elinewidth=0.8, label=f"{size} px", **line)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.set_xlabel("GPUs")
    axes.set_ylabel("Speed-up of images/s")
    style.from_zero(axes)
    axes.grid()
    axes.legend(loc="upper left")
    return made


FAMILY = Family(
    "Scaling by image size",
    "Images per second over GPUs, against the fewest. Weak scaling: each GPU keeps its micro_batch. Lines join medians "
    "of repeats, whiskers run from the least to the most repeat over the median of the base.",
    "No two image points differ in their number of GPUs alone.",
    shown,
    paint,
)
