"""A forest plot of claims: every part with its effect, 95 % interval, claimed side, verdict and repeats."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection
from dataclasses import dataclass

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import blended_transform_factory

from nightsweep.analysis.figures import palette, style
from nightsweep.analysis.figures.family import Family, Numbers, with_ids
from nightsweep.analysis.paper.claims.claim import INCONCLUSIVE, MARGIN, NOT_TESTED, Part, Verdict
from nightsweep.analysis.paper.claims.claims import judge
from nightsweep.analysis.sweep import blocks, dataset
from nightsweep.analysis.sweep.effect import FEWEST

INFORMATION = "for information"
MARKERS = dict(zip(palette.COLOURS["verdict"], ("o", "s", "D", "x", "o"), strict=True))
_LINE = 1.35
"""Height of a line over that of its text."""
_GAP, _GAP_OF_CLAIMS = 0.35, 0.9
"""Lines above a part, and above a claim."""
_TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20)
_CLOSE_TICKS = (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4)
"""Where fewer than three of the others are on an axis."""
_TEXT = (
    "Each part of each claim, with its 95 % interval; shaded: the claimed side. The line is a ratio of 1. "
    f"An interval within the band of {100 * MARGIN:g} % either way shows no effect."
)
_READING = (
    "Intervals are Student's t over repeats; disturbed points do not count. Over several settings, an interval says "
    "how well these were measured, not what other settings would give. Hollow: for information only. "
    f"n: repeats of the side with fewest; with fewer than {FEWEST} a part is not tested and has no interval. "
    "Corrected: decided by its own interval, but not after the correction for the number of parts (Holm)."
)


@dataclass(frozen=True)
class Row:
    """A line of the plot: the heading of a claim (`part` None), or a part of it."""

    text: str
    part: Part | None = None

    @property
    def lines(self) -> int:
        return self.text.count("\n") + 1

    @property
    def gap(self) -> float:
        """Lines above it."""
        return _GAP if self.part else _GAP_OF_CLAIMS


def family(title: str, claims: Collection[str]) -> Family:
    """The plot of these claims."""

    def select_points(tables: dataset.Tables) -> pl.DataFrame:
        return with_ids(tables, [point for verdict in verdicts(tables, claims) for point in verdict.points])

    def paint(_points: pl.DataFrame, tables: dataset.Tables, width_in: float) -> Figure:
        return draw(verdicts(tables, claims), width_in)

    numbers: Numbers = lambda _points, tables: list_parts(verdicts(tables, claims))  # noqa: E731
    # The verdicts are of all points, remedied ones too.
    return Family(
        title,
        _TEXT,
        "No two points tell anything of these claims.",
        select_points,
        paint,
        numbers,
        place="claims",
        aside=blocks.NEUTRAL,
        remedied=True,
        reading=_READING,
    )


def verdicts(tables: dataset.Tables, claims: Collection[str]) -> list[Verdict]:
    """The verdicts on these claims; parts are corrected with those of all others."""
    return [verdict for verdict in judge(tables) if verdict.claim.id in claims]


def list_parts(found: list[Verdict]) -> pl.DataFrame:
    """A row a part: claim, part, effect, low, high (95 % interval), above, below (what is claimed), n, verdict."""
    rows = [
        {
            "claim": verdict.claim.id,
            "part": part.what,
            "effect": part.effect and part.effect.value,
            "low": part.effect and part.effect.low,
            "high": part.effect and part.effect.high,
            "above": part.above,
            "below": part.below,
            "n": part.effect.n if part.effect else 0,
            "verdict": word(part),
        }
        for verdict in found
        for part in verdict.parts
    ]
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col("low", "high").fill_nan(None))


def word(part: Part) -> str:
    return part.verdict if part.decides else INFORMATION


def remark(part: Part) -> str:
    """What stands at the right of a part: verdict, and n or why it is not tested."""
    if part.effect is None:
        return f"{word(part)}: no points"
    corrected = ", corrected" if part.decides and part.verdict == INCONCLUSIVE != part.alone else ""
    return f"{word(part)}{corrected}, n = {part.effect.n}"


def draw(found: list[Verdict], width_in: float) -> Figure:
    """The plot: a panel of all ratios, then one for the shares of each claim, whose axes differ."""
    size, *characters = (5.5, 58, 22) if width_in <= style.ONE_COLUMN_IN else (7.0, 110, 48)
    shares = [_list_rows([verdict], *characters, percent=True) for verdict in found]
    panels = [rows for rows in [_list_rows(found, *characters, percent=False), *shares] if rows]
    heights = [_height(rows) * _LINE * size / 72 + 0.4 for rows in panels]
    made = style.figure(width_in, sum(heights))
    axes = made.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for own, rows in zip(axes, panels, strict=True):
        _panel(own, rows, size)
    return made


def _list_rows(found: list[Verdict], heading: int, label: int, *, percent: bool) -> list[Row]:
    """The rows of a panel; `heading`, `label`: characters of a line."""
    rows = []
    for verdict in found:
        parts = [part for part in verdict.parts if part.percent == percent]
        if parts:
            # where a claim is from stands in docs/claims.md
            text = re.sub(r" \([^)]*\)", "", verdict.claim.text)
            rows.append(Row(textwrap.fill(f"{verdict.claim.id}: {text}", heading)))
            rows += [Row(textwrap.fill(part.what, label), part) for part in parts]
    return rows


def _height(rows: list[Row]) -> float:
    """In lines."""
    return sum(row.gap + row.lines for row in rows) - rows[0].gap + _GAP


def _panel(axes: Axes, rows: list[Row], size: float) -> None:
    """Draw the rows from top to bottom, in lines of text."""
    parts = [row.part for row in rows if row.part]
    axes.set_xlabel(_scale(axes, parts), fontsize=size)
    at, ticks = 0.0, []
    for row in rows:
        at += row.gap
        middle = at + row.lines / 2
        if row.part is None:
            _heading(axes, row.text, middle, size)
        else:
            _part(axes, row.part, at, row.lines, size)
            ticks.append((middle, row.text, remark(row.part)))
        at += row.lines
    axes.set_ylim(at + _GAP, rows[0].gap)
    places, left, right = zip(*ticks, strict=True)
    remarks = axes.secondary_yaxis("right")
    axes.set_yticks(places, left, fontsize=size)
    remarks.set_yticks(places, right, fontsize=size)
    for side, spine in ((axes, "left"), (remarks, "right")):
        side.tick_params(axis="y", length=0)
        side.spines[spine].set_visible(False)
    axes.tick_params(axis="x", labelsize=size)


def _heading(axes: Axes, text: str, middle: float, size: float) -> None:
    """A claim, from the figure's left edge on and over what all rows share."""
    across = blended_transform_factory(axes.figure.transFigure, axes.transData)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    drawn = axes.text(0.005, middle, text, transform=across, va="center", weight="bold", fontsize=size, bbox=box)
    drawn.set_in_layout(False)


def _scale(axes: Axes, parts: list[Part]) -> str:
    """The horizontal axis with what all rows share: logarithms of ratios, or shares in per cent; returns its name."""
    effects = [part.effect for part in parts if part.effect]
    bounds = [bound for part in parts for bound in (part.above, part.below) if bound is not None]
    ends = [x for e in effects for x in (e.value, e.low, e.high) if not math.isnan(x)] + bounds
    low, high = min(ends, default=1.0), max(ends, default=1.0)
    if parts[0].percent:
        room = 0.15 * (high - low or 0.1)
        axes.set_xlim(low - room, high + room)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:g}"))
        return "% (of differences: percentage points)"
    axes.set_xscale("log")
    axes.set_xlim(min(low, 1 - MARGIN) / 1.06, max(high, 1 + MARGIN) * 1.06)
    left, right = axes.get_xlim()
    coarse, close = ([tick for tick in ticks if left <= tick <= right] for ticks in (_TICKS, _CLOSE_TICKS))
    axes.xaxis.set_major_locator(FixedLocator(close if len(coarse) < 3 else coarse))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvspan(1 - MARGIN, 1 + MARGIN, color="#CCCCCC", linewidth=0, zorder=0.6)
    axes.axvline(1, color=style.BLACK, linewidth=0.6, zorder=0.7)
    return "Ratio (logarithmic)"


def _part(axes: Axes, part: Part, top: float, lines: int, size: float) -> None:
    """The claimed side, the interval and the value of a part."""
    if part.decides:
        left, right = axes.get_xlim()
        begin, end = part.above if part.above is not None else left, part.below if part.below is not None else right
        axes.add_patch(Rectangle((begin, top), end - begin, lines, facecolor="#D9ECF7", linewidth=0, zorder=0.5))
    effect, middle, verdict = part.effect, top + lines / 2, word(part)
    if effect is None:
        return
    colour = palette.COLOURS["verdict"][verdict]
    if verdict != NOT_TESTED and not math.isnan(effect.low):
        axes.hlines(middle, effect.low, effect.high, color=colour, linewidth=1.1)
    face = "white" if verdict == INFORMATION else colour
    axes.plot(
        effect.value, middle, MARKERS[verdict], color=colour, markerfacecolor=face, markersize=size / 2, linestyle=""
    )


IMAGE = family("Claims about image jobs", ("C1", "C2", "C3", "C4", "C5", "C11", "C12"))
LLM = family("Claims about tuning of language models", ("C6", "C7", "C8", "C9", "C10"))
