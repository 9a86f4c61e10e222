"""Loss over steps, mean over ranks and repeats, one line a configuration; the band is from least to most repeat."""

from __future__ import annotations

import math

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nightsweep.analysis.figures import panels, style
from nightsweep.analysis.figures.family import Family, with_ids
from nightsweep.analysis.sweep import dataset

MOST = 12
BESIDE = 48
"""Characters of a label that has room beside the curves."""
LONGEST = 64
"""And of any."""


def curves(tables: dataset.Tables) -> pl.DataFrame:
    """Per workload, configuration and step: the mean, least and most over repeats of the mean over ranks; NaN where the
    loss of a rank is not finite."""
    line = ["workload", "config_order", "config", "step"]
    points = dataset.ok_points(tables).select("point_id", *line[:-1])
    return (
        tables.scan("steps")
        .filter(pl.col("loss").is_not_null())
        .join(points.lazy(), on="point_id")
        .group_by(*line, "point_id")
        .agg(pl.col("loss").mean())
        .group_by(line)
        .agg(mean=pl.col("loss").mean(), least=pl.col("loss").min(), most=pl.col("loss").max(), n=pl.len())
        .with_columns(pl.when(pl.col("mean").is_finite()).then(pl.col("mean", "least", "most")).otherwise(math.nan))
        .sort(line)
        .collect()
    )


def _panel(axes: Axes, workload: str, frame: pl.DataFrame, beside: bool) -> None:
    shown, more = dataset.leading(frame, MOST)
    for index, curve in enumerate(shown.partition_by("config_order", maintain_order=True)):
        look = style.line(index)
        name = f"{panels.cut(curve['config'][0], LONGEST)}, n = {max(curve['n'])}"
        label = f" {name}" if name.startswith("_") else name  # which matplotlib leaves out of its legends
        every = max(1, curve.height // 8)
        axes.plot(curve["step"], curve["mean"], label=label, markevery=(index % every, every), **look)
        axes.fill_between(curve["step"], curve["least"], curve["most"], color=look["color"], alpha=0.15, linewidth=0)
    axes.set_ylabel("Loss")
    axes.set_xlabel("Optimizer step (warm-up included)")
    axes.grid()
    axes.set_title(f"{workload}{more}", loc="left")
    if beside:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=1)


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """Lines of loss, one row a workload."""
    frame = curves(tables)
    parts = dataset.per_workload(frame)
    # Legends stand beside the curves where that leaves them most of the page, else below them.
    beside = max(max(map(len, dataset.leading(part, MOST)[0]["config"])) for _, part in parts) < BESIDE
    made = style.figure(height_in=(2.6 if beside else 4.2) * len(parts))
    rows = made.subplots(len(parts), 1, squeeze=False)[:, 0]
    for axes, (workload, part) in zip(rows, parts, strict=True):
        _panel(axes, workload, part, beside)
    return made


def numbers(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """The lines that there was room for: each has as many numbers as a point has steps."""
    return pl.concat(dataset.leading(part, MOST)[0] for _, part in dataset.per_workload(curves(tables)))


FAMILY = Family(
    "Loss",
    "Loss of each optimizer step, mean over ranks and repeats; bands run from the min to the max of the repeats.",
    "No point has a loss.",
    lambda tables: with_ids(
        tables, tables.scan("steps").filter(pl.col("loss").is_not_null()).select("point_id").collect()["point_id"]
    ),
    paint,
    numbers=numbers,
    place="supplement",
    reading="A line ends where the loss of a rank is not finite.",
)
