"""What precision, page-locked memory and layout gain, each beside the others, with the intervals of the claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nightsweep.analysis.figures import palette, style
from nightsweep.analysis.paper.figures import bars
from nightsweep.analysis.paper.figures.family import STEP, family, widest_block
from nightsweep.analysis.sweep import blocks, dataset
from nightsweep.analysis.sweep.effect import FEWEST, ratio

REPORTED = (1.16, 1.30)
"""Gain of pinned memory that the paper's sibling (arXiv 2503.15252) reports, as a ratio of times."""
PLACE = ["image_size", "world_size"]
_SIZE = 3.2


@dataclass(frozen=True)
class Switch:
    """A setting whose gain a panel shows: along its places, a mark for each value of `series`."""

    factor: str
    title: str
    series: str

    def points(self, tables: dataset.Tables) -> pl.DataFrame:
        """Image points that differ in it, in `series`, size and GPUs alone."""
        along = dict.fromkeys(["image_size", self.series, *dataset.SHAPE])
        return widest_block(tables, "image", self.factor, *(name for name in along if name != self.factor))


SWITCHES = (
    Switch("precision", "Precision", "precision"),
    Switch("pin_memory", "Pinned memory", "precision"),
    Switch("layout", "Layout", "loader"),
)


def gains(switch: Switch, points: pl.DataFrame) -> pl.DataFrame:
    """PLACE, level of the factor, base (its first level), series, gain (time of the base over that of the level), low,
    high (95 %; null without FEWEST runs a side), n."""
    base, *others = blocks.levels(points, switch.factor) or [None]
    if switch.series != switch.factor:
        others = others[:1]
    by = [*PLACE, *([switch.series] if switch.series != switch.factor else [])]
    rows = []
    for cell in points.partition_by(by, maintain_order=True):
        for level in others:
            found = ratio(cell, switch.factor, base, level, "step_ms_mean")
            if found is not None:
                known = found.n >= FEWEST and not math.isnan(found.low)
                low, high = (found.low, found.high) if known else (None, None)
                rows.append(
                    {name: cell[name][0] for name in by}
                    | {switch.factor: level, "base": base, "gain": found.value, "low": low, "high": high, "n": found.n}
                )
    return pl.DataFrame(rows, infer_schema_length=None)


def numbers(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    found = []
    for switch in SWITCHES:
        frame = gains(switch, switch.points(tables))
        if frame.height:
            words = [bars.word(switch.factor, value) for value in frame[switch.factor].to_list()]
            bases = [bars.word(switch.factor, value) for value in frame["base"].to_list()]
            kept = frame.drop("base", switch.factor if switch.series != switch.factor else "n")
            new = pl.lit(switch.factor).alias("setting"), pl.Series("value", words), pl.Series("over", bases)
            found.append(kept.with_columns(frame["n"], *new))
    return pl.concat(found, how="diagonal_relaxed")


def select_points(tables: dataset.Tables) -> pl.DataFrame:
    """The points of all panels, each once. A panel needs a gain: points that differ in its setting may be of different
    nights, whose times are not compared."""
    found = [switch.points(tables) for switch in SWITCHES]
    shown = [points for switch, points in zip(SWITCHES, found, strict=True) if gains(switch, points).height]
    return pl.concat([found[0].clear(), *shown]).unique("point_id").sort("point_id")


def _panel(axes: Axes, switch: Switch, frame: pl.DataFrame) -> None:
    places = frame.select(PLACE).unique().sort(PLACE).rows()
    levels = blocks.levels(frame, switch.series)
    axes.axhline(1, color=style.BLACK, linewidth=0.6, zorder=1)
    if switch.factor == "pin_memory":
        axes.axhspan(*REPORTED, color="0.9", linewidth=0, zorder=0)
    for index, level in enumerate(levels):
        own = frame.filter(pl.col(switch.series) == pl.lit(level))
        colour, _ = palette.fill_style(switch.series, level, levels)
        look: dict[str, Any] = {"color": colour, "markersize": _SIZE, "linestyle": ""}
        marker = _marker(switch.series, level, levels)
        axes.plot([], [], marker, label=bars.word(switch.series, level), **look)
        for row in own.to_dicts():
            x = places.index((row["image_size"], row["world_size"])) + (index - (len(levels) - 1) / 2) * 0.22
            sure = row["low"] is not None
            if sure:
                axes.vlines(x, row["low"], row["high"], color=colour, linewidth=0.9)
            axes.plot(x, row["gain"], marker, markerfacecolor=colour if sure else "white", **look)
    several = len({gpus for _, gpus in places}) > 1
    axes.set_xticks(
        range(len(places)), [f"{px}\n{gpus} GPU{'s' * (gpus > 1)}" if several else str(px) for px, gpus in places]
    )
    axes.set_xlim(-0.6, len(places) - 0.4)
    axes.set_xlabel("Image size (px)")
    base = bars.word(switch.factor, frame["base"][0])
    other = "format" if switch.factor == switch.series else bars.word(switch.factor, frame[switch.factor][0])
    axes.set_ylabel(f"Time {base} / {other}")
    axes.set_title(switch.title, loc="left", weight="bold")
    axes.legend(loc="best", handletextpad=0.1, borderpad=0.1, labelspacing=0.25)
    axes.margins(y=0.12)
    axes.grid(axis="y")


def _marker(series: str, level: Any, levels: Sequence[Any]) -> str:
    """The same value has the same marker in each panel."""
    known = list(palette.COLOURS.get(series, levels))
    return style.MARKERS[known.index(level) % len(style.MARKERS) if level in known else 0]


def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
    """A panel a setting of which there is something to compare."""
    panels = [(switch, gains(switch, switch.points(tables))) for switch in SWITCHES]
    panels = [(switch, frame) for switch, frame in panels if frame.height]
    wide = width_in > style.ONE_COLUMN_IN
    made = style.figure(width_in, 2.3 if wide else 1.75 * len(panels))
    shape = (1, len(panels)) if wide else (len(panels), 1)
    for axes, (switch, frame) in zip(made.subplots(*shape, squeeze=False).flat, panels, strict=True):
        _panel(axes, switch, frame)
    return made


FAMILY = family(
    "Precision, pinned memory and layout",
    "Speed-up of a step of image jobs, with 95 % intervals over repeats; hollow: fewer than three runs a side. Shaded: "
    "the 16 to 30 % that arXiv 2503.15252 reports.",
    "No two image points of one night differ in precision, pin_memory or layout alone.",
    select_points,
    paint,
    numbers,
    reading=f"{STEP} Each ratio is of runs of the same nights; intervals are those of the claims (Student's t).",
)
