"""A claim, the parts that it rests on, and its verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from analysis.paper.claims.effect import FEWEST, Effect
from analysis.sweep import dataset

SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_TESTED = "supported", "contradicted", "inconclusive", "not tested"
"""Of a part: its whole interval is on the claimed side, or on the other, or has both sides; or it has too few runs."""


@dataclass(frozen=True)
class Part:
    """One number that a claim rests on. It holds where its whole interval is above `above`, or below `below`.

    A part with neither is for information and decides nothing. `effect` None: no points to tell it from. `percent`: of
    a share.
    """

    what: str
    effect: Effect | None
    above: float | None = None
    below: float | None = None
    percent: bool = False

    @property
    def decides(self) -> bool:
        return self.above is not None or self.below is not None

    @property
    def holds(self) -> bool | None:
        """None: too few repeats, or no points."""
        if self.effect is None or self.effect.n < FEWEST:
            return None
        over = self.above is None or self.effect.low > self.above
        return over and (self.below is None or self.effect.high < self.below)

    @property
    def verdict(self) -> str:
        e = self.effect
        if e is None or self.holds is None:
            return NOT_TESTED
        if self.holds:
            return SUPPORTED
        beyond = (self.above is not None and e.high < self.above) or (self.below is not None and e.low > self.below)
        return CONTRADICTED if beyond else INCONCLUSIVE

    def agreeing(self) -> int:
        """Sets of settings whose own value is on the claimed side."""
        each = self.effect.each if self.effect else ()
        return sum((self.above is None or x > self.above) and (self.below is None or x < self.below) for x in each)

    def number(self) -> str:
        """The number with its interval."""
        if self.effect is None:
            return f"{self.what}: no two points to tell it from"
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
    claim: Claim
    parts: tuple[Part, ...]

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
            other, open_ = (
                [part.what for part in deciding if part.verdict == word] for word in (CONTRADICTED, INCONCLUSIVE)
            )
            said = [f"On the other side with the whole interval: {'; '.join(other)}."] if other else []
            if open_:
                said.append(f"The interval has both sides: {'; '.join(open_)}.")
            return " ".join(said)
        short = [part for part in deciding if part.holds is None]
        absent = [part.what for part in short if part.effect is None]
        few = [
            f"{part.what}: {part.effect.n} repeat{'s' * (part.effect.n != 1)} a side; "
            f"effect seen {_format(part.effect.value, part.percent)}"
            for part in short
            if part.effect
        ]
        return "; ".join(few + [f"{what}: no points" for what in absent]) + "."


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
        return Verdict(self, tuple(self.judge(tables)))
