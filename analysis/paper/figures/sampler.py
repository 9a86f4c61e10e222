"""A scheme of how an epoch is shared: DDP with DistributedSampler, and DDP without."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from nightsweep.analysis.figures import palette, style
from nightsweep.analysis.paper.figures.family import family
from nightsweep.analysis.sweep import dataset

SAMPLES = 16
MOST_RANKS = 8


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points under ddp_ds of the largest number of ranks, no more than can be drawn."""
    world = pl.col("world_size")
    points = tables["points"].filter(
        pl.col("status") == "ok", pl.col("strategy") == "ddp_ds", world.is_between(2, MOST_RANKS)
    )
    return points.filter(world == world.max()).sort("point_id")


def shares(ranks: int, sampler: bool) -> list[list[int]]:
    """Sample numbers of each rank. DistributedSampler deals them out in turn; without it each rank walks all."""
    return [list(range(rank, SAMPLES, ranks)) if sampler else list(range(SAMPLES)) for rank in range(ranks)]


def _panel(axes: Axes, ranks: int, sampler: bool) -> None:
    for rank, own in enumerate(shares(ranks, sampler)):
        for place, number in enumerate(own):
            colour, hatch = palette.fill_style("rank", number % ranks, list(range(ranks)))
            look: dict[str, Any] = {"facecolor": (colour, 0.35), "edgecolor": colour, "linewidth": 0.6, "hatch": hatch}
            axes.add_patch(Rectangle((place + 0.05, rank + 0.1), 0.9, 0.8, **look))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            axes.text(place + 0.5, rank + 0.5, str(number), ha="center", va="center", fontsize=6, bbox=box)
    axes.set_xlim(0, SAMPLES)
    axes.set_ylim(ranks, 0)
    axes.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    name = "with DistributedSampler (ddp_ds)" if sampler else "without (ddp)"
    axes.set_title(f"{name}: {len(shares(ranks, sampler)[0])} steps an epoch", loc="left")


def paint(points: pl.DataFrame, _tables: dataset.Tables, width_in: float) -> Figure:
    ranks = int(points["world_size"][0])
    made = style.figure(width_in, 2 * (0.26 * ranks + 0.35) + 0.2)
    for axes, sampler in zip(made.subplots(2, 1), (True, False), strict=True):
        _panel(axes, ranks, sampler)
    made.supxlabel("Order of samples in an epoch", fontsize=8)
    return made


def scheme(points: pl.DataFrame, _tables: dataset.Tables) -> pl.DataFrame:
    """Whose samples are whose, with and without the sampler."""
    ranks = int(points["world_size"][0])
    rows = [
        {"with_sampler": with_sampler, "rank": rank, "place": place, "sample": sample}
        for with_sampler in (True, False)
        for rank, own in enumerate(shares(ranks, with_sampler))
        for place, sample in enumerate(own)
    ]
    return pl.DataFrame(rows)


FAMILY = family(
    "Sharing an epoch",
    f"Scheme, not measured: {SAMPLES} samples in order, one per step, over the ranks of the points named below. "
    "Shades show whose sample each is with the sampler; without it every rank trains on all.",
    "No point ran under ddp_ds on 2 to 8 ranks.",
    select_points,
    paint,
    scheme,
    place="supplement",
)
