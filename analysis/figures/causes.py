"""Time that remedies could recover, by kind of cause; beside it what those that were tried saved, against what was
predicted."""

from __future__ import annotations

from typing import Any

import polars as pl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from nightsweep.analysis.diagnosis.thresholds import NOISE
from nightsweep.analysis.figures import style
from nightsweep.analysis.figures.family import Family, with_ids
from nightsweep.analysis.sweep import dataset

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
MARKERS = dict(zip(COLOURS, style.MARKERS, strict=False))


def known_points(tables: dataset.Tables) -> pl.DataFrame:
    """Rows of `diagnoses` of the sweep's own points of which something is known: there is a trace, or a loss that shows
    without one."""
    has_trace = (pl.col("kind") != "missing_trace").all().over("point_id")
    has_loss = (pl.col("share") >= NOISE.value).any().over("point_id")
    return tables.own["diagnoses"].filter(has_trace | has_loss)


def recoverable(tables: dataset.Tables) -> pl.DataFrame:
    """cause, kind, points that have it, and share: the time that its remedy could save, of the GPU time of the timed
    steps of all known points. Time that two causes share may count for both."""
    known = known_points(tables)
    whole = known.unique("point_id")["gpu_s"].sum()
    found = known.filter(pl.col("cause").is_in(list(COLOURS)), pl.col("share") >= NOISE.value)
    sums = found.group_by("cause", "kind").agg(
        points=pl.col("point_id").n_unique(), share=(pl.col("share") * pl.col("gpu_s")).sort().sum() / whole
    )
    return sums.sort("share", "kind", descending=[True, False])


def trials(tables: dataset.Tables) -> pl.DataFrame:
    """Remedies that were tried and measured."""
    return tables["remedies"].filter(pl.col("gain").is_not_null()).sort("point_id")


def _bars(axes: Axes, found: pl.DataFrame, unit: str) -> None:
    for y, row in enumerate(found.to_dicts()):
        look: dict[str, Any] = {"color": COLOURS[row["cause"]], "hatch": HATCHES[row["cause"]]}
        axes.barh(y, row["share"] * 100, height=0.72, edgecolor="#333333", linewidth=0.5, **look)
        axes.text(row["share"] * 100, y, f" {row['points']}", va="center", fontsize=style.SMALLEST_PT)
    axes.set_yticks(range(found.height), [kind.replace("_", " ") for kind in found["kind"]])
    axes.set_ylim(found.height - 0.4, -0.6)
    axes.set_xlim(0, max(found["share"] * 100) * 1.15)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    axes.set_xlabel(f"Recoverable {unit} time (%); number: points")


def _trials(axes: Axes, tried: pl.DataFrame) -> None:
    ends = [0.0, 100.0]
    for row in tried.to_dicts():
        x, y = row["predicted"] * 100, row["gain"] * 100
        colour = COLOURS.get(row["cause"], style.GREY)
        for low, high, across in (
            (row["predicted_low"], row["predicted_high"], axes.hlines),
            (row["gain_low"], row["gain_high"], axes.vlines),
        ):
            if low is not None and high is not None:
                across(y if across == axes.hlines else x, low * 100, high * 100, color=colour, linewidth=0.7)
        marker = MARKERS.get(row["cause"], "o")
        axes.plot(x, y, marker, color=colour, markeredgecolor="black", markersize=4)
        ends += [x, y]
    room = min(ends) - 4, max(ends) + 4
    axes.plot(room, room, color=style.GREY, linestyle=":", linewidth=0.8, zorder=0)
    axes.set(xlim=room, ylim=room, xlabel="Predicted saving (%)", ylabel="Measured saving (%)")
    axes.grid()


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    """Bars, one a kind; at their right, or below, a point a remedy that was tried."""
    found, tried = recoverable(tables), trials(tables)
    if found.is_empty():
        return style.says("Nothing that takes time was found in the points with a diagnosis.")
    wide, beside = width_in > style.ONE_COLUMN_IN, tried.height > 0
    bars_in = 0.14 * found.height + 0.5
    if wide:
        made = style.figure(width_in, max(bars_in, 2.2 if beside else 0) + 0.3)
        axes = made.subplots(1, 1 + beside, squeeze=False, width_ratios=[1.5, 1][: 1 + beside])[0]
    else:
        heights = [bars_in, 2.2][: 1 + beside]
        made = style.figure(width_in, sum(heights) + 0.45)
        axes = made.subplots(1 + beside, 1, squeeze=False, height_ratios=heights)[:, 0]
    _bars(axes[0], found, "GPU" if (tables["points"]["device_used"] == "cuda").any() else "rank")
    if beside:
        _trials(axes[1], tried)
    used = [cause for cause in COLOURS if cause in {*found["cause"], *tried["cause"]}]
    handles: Any = [_handles(cause, marked=beside) for cause in used]  # tuples, which its stubs do not know
    made.legend(
        handles,
        [cause.replace("_", " ") for cause in used],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.4)},
        handlelength=3 if beside else 1.6,
        loc="outside upper center",
        ncols=5 if wide else 2,
    )
    return made


def _handles(cause: str, marked: bool) -> tuple[Artist, ...]:
    """How a bar of the cause looks, and a point."""
    bar = Patch(facecolor=COLOURS[cause], hatch=HATCHES[cause], edgecolor="#333333")
    look: dict[str, Any] = {"color": COLOURS[cause], "markeredgecolor": "black", "markersize": 4, "linestyle": ""}
    return (bar, Line2D([], [], marker=MARKERS[cause], **look)) if marked else (bar,)


def numbers(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """What could be recovered, and what was."""
    tried = trials(tables).select("cause", "kind", "point_id", "predicted", "gain", "gain_low", "gain_high")
    return pl.concat([recoverable(tables), tried], how="diagonal_relaxed")


def note(_points: pl.DataFrame, tables: dataset.Tables) -> str:
    """What the second panel shows, where there is one."""
    said = "Points with 95 % intervals: remedies that were tried, where the dotted line is what was predicted."
    return "" if trials(tables).is_empty() else said


FAMILY = Family(
    "What could be recovered",
    "Time of the timed steps that remedies could save, by kind of cause, over all diagnosed points.",
    "Of no point it is known what takes its time.",
    lambda tables: with_ids(tables, known_points(tables)["point_id"]),
    paint,
    numbers=numbers,
    reading=(
        "Of points with a trace, and of those with a loss of time that shows without one. Time that two causes "
        "share may count for both."
    ),
    note=note,
)
