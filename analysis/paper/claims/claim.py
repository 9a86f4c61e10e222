"""A claim, the parts that it rests on, and its verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.effect import FEWEST, Effect
from nightsweep.analysis.sweep.interval import CONFIDENCE

SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_TESTED = "supported", "contradicted", "inconclusive", "not tested"
"""Of a part: see `Part.alone`."""
MARGIN = 0.02
"""A ratio this close to 1, and not surely on the claimed side of it, is no effect."""


@dataclass(frozen=True)
class Part:
    """One number that a claim rests on: that its effect is above `above`, or below `below`.

    A part with neither is for information and decides nothing. `effect` None: no points to tell it from. `percent`: of
    a share. `corrected`: the p-value of its verdict after correction for the number of parts of all claims; None
    before.
    """

    what: str
    effect: Effect | None
    above: float | None = None
    below: float | None = None
    percent: bool = False
    corrected: float | None = None

    @property
    def decides(self) -> bool:
        return self.above is not None or self.below is not None

    @property
    def alone(self) -> str:
        """The verdict by its 95 % interval, as if it were the only part: supported where all of it is on the claimed
        side; contradicted where all of it is on the other, or, of a ratio, within MARGIN of 1; else inconclusive; not
        tested with fewer than FEWEST repeats a side."""
        e = self.effect
        if e is None or e.n < FEWEST:
            return NOT_TESTED
        if (self.above is None or e.low > self.above) and (self.below is None or e.high < self.below):
            return SUPPORTED
        beyond = (self.above is not None and e.high < self.above) or (self.below is not None and e.low > self.below)
        return CONTRADICTED if beyond or self.shows_none else INCONCLUSIVE

    @property
    def shows_none(self) -> bool:
        """Whether the effect claimed of a ratio is shown to be none."""
        e = self.effect
        return e is not None and 1 in (self.above, self.below) and e.low > 1 - MARGIN and e.high < 1 + MARGIN

    @property
    def chance(self) -> float:
        """The p-value of the verdict by its own interval; 1 of one that decides nothing."""
        e, bounds = self.effect, [bound for bound in (self.above, self.below) if bound is not None]
        if e is None or self.alone in (INCONCLUSIVE, NOT_TESTED):
            return 1.0
        if self.alone == SUPPORTED:
            return max(e.chance(bound) for bound in bounds)
        if self.shows_none:
            return max(map(e.chance, (1 - MARGIN, 1 + MARGIN)))
        return max(e.chance(bound) for bound in bounds if not e.low <= bound <= e.high)

    @property
    def verdict(self) -> str:
        """`alone`, or inconclusive where that does not outlast the correction."""
        lost = self.corrected is not None and self.corrected > 1 - CONFIDENCE
        return INCONCLUSIVE if lost and self.alone in (SUPPORTED, CONTRADICTED) else self.alone

    def agreeing(self) -> int:
        """Sets of settings whose own value is on the claimed side."""
        each = self.effect.each if self.effect else ()
        return sum((self.above is None or x > self.above) and (self.below is None or x < self.below) for x in each)

    def number(self) -> str:
        """The number with its interval."""
        if self.effect is None:
            return f"{self.what}: no points of one night to tell it from"
        e = self.effect
        shown = [_format(x, self.percent) for x in (e.value, e.low, e.high)]
        interval = "" if math.isnan(e.low) else f" ({shown[1]} to {shown[2]})"
        return f"{self.what}: {shown[0]}{interval}"

    def text(self) -> str:
        """The number with its interval, n and settings."""
        if self.effect is None:
            return self.number()
        e = self.effect
        repeats = f"{e.n} repeat{'s' * (e.n != 1)} a side"
        agree = f", {self.agreeing()} of them as claimed" if self.decides and e.settings > 1 else ""
        verdict = f": {self.verdict}" if self.decides else ""
        span = (
            f" from {_format(min(e.each), self.percent)} to {_format(max(e.each), self.percent)}"
            if e.settings > 1
            else ""
        )
        return f"{self.number()}, {repeats}, {e.settings} setting{'s' * (e.settings != 1)}{span}{agree}{verdict}"


def _format(value: float, percent: bool) -> str:
    return f"{value * 100:.1f} %" if percent else f"{value:.3f}"


@dataclass(frozen=True)
class Verdict:
    """What the parts of a claim say of it. `left_out`: points that it would rest on too, had nothing disturbed them."""

    claim: Claim
    parts: tuple[Part, ...]
    left_out: int = 0

    @property
    def status(self) -> str:
        """Of the parts that decide: one that is contradicted is enough for the claim, and all are needed to support it;
        else one that is inconclusive leaves it so."""
        found = {part.verdict for part in self.parts if part.decides}
        return next(
            (one for one in (CONTRADICTED, INCONCLUSIVE, NOT_TESTED) if one in found),
            SUPPORTED if found else NOT_TESTED,
        )

    @property
    def chief(self) -> Part:
        """The part that stands for the effect: the first of those that the claim's verdict is from."""
        return next((part for part in self.parts if part.decides and part.verdict == self.status), self.parts[0])

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(sorted({point for part in self.parts if part.effect for point in part.effect.points}))

    def sentence(self) -> str:
        """The verdict, and why."""
        deciding = [part for part in self.parts if part.decides]
        if self.status == SUPPORTED:
            return "Every part is on the claimed side with its whole interval."
        if self.status != NOT_TESTED:
            open_ = [part for part in deciding if part.verdict == INCONCLUSIVE]
            against = [part for part in deciding if part.verdict == CONTRADICTED]
            reasons = {
                "On the other side with the whole interval": [part for part in against if not part.shows_none],
                f"No effect, to within {MARGIN:.0%}": [part for part in against if part.shows_none],
                "The interval has both sides": [part for part in open_ if part.alone == INCONCLUSIVE],
                "Not beyond chance after correction for the number of parts": [
                    part for part in open_ if part.alone != INCONCLUSIVE
                ],
            }
            return " ".join(f"{why}: {'; '.join(p.what for p in parts)}." for why, parts in reasons.items() if parts)
        short = [part for part in deciding if part.verdict == NOT_TESTED]
        absent = [part.what for part in short if part.effect is None]
        few = [
            f"{part.what}: {part.effect.n} repeat{'s' * (part.effect.n != 1)} a side; "
            f"effect seen {_format(part.effect.value, part.percent)}"
            for part in short
            if part.effect
        ]
        return "; ".join(few + [f"{what}: no points of one night" for what in absent]) + "."


@dataclass(frozen=True)
class Claim:
    """`text`: what the paper or its sibling says, with where from; `judge`: tables to the parts it rests on; `by`: the
    setting that it compares."""

    id: str
    text: str
    judge: Callable[[dataset.Tables], list[Part]]
    note: str = ""
    by: str = ""

    def verdict(self, tables: dataset.Tables) -> Verdict:
        found = Verdict(self, tuple(self.judge(tables)))
        points = tables["points"]
        if not points["disturbed"].any():
            return found
        unmarked = dataset.Tables({**tables.frames, "points": points.with_columns(disturbed=pl.lit(None))})
        all_points = Verdict(self, tuple(self.judge(unmarked))).points
        return replace(found, left_out=len(set(all_points) - set(found.points)))
