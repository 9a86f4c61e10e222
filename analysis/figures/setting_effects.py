"""What each setting changes: time of a sample and peak memory of points that differ in one setting alone, over the most
common value of the setting, model by model."""

from __future__ import annotations

import functools
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from nightsweep.analysis.figures import panels, style
from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.sweep import blocks, dataset, labels, nights, short_labels

MEMORY = "peak_memory_bytes"
TIME = "sample_ms"
QUANTITIES = {TIME: "Time of a sample", MEMORY: "Peak memory"}
OF_THE_RUN = ("warmup_steps", "timed_steps", "epochs", "target_accuracy")
"""Settings of how long a point runs, not of its step."""
ROW = ["workload", "model", "setting", "value", "base"]
_SCHEMA = {
    **dict.fromkeys([*ROW, "quantity"], pl.String()),
    "ratio": pl.Float64(),
    "n": pl.Int64(),
    "block": pl.String(),
}
_ROW_IN, _CLOSEST_IN, _HEAD_IN, _FOOT_IN = 0.105, style.SMALLEST_PT / 72, 0.19, 0.3
"""Heights of a row, also where a page is full, of a model's heading and of the axes' names."""
_ALONE = 26
"""Rows from which on models stand side by side in two columns of a page."""
_TICKS = {
    1.7: (0.8, 0.9, 1, 1.1, 1.2),
    16: (0.25, 0.5, 1, 2, 4),
    float("inf"): (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
}
"""By the largest ratio of an axis's ends that they are for."""
_LONGEST = 36
"""Characters of a label."""


@functools.lru_cache(maxsize=1)  # the figure, its caption and its numbers ask for them
def effects(tables: dataset.Tables) -> pl.DataFrame:
    """A row a contrast: workload, model, setting, value, base (most common value), quantity, the ratio of medians of
    the same nights, n (runs of the side with fewest), and its block."""
    points = dataset.undisturbed(tables["points"].filter(pl.col("status") == "ok"))
    known = (pl.col("samples_per_step").fill_null(0) > 0).all().over("workload", "model")
    samples = pl.when(known).then("samples_per_step").otherwise(1)  # of a script that does not tell them: a step
    points = nights.add_nights(points, tables["points"]).with_columns((pl.col("step_ms_median") / samples).alias(TIME))
    found = [
        _contrasts(part, setting, quantity)
        for _, part in short_labels.per_model(points)
        for setting in dataset.varying(part, but=(*blocks.NEUTRAL, *OF_THE_RUN))
        for quantity in QUANTITIES
    ]
    return pl.concat(found).sort(*ROW, "quantity", "block") if found else pl.DataFrame(schema=_SCHEMA)


def _contrasts(points: pl.DataFrame, setting: str, quantity: str) -> pl.DataFrame:
    """Those of the points of one model in one setting."""
    others = [name for name in dataset.varying(points, but=blocks.NEUTRAL) if name != setting]
    rows = points.filter(pl.col(quantity) > 0).with_columns(block=pl.struct("model", *others).struct.json_encode())
    rows = rows.filter(pl.col(setting).n_unique().over("block") > 1)
    if quantity == MEMORY:  # it does not hang on the night
        rows = rows.with_columns(night=0)
    base = dataset.most_common(setting, points[setting].to_list())
    is_base = pl.col(setting).eq_missing(pl.lit(base, points.schema[setting]))
    runs = rows.group_by("block", "night", setting).len()
    of_base = runs.filter(is_base).select("block", "night", base_runs="len")
    shared = runs.join(of_base, on=["block", "night"], nulls_equal=True)
    fewest = shared.group_by("block", setting).agg(n=pl.min_horizontal(pl.sum("len"), pl.sum("base_runs")))
    bases = rows.filter(is_base).select("block", setting).unique()
    found = nights.ratios(rows, quantity, ["block"], [setting], bases).drop("n").filter(~is_base)
    found = found.join(fewest, on=["block", setting], nulls_equal=True)
    known = {name: points[name][0] for name in ("workload", "model")}
    known |= {"setting": setting, "base": labels.value_text(setting, base)}
    return found.select(
        *(pl.lit(value, pl.String).alias(name) for name, value in known.items()),
        pl.Series("value", [labels.value_text(setting, value) for value in found[setting].to_list()], pl.String),
        pl.lit(quantity).alias("quantity"),
        "ratio",
        pl.col("n").cast(pl.Int64),
        "block",
    ).select(*_SCHEMA)


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points of models with a contrast."""
    points = dataset.undisturbed(tables["points"].filter(pl.col("status") == "ok"))
    return points.join(effects(tables), on=["workload", "model"], how="semi", nulls_equal=True)


def _rows(found: pl.DataFrame) -> pl.DataFrame:
    """A row a value of a setting, with the median of its ratios of time (of memory where time has none); the fastest
    first in each model, and last what has no time."""
    middle = [pl.col("ratio").filter(quantity=quantity).median() for quantity in QUANTITIES]
    return (
        found.group_by(ROW, maintain_order=True)
        .agg(middle=pl.coalesce(middle), untimed=(pl.col("quantity") != TIME).all())
        .sort("workload", "model", "untimed", "middle", "setting", "value")
    )


def _label(row: dict[str, Any]) -> str:
    name = "" if row["setting"] == dataset.VARIABLES else f"{row['setting']} "
    return panels.cut(f"{name}{row['value']} / {row['base']}", _LONGEST)


def _largest(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """The rows of the largest effects, in their order."""
    kept = rows.with_row_index("at").sort(pl.col("middle").log().abs(), descending=True, maintain_order=True).head(most)
    return kept.sort("at").drop("at")


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    """A pair of panels a model; models one above the other, in two stacks where the page is wide and they are long."""
    found = effects(tables)
    everything = _rows(found)
    count = everything.select("workload", "model").n_unique()
    wide = width_in > style.ONE_COLUMN_IN and count > 1
    room = int((style.PAGE_IN - _FOOT_IN - _HEAD_IN * count) / _CLOSEST_IN)
    models = _largest(everything, room * (1 + wide)).partition_by("workload", "model", maintain_order=True)
    heights = [_ROW_IN * part.height + _HEAD_IN for part in models]
    stacks = [models]
    if wide and sum(heights) > _ALONE * _ROW_IN:
        cut = min(range(1, len(models)), key=lambda n: max(sum(heights[:n]), sum(heights[n:])))
        stacks = [models[:cut], models[cut:]]
    tall = max(sum(_ROW_IN * part.height + _HEAD_IN for part in stack) for stack in stacks)
    made = style.figure(width_in, tall + _FOOT_IN)
    shown = {quantity: found.filter(quantity=quantity) for quantity in QUANTITIES}
    shown = {quantity: own for quantity, own in shown.items() if own.height}
    grid = made.add_gridspec(1, len(stacks))
    for place, stack in enumerate(stacks):
        ratios = [part.height + _HEAD_IN / _ROW_IN for part in stack]
        # What a stack is shorter by stays empty below it.
        spare = tall / _ROW_IN - sum(ratios)
        ratios += [spare] * (spare > 1)
        rooms = grid[place].subgridspec(len(ratios), len(shown), height_ratios=ratios)
        for at, part in enumerate(stack):
            for side, (quantity, own) in enumerate(shown.items()):
                axes = made.add_subplot(rooms[at, side])
                _panel(axes, part, own, names=side == 0)
                if at == len(stack) - 1:
                    axes.set_xlabel(QUANTITIES[quantity])
                else:
                    axes.tick_params(labelbottom=False)
                if side == 0:
                    axes.set_title(
                        panels.cut(part["model"][0] or part["workload"][0], _LONGEST), loc="left", weight="bold"
                    )
    drawn = sum(part.height for part in models)
    if drawn < everything.height:
        made.suptitle(f"The {drawn} largest of {everything.height} changes", fontsize=7)
    return made


def _panel(axes: Axes, rows: pl.DataFrame, found: pl.DataFrame, names: bool) -> None:
    limits = min([*found["ratio"], 0.9]) / 1.3, max([*found["ratio"], 1.1]) * 1.3
    axes.set(xscale="log", xlim=limits)
    axes.axvline(1, color=style.BLACK, linewidth=0.6, zorder=1)
    placed = found.join(rows.with_row_index("y"), on=ROW, nulls_equal=True, maintain_order="left")
    middle = placed.group_by("y", maintain_order=True).agg(pl.col("ratio").median())
    axes.hlines(middle["y"], 1, middle["ratio"], color=style.GREY, linewidth=0.6, zorder=1)
    for face, some in ((style.BLUE, placed.filter(pl.col("n") > 1)), ("white", placed.filter(pl.col("n") == 1))):
        axes.plot(some["ratio"], some["y"], "o", color=style.BLUE, markerfacecolor=face, markersize=2.6)
    axes.set_yticks(range(rows.height), [_label(row) for row in rows.to_dicts()] if names else [])
    axes.set_ylim(rows.height - 0.4, -0.6)
    ticks = next(ticks for most, ticks in _TICKS.items() if limits[1] / limits[0] <= most)
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if limits[0] <= tick <= limits[1]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


FAMILY = Family(
    "What each setting changes",
    "Time of a sample and peak memory with one setting changed over those with its most common value (value / most "
    "common value), all else equal; below 1 is less. A dot a comparison; hollow: one run a side.",
    "No two points of a model differ in one setting alone.",
    select_points,
    paint,
    numbers=lambda _points, tables: effects(tables).drop("block"),
    aside=blocks.NEUTRAL,
    reading=(
        "Rows are sorted by the median ratio of time. Times are medians of steps of the timed run over the samples of "
        "a step (of a script whose samples are not known, of steps), compared within a night, over several nights by "
        "their geometric mean. Memory is that of the rank that needs most: of CUDA's allocator on GPUs, resident "
        "memory on CPUs."
    ),
)
