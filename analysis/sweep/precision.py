"""How well a ratio of two points that ran in blocks is known, or the time of one, and how many starts that takes.

A block's ratio is that of its two points' mean times: what falls on both alike, the host and a drift, is not in it
(jobs/sweep/design.py has the order of a block). Blocks are what varies; starts of one block are no replicates of each
other. So the interval is Student's over blocks, of logarithms: times are compared as ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit  # scipy.stats takes a second to import

from analysis.sweep.interval import CONFIDENCE


@dataclass(frozen=True)
class Estimate:
    """`value`: a ratio of times, or a time in ms; `sd`: relative standard deviation of what it is the mean of, and
    `number`, how many: blocks of a pair, starts of a point alone; `confidence`: of its interval."""

    value: float
    sd: float
    number: int
    confidence: float = CONFIDENCE

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the value; infinite for one block or start."""
        return math.expm1(_half(self.sd, self.number, self.confidence))

    @property
    def interval(self) -> tuple[float, float]:
        return self.value / (1 + self.half_width), self.value * (1 + self.half_width)


def _half(sd: float, number: int, confidence: float) -> float:
    if number < 2:
        return math.inf
    return float(stdtrit(number - 1, 0.5 + confidence / 2)) * sd / math.sqrt(number)


def ratio(without: Mapping[int, float], having: Mapping[int, float], confidence: float = CONFIDENCE) -> Estimate | None:
    """The time of a pair's second point over that of its first, from the mean steps of their starts, ms, by repeat;
    None without a repeat that both have. Repeats 2n and 2n + 1 are of one block."""
    common = sorted(without.keys() & having.keys())
    found: dict[int, list[float]] = {}
    for repeat in common:
        found.setdefault(repeat // 2, []).append(math.log(having[repeat] / without[repeat]))
    return _estimate([float(np.mean(logs)) for logs in found.values()], confidence)


def mean(starts: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """The time of a point, ms (the geometric mean of its starts'); None without a start."""
    return _estimate([math.log(start) for start in starts], confidence)


def _estimate(logs: Sequence[float], confidence: float) -> Estimate | None:
    if not logs:
        return None
    sd = float(np.std(logs, ddof=1)) if len(logs) > 1 else math.nan
    return Estimate(math.exp(float(np.mean(logs))), sd, len(logs), confidence)


def needed(sd: float, half_width: float, most: int, confidence: float = CONFIDENCE) -> int:
    """How many blocks, or starts of a point alone, give an interval of this half width, if they vary by this relative
    standard deviation: at least 2, and `most` where none are enough."""
    enough = (n for n in range(2, most) if math.expm1(_half(sd, n, confidence)) <= half_width)
    return next(enough, most)
