"""Effects with intervals: ratios of runs that are alike but for one setting, and means, from repeats.

Of a block of points that differ in one setting alone, the effect is the difference of the mean logarithms of a value
between two of its levels; over blocks it is their plain mean, back from logarithms: the geometric mean of ratios. Its
95 % interval is over repeats (analysis/sweep/interval.py): it tells how well these very settings were measured, and not
what other settings would give.

Times of one night are compared with times of that night alone (analysis/sweep/nights.py): the difference is the level's
in a model of the level's and the night's effects by least squares, and a night that has one level only tells nothing.
Where two such differences are compared, they are of the same nights too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from nightsweep.analysis.sweep import blocks
from nightsweep.analysis.sweep.interval import degrees_of_freedom, half_interval, p_value

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
        """A repeat that ran twice, with and without a trace after it, is one value: the mean."""
        values = runs.group_by("repeat", maintain_order=True).agg(pl.col(value).mean())[value].to_list()
        return cls.from_values(values, runs["point_id"].to_list())

    @classmethod
    def from_values(cls, values: Sequence[float], points: Iterable[str]) -> Side:
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values)
        variance = spread / (len(values) - 1) / len(values) if len(values) > 1 else 0.0
        return cls(mean, variance, len(values), tuple(points), len(values) - 1)

    @classmethod
    def between(cls, first: pl.DataFrame, second: pl.DataFrame, value: str) -> Side | None:
        """The value of the first runs less that of the second, by nights; None where no night has both."""
        sides = [
            runs.group_by("night", "repeat", maintain_order=True).agg(pl.col(value).mean(), pl.col("point_id"))
            for runs in (first, second)
        ]
        nights = [night for night in sides[0]["night"].unique(maintain_order=True) if night in sides[1]["night"]]
        if not nights:
            return None
        kept = [side.filter(pl.col("night").is_in(nights, nulls_equal=True)) for side in sides]
        cells = [[_values(side, night, value) for side in kept] for night in nights]
        weights = [len(a) * len(b) / (len(a) + len(b)) for a, b in cells]
        each = [statistics.fmean(a) - statistics.fmean(b) for a, b in cells]
        mean = statistics.fmean(each, weights)
        squares = sum(w * (d - mean) ** 2 for w, d in zip(weights, each, strict=True))
        squares += sum((x - statistics.fmean(cell)) ** 2 for both in cells for cell in both for x in cell)
        freedom = sum(len(cell) for both in cells for cell in both) - len(nights) - 1
        variance = squares / freedom / sum(weights) if freedom else 0.0
        points = tuple(point for side in kept for run in side["point_id"] for point in run)
        return cls(mean, variance, min(side["repeat"].n_unique() for side in kept), points, freedom)


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

    def less(self, other: Contrast) -> Contrast:
        return Contrast((*self.sides, *((-sign, side) for sign, side in other.sides)), self.key)


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
    return _contrasts(_comparable(points, factor, a, b, value, log=log), factor, a, b, value)


def nights(points: pl.DataFrame, factor: str, a: object, b: object, value: str) -> pl.DataFrame:
    """The blocks of `pairs` and the nights that have both levels of theirs: columns block, night."""
    rows = _comparable(points, factor, a, b, value)
    return rows.filter(pl.col(factor).n_unique().over("block", "night") > 1).select("block", "night").unique()


def _comparable(
    points: pl.DataFrame, factor: str, a: object, b: object, value: str, *, log: bool = True
) -> pl.DataFrame:
    """Points at both levels that are alike in all else, with `block`; of value its logarithm."""
    rows = points.filter(pl.col(factor).is_in([a, b]), pl.col(value).is_not_null())
    if log:
        rows = rows.filter(pl.col(value) > 0).with_columns(pl.col(value).log())
    return blocks.select_contrasts(rows, factor)


def _contrasts(rows: pl.DataFrame, factor: str, a: object, b: object, value: str) -> list[Contrast]:
    made = []
    for part in rows.sort("block", "point_id").partition_by("block", maintain_order=True):
        own = [part.filter(pl.col(factor) == pl.lit(level)) for level in (a, b)]
        if value not in NIGHTLY:
            sides = [(sign, Side.from_runs(runs, value)) for sign, runs in zip((1, -1), own, strict=True)]
        else:
            between = Side.between(own[0], own[1], value)
            sides = [(1, between)] if between else []
        if sides:
            made.append(Contrast(tuple(sides), part["block"][0]))
    return made


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
    """The ratio of `factor` (setting, a, b) at the first level of `outer` over that at its second, all else equal.

    It is of the nights that have both ratios: pinned memory gave 36 % in one night and 16 % in another, so that ratios
    of two nights differ by what the nights do.
    """
    name, *levels = outer
    same = pl.lit(None).cast(points.schema[name]).alias(name)
    own = [points.filter(pl.col(name) == pl.lit(level)).with_columns(same) for level in levels]
    shared = nights(own[0], *factor, value).join(
        nights(own[1], *factor, value), on=["block", "night"], nulls_equal=True
    )
    found = (
        _comparable(rows, *factor, value).join(shared, on=["block", "night"], how="semi", nulls_equal=True)
        for rows in own
    )
    first, second = ({c.key: c for c in _contrasts(rows, *factor, value)} for rows in found)
    effect = mean([first[key].less(second[key]) for key in sorted(first)])
    return effect.exp() if effect else None


def level(points: pl.DataFrame, value: str) -> Effect | None:
    """The mean of a value over repeats, and over sets of settings."""
    rows = blocks.add_blocks(points.filter(pl.col(value).is_not_null()), ()).sort("block", "point_id")
    parts = rows.partition_by("block", maintain_order=True)
    return mean([Contrast(((1, Side.from_runs(p, value)),)) for p in parts])
