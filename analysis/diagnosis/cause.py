"""A cause of lost time: which, how much of the step it takes, how that is known, and what would mend it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightsweep.analysis.diagnosis.replay.graph import Graph
from nightsweep.analysis.diagnosis.thresholds import NOISE, REPLAY_ERROR


@dataclass(frozen=True)
class Share:
    """A share of the step, and its interval."""

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def times(self, least: float, most: float = 1.0, value: float | None = None) -> Share:
        """The share where only a part of it can be gained: `value` of it (`most`, if not given), at least `least` and
        at most `most`."""
        return Share(self.value * (most if value is None else value), self.low * least, min(1.0, self.high * most))

    def within(self, below: float, above: float) -> Share:
        """The share with an interval that reaches `below` times as far below it and `above` times as far above it; one
        that begins at 0 still does."""
        low, high = self.value - below * (self.value - self.low), self.value + above * (self.high - self.value)
        return Share(self.value, max(0.0, low) if self.low else 0.0, min(1.0, high))

    def at_most(self, most: float) -> Share:
        """The share with an interval that ends there at the latest, if the share itself does."""
        return Share(self.value, self.low, max(self.value, min(self.high, most)))


def replayed(value: float, low: float | None = None, high: float | None = None) -> Share:
    """A share with the error of replaying: `replay_error` of it times what is left of the step, since what seems to
    take nearly all of a step mostly does. `low`, `high`: where it may lie without that error."""
    low, high = (value if edge is None else edge for edge in (low, high))
    if value < NOISE.value:
        return Share(value, 0.0, max(value, high))
    off = [REPLAY_ERROR.value * edge * (1 - edge) + NOISE.value for edge in (low, high)]
    return Share(value, max(0.0, low - off[0]), min(1.0, high + off[1]))


@dataclass(frozen=True)
class Fact:
    """A number that a cause rests on. `table`: where it is from (docs/tables.md), or a file of the point."""

    what: str
    value: float | int | str
    unit: str
    table: str

    def as_json(self) -> dict[str, Any]:
        value = round(self.value, 4) if isinstance(self.value, float) else self.value
        return {"what": self.what, "value": value, "unit": self.unit, "table": self.table}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause of a step's length.

    `gain`: of the step's time (of its time a sample, where the remedy changes the batch) that the remedy could give
    back, 0 to 1; 0 is a remark. `rank`: the rank at fault where it is one. `change`: of the traced steps, of which the
    gain is what it gives. `evidence_of`: gives more evidence, of the rank, or the mean over ranks where that is None.
    `unseen`: the share of the gain that is not in these steps. `remedy`: settings of the point to change, empty where
    no setting does it. `method`: how the gain was computed. `cause` and `kind`: those of the rule that found it, which
    fills them in.
    """

    gain: Share
    method: str
    advice: str
    remedy: Mapping[str, Any] = field(default_factory=dict)
    evidence: Sequence[Fact] = ()
    rank: int | None = None
    change: Callable[[Graph], Graph] | None = None
    evidence_of: Callable[[int | None], Sequence[Fact]] | None = None
    unseen: float = 0.0
    cause: str = ""
    kind: str = ""

    @property
    def share(self) -> float:
        return self.gain.value

    @property
    def low(self) -> float:
        """What the remedy gives at least: causes are ranked by it, so that a sure gain comes before a large hope."""
        return self.gain.low

    @property
    def high(self) -> float:
        return self.gain.high

    def as_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "kind": self.kind,
            "share": round(self.share, 4),
            "share_low": round(self.low, 4),
            "share_high": round(self.high, 4),
            "rank": self.rank,
            "evidence": [fact.as_json() for fact in self.evidence],
            "remedy": dict(self.remedy),
            "advice": self.advice,
            "method": self.method,
        }
