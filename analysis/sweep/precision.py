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

from nightsweep.analysis.sweep.interval import CONFIDENCE
from nightsweep.analysis.sweep.starts import Noise, noise_of_repeats


@dataclass(frozen=True)
class Estimate:
    """`value`: a ratio of times, or a time in ms; `number` of what it is the mean of, blocks of a pair or starts of a
    point alone, and their `noise`, None of a single one; `confidence`: of the interval."""

    value: float
    number: int
    noise: Noise | None
    confidence: float = CONFIDENCE

    @property
    def half_width(self) -> float:
        """Half of the interval as a share of the value; infinite for one block or start."""
        return math.inf if self.noise is None else math.expm1(self.noise.half((self.number,), self.confidence))

    @property
    def interval(self) -> tuple[float, float]:
        return self.value / (1 + self.half_width), self.value * (1 + self.half_width)


def ratio(without: Mapping[int, float], having: Mapping[int, float], confidence: float = CONFIDENCE) -> Estimate | None:
    """The time of a pair's second point over that of its first, from the mean steps of their starts, ms, by repeat;
    None without a repeat that both have. Repeats 2n and 2n + 1 are of one block."""
    found: dict[int, list[float]] = {}
    for repeat in sorted(without.keys() & having.keys()):
        found.setdefault(repeat // 2, []).append(math.log(having[repeat] / without[repeat]))
    return mean([math.exp(np.mean(logs)) for logs in found.values()], confidence)


def mean(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate | None:
    """The geometric mean of starts, ms, or of blocks' ratios; None without one."""
    if not values:
        return None
    noise = noise_of_repeats([values], 1, "its starts")
    return Estimate(math.exp(float(np.mean(np.log(values)))), len(values), noise, confidence)


def needed(sd: float, half_width: float, most: int, confidence: float = CONFIDENCE) -> int:
    """How many blocks, or starts of a point alone, give an interval of this half width, if they vary by this relative
    standard deviation: at least 2, and `most` where none are enough."""
    enough = (n for n in range(2, most) if math.expm1(Noise(sd, n - 1, "").half((n,), confidence)) <= half_width)
    return next(enough, most)
