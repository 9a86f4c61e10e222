"""Speed-up over GPUs for each image size."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from analysis.figures import palette, style
from analysis.paper.figures.family import family, measured_points
from analysis.sweep import blocks, dataset, nights


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Image points that differ in GPUs and size alone, of nights in which that size ran on several counts of GPUs."""
    points = blocks.widest_block(measured_points(tables, "image"), "ranks_per_node", ("image_size", "nodes"))[0]
    return nights.select_shared_nights(points, ["image_size"], "world_size")


def speed_ups(points: pl.DataFrame) -> pl.DataFrame:
    """image_size, world_size, up, least, most: samples/s over those of the fewest GPUs of that size and night."""
    bases = points.group_by("image_size").agg(pl.col("world_size").min())
    found = nights.ratios(points, "samples_per_s", ["image_size"], ["world_size"], bases)
    return found.select("image_size", "world_size", "least", "most", up="ratio")


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
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
        line = style.line(index, palette.fill_style("image_size", size, sizes)[0])
        axes.errorbar(own["world_size"], up, yerr=around, capsize=2, elinewidth=0.8, label=f"{size} px", **line)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    axes.set_xlabel("GPUs")
    axes.set_ylabel("Speed-up of images/s")
    style.from_zero(axes)
    axes.grid()
    axes.legend(loc="upper left")
    return made


FAMILY = family(
    "Scaling by image size",
    "Images per second relative to the fewest GPUs. Weak scaling: each GPU keeps its micro_batch.",
    "No two image points of a night differ in their number of GPUs alone.",
    select_points,
    paint,
    reading=(
        "Lines join ratios of medians of repeats of the same night, over several nights their geometric mean; "
        "whiskers run from the min to the max that two repeats of a night give."
    ),
)
