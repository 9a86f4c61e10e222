"""Effects with intervals: ratios of runs that are alike but for one setting, and means, from repeats.

Of a block of points that differ in one setting alone, the effect is the difference of the mean logarithms of a value
between two of its levels; over blocks it is their plain mean, back from logarithms: the geometric mean of ratios. Its
95 % interval is over repeats (analysis/sweep/interval.py): it tells how well these very settings were measured, and not
what other settings would give.

Times of one night are compared with times of that night alone (analysis/sweep/nights.py): the difference is the level's
in a model of the level's and the night's effects by least squares, and a night that has one level only tells nothing.
Where the nights' own differences disagree, the interval is over nights (`pool_nights`).
Where two such differences are compared, they are of the same nights too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import polars as pl
import scipy

from nightsweep.analysis.sweep import blocks
from nightsweep.analysis.sweep.interval import CONFIDENCE, degrees_of_freedom, half_interval, p_value
from nightsweep.analysis.sweep.nights import SET

FEWEST = 3
"""Repeats a side without which nothing is decided."""
NIGHTLY = frozenset({"step_ms_mean", "samples_per_s", "tokens_per_s", "epoch_s"})
"""Values that differ from night to night."""


@dataclass(frozen=True)
class Side:
    """A mean over repeats in one block, or a difference of two: with its variance, the degrees of freedom of that, the
    repeats (of the level with fewest), and their points."""

    mean: float
    variance: float
    n: int
    points: tuple[str, ...]
    freedom: int

    @classmethod
    def from_runs(cls, runs: pl.DataFrame, value: str) -> Side:
        """A repeat of a set that ran twice, with and without a trace after it, is one value: the mean."""
        repeats = runs.group_by(SET.alias("set"), "repeat", maintain_order=True).agg(pl.col(value).mean())
        return cls.from_values(repeats[value].to_list(), runs["point_id"].to_list())

    @classmethod
    def from_values(cls, values: Sequence[float], points: Iterable[str]) -> Side:
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values)
        variance = spread / (len(values) - 1) / len(values) if len(values) > 1 else 0.0
        return cls(mean, variance, len(values), tuple(points), len(values) - 1)

    @classmethod
    def between(cls, runs: Sequence[tuple[int, pl.DataFrame]], value: str) -> Side | None:
        """The sum of the values of some runs, each with its sign, by nights; None where no night has all of them."""
        per_start = (pl.col(value).mean(), pl.col("point_id"), SET.first().alias("set"))
        sides = [(sign, own.group_by("night", "repeat", maintain_order=True).agg(per_start)) for sign, own in runs]
        first = sides[0][1]["night"].unique(maintain_order=True)
        nights = [night for night in first if all(night in side["night"] for _, side in sides)]
        if not nights:
            return None
        kept = [(sign, side.filter(pl.col("night").is_in(nights, nulls_equal=True))) for sign, side in sides]
        by_night = [[(sign, _values(side, night, value)) for sign, side in kept] for night in nights]
        weights = [1 / sum(1 / len(cell) for _, cell in cells) for cells in by_night]
        each = [sum(sign * statistics.fmean(cell) for sign, cell in cells) for cells in by_night]
        mean = statistics.fmean(each, weights)
        apart = sum(w * (d - mean) ** 2 for w, d in zip(weights, each, strict=True))
        inside = sum((x - statistics.fmean(cell)) ** 2 for cells in by_night for _, cell in cells for x in cell)
        starts = sum(len(cell) - 1 for cells in by_night for _, cell in cells)
        squares, freedom = pool_nights(apart, len(nights) - 1, inside, starts)
        variance = squares / freedom / sum(weights) if freedom else 0.0
        points = tuple(point for _, side in kept for run in side["point_id"] for point in run)
        return cls(mean, variance, min(side.select("set", "repeat").n_unique() for _, side in kept), points, freedom)


def pool_nights(apart: float, nights: int, inside: float, starts: int) -> tuple[float, int]:
    """Sum of squares and degrees of freedom of a difference's error, from those of the nights' own differences around
    their mean and those of starts within a night: both together, or, where nights disagree by more than their starts
    explain (F-test at 5 %), those of nights alone."""
    if nights and starts and inside:
        chance = float(scipy.special.fdtrc(nights, starts, (apart / nights) / (inside / starts)))
        if chance < 1 - CONFIDENCE:
            return apart, nights
    return apart + inside, nights + starts


def _values(runs: pl.DataFrame, night: int | None, value: str) -> list[float]:
    return runs.filter(pl.col("night").eq_missing(night))[value].to_list()


@dataclass(frozen=True)
class Contrast:
    """A sum of sides, each with its sign, in one block (`key`: what blocks of two contrasts are matched by)."""

    sides: tuple[tuple[int, Side], ...]
    key: str = ""

    @property
    def value(self) -> float:
        return sum(sign * side.mean for sign, side in self.sides)

    @property
    def n(self) -> int:
        """Repeats of the side with fewest."""
        return min(side.n for _, side in self.sides)


@dataclass(frozen=True)
class Effect:
    """A mean over `settings` blocks: value and interval, repeats of the side with fewest, points, and value by block.

    The interval is nan where no side has a second run; `freedom`: its degrees of freedom; `ratio`: it is of logarithms.
    """

    value: float
    low: float
    high: float
    n: int
    settings: int
    points: tuple[str, ...]
    each: tuple[float, ...]
    freedom: float = 0.0
    ratio: bool = False

    def exp(self) -> Effect:
        """Back from logarithms."""
        value, low, high = (math.exp(x) for x in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high, each=tuple(math.exp(x) for x in self.each), ratio=True)

    def times(self, factor: float) -> Effect:
        """In another unit."""
        value, low, high = (factor * x for x in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high, each=tuple(factor * x for x in self.each))

    def chance(self, bound: float) -> float:
        """The p-value (two-sided) of the effect against a value."""
        own, low, high, other = (math.log(x) if self.ratio else x for x in (self.value, self.low, self.high, bound))
        return p_value(own - other, (high - low) / 2, self.freedom)


def mean(contrasts: Sequence[Contrast]) -> Effect | None:
    """The mean over blocks. Where some have FEWEST repeats a side, these alone count."""
    enough = [c for c in contrasts if c.n >= FEWEST]
    used = enough or list(contrasts)
    if not used:
        return None
    count = len(used)
    value = sum(c.value for c in used) / count
    sides = [side for c in used for _, side in c.sides]
    means = [(side.variance / count**2, side.freedom + 1) for side in sides]
    half = half_interval(means) if enough else math.nan
    points = tuple(sorted({point for side in sides for point in side.points}))
    each = tuple(c.value for c in used)
    n = min(c.n for c in used)
    return Effect(value, value - half, value + half, n, count, points, each, degrees_of_freedom(means))


def pairs(points: pl.DataFrame, factor: str, a: object, b: object, value: str, *, log: bool = True) -> list[Contrast]:
    """Of every block in which `factor` alone varies and has both levels: value at a less value at b."""
    made = []
    for block, own in _by_block(points, factor, a, b, value, log=log).items():
        if value not in NIGHTLY:
            sides = [(sign, Side.from_runs(runs, value)) for sign, runs in own]
        else:
            between = Side.between(own, value)
            sides = [(1, between)] if between else []
        if sides:
            made.append(Contrast(tuple(sides), block))
    return made


def _by_block(
    points: pl.DataFrame, factor: str, a: object, b: object, value: str, *, log: bool = True
) -> dict[str, list[tuple[int, pl.DataFrame]]]:
    """The runs at both levels of `factor`, with the sign of each, by block; of value its logarithm."""
    rows = points.filter(pl.col(factor).is_in([a, b]), pl.col(value).is_not_null())
    if log:
        rows = rows.filter(pl.col(value) > 0).with_columns(pl.col(value).log())
    if rows[factor].n_unique() < 2:
        return {}
    parts = blocks.select_contrasts(rows, factor).sort("block", "point_id").partition_by("block", maintain_order=True)
    return {
        part["block"][0]: [(sign, part.filter(pl.col(factor) == pl.lit(level))) for sign, level in ((1, a), (-1, b))]
        for part in parts
    }


def ratio(points: pl.DataFrame, factor: str, a: object, b: object, value: str) -> Effect | None:
    """Value at a over value at b, all else equal; None where no points are alike so."""
    effect = mean(pairs(points, factor, a, b, value))
    return effect.exp() if effect else None


def efficiency(points: pl.DataFrame, most: int, fewest: int) -> Effect | None:
    """Of weak scaling from the fewest to the most ranks of a node: the ratio of rates a rank."""
    rates = ratio(points, "ranks_per_node", most, fewest, "samples_per_s")
    return rates.times(fewest / most) if rates else None


def interaction(
    points: pl.DataFrame, factor: tuple[str, object, object], outer: tuple[str, object, object], value: str
) -> Effect | None:
    """The ratio of `factor` (setting, a, b) at the first level of `outer` over that at its second, all else equal; of
    the nights that have all four.

    Two ratios of different nights differ by what the nights do, too: pinned memory gave 36 % in one, 16 % in another.
    """
    name, *levels = outer
    same = pl.lit(None).cast(points.schema[name]).alias(name)
    first, second = (
        _by_block(points.filter(pl.col(name) == pl.lit(level)).with_columns(same), *factor, value) for level in levels
    )
    sides = {
        key: Side.between([*first[key], *((-sign, runs) for sign, runs in second[key])], value)
        for key in sorted(first.keys() & second.keys())
    }
    effect = mean([Contrast(((1, side),), key) for key, side in sides.items() if side])
    return effect.exp() if effect else None


def level(points: pl.DataFrame, value: str) -> Effect | None:
    """The mean of a value over repeats, and over sets of settings."""
    rows = blocks.add_blocks(points.filter(pl.col(value).is_not_null()), ()).sort("block", "point_id")
    parts = rows.partition_by("block", maintain_order=True)
    return mean([Contrast(((1, Side.from_runs(p, value)),)) for p in parts])
