"""What takes the time of a step, by cause: the shares that remedies could gain, over the sweep."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.diagnosis.known_losses import known_points
from analysis.figures import panels, style
from analysis.figures.family import Family, with_ids
from analysis.sweep import dataset

MOST = 40
COLOURS = {
    "insufficient_parallelism": style.BLUE,
    "data_loading": style.GREEN,
    "model_hyperparameters": style.VERMILION,
    "memory_management": style.PURPLE,
    "communication": style.ORANGE,
    "scheduling": style.SKY,
}
"""Of the causes that take time: monitoring takes none."""
HATCHES = dict(zip(COLOURS, ("", "\\\\\\\\", "xxxx", "....", "////", "----"), strict=True))
BAR = ["workload", "config_order", "config"]


def shares(tables: dataset.Tables) -> pl.DataFrame:
    """Per configuration of which something is known, and cause: the sum of the shares of its kinds, mean over `n`
    points; `kind`: the configuration's largest. A time that two causes share may count for both."""
    points = dataset.ok_points(tables).select("point_id", *BAR)
    found = known_points(tables).join(points, on="point_id").filter(pl.col("cause").is_in(list(COLOURS)))
    count = points.filter(pl.col("point_id").is_in(known_points(tables)["point_id"].unique().implode()))
    of_each = found.group_by(*BAR, "cause", "kind").agg(pl.col("share").sum())
    n = count.group_by(BAR).agg(n=pl.len())
    kinds = n.join(of_each, on=BAR, how="left").with_columns(share=pl.col("share").fill_null(0.0) / pl.col("n"))
    largest = kinds.sort("share", "kind", descending=[True, False]).group_by(BAR, maintain_order=True).first()
    summed = kinds.group_by(*BAR, "n", "cause").agg(pl.col("share").sum())
    return summed.join(largest.select(*BAR, "kind"), on=BAR).sort(*BAR, "cause")


def _panel(axes: Axes, workload: str, bars: list[pl.DataFrame], count: int) -> None:
    found = [dict(zip(bar["cause"], bar["share"] * 100, strict=True)) for bar in bars]
    ends = panels.stack(axes, found, COLOURS, HATCHES)
    for y, (bar, end) in enumerate(zip(bars, ends, strict=True)):
        axes.text(end + 1, y, bar["kind"][0] or "", va="center", fontsize=6)
    axes.set_yticks(range(len(bars)), [f"{panels.brief(bar['config'][0])}, n = {bar['n'][0]}" for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 135)  # room for a word beside the longest bar
    axes.set_xticks(range(0, 101, 20))
    axes.grid(axis="x")
    axes.set_xlabel("Predicted saving (% of a step)")
    more = f" (the {len(bars)} that lose most of {count})" if count > len(bars) else ""
    axes.set_title(f"{workload}{more}", loc="left")


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """Stacked bars, one a configuration, those that lose most first; one panel a workload."""
    found = shares(tables)
    lost = pl.col("share").sum().over(BAR)
    ordered = found.with_columns(lost=lost).sort(
        "workload", "lost", "config_order", "cause", descending=[False, True, False, False]
    )
    workloads = [
        (workload, part.partition_by("config_order", maintain_order=True))
        for workload, part in dataset.per_workload(ordered)
    ]
    return panels.stacked_figure(workloads, MOST, _panel, 3)


FAMILY = Family(
    "What a step could do without",
    "Share of a step that the diagnosis finds avoidable, by cause, mean over repeats; the word at a bar's end "
    "names the kind with the largest share.",
    "Of no point it is known what takes its time.",
    lambda tables: with_ids(tables, known_points(tables)["point_id"]),
    paint,
    numbers=lambda _points, tables: shares(tables),
    reading=(
        "Of points with a trace, and of those with a loss of time that shows without one. Time that two causes "
        "share may count for both."
    ),
)
