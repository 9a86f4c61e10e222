"""Where the time went in which GPUs were held, of the whole sweep and by kind of point."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from nightsweep.analysis.figures import panels, style
from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.sweep import dataset, held_time
from nightsweep.analysis.sweep.labels import hours, plural


def shares(tables: dataset.Tables) -> pl.DataFrame:
    """kind (first all together), points, use, gpu_s and its share of the GPU time of the kind."""
    by_use = held_time.by_use(tables).select("use", "gpu_s")
    points = held_time.held(tables)["point_id"].n_unique()
    whole = by_use.select(kind=pl.lit("all"), points=pl.lit(points, pl.UInt32), use="use", gpu_s="gpu_s")
    found = pl.concat([whole, held_time.by_kind(tables).select(whole.columns)], how="vertical_relaxed")
    return found.with_columns(share=pl.col("gpu_s") / pl.col("gpu_s").sum().over("kind"))


def _label(bar: pl.DataFrame, unit: str, between: str) -> str:
    points = plural(int(bar["points"][0]), "point")
    return f"{bar['kind'][0]}: {points}{between}{hours(float(bar['gpu_s'].sum()))} {unit}-hours"


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    """A bar for the whole sweep and one a kind of point."""
    found = shares(tables)
    if found.is_empty():
        return style.says(FAMILY.missing)
    unit = "GPU" if (tables["points"]["device_used"] == "cuda").any() else "rank"
    bars = found.partition_by("kind", maintain_order=True)
    wide = width_in > style.ONE_COLUMN_IN
    made = style.figure(width_in, (0.75 if wide else 0.95) + (0.2 if wide else 0.27) * len(bars))
    axes = made.subplots()
    known = set(found["use"])
    colours = {use: colour for use, colour in style.USE_COLOURS.items() if use in known}
    percents = [dict(zip(bar["use"], bar["share"] * 100, strict=True)) for bar in bars]
    panels.stack(axes, percents, colours, style.USE_HATCHES)
    axes.set_yticks(range(len(bars)), [_label(bar, unit, ", " if wide else ",\n") for bar in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.grid(axis="x")
    axes.set_xlabel(f"Share of the held {unit} time (%)")
    made.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=9 if wide else 5)
    return made


FAMILY = Family(
    "Where the held time went",
    "Time for which GPUs were held (on CPUs: ranks), by what it was for, over all points and attempts; the parts "
    "add up to it.",
    "Of no point it is known where its time went.",
    lambda tables: tables["points"].join(held_time.held(tables), on="point_id", how="semi"),
    paint,
    numbers=lambda _points, tables: shares(tables),
    remedied=True,
    reading="Points that failed: how far they came; in the bar of all points their time is `failed`.",
)
