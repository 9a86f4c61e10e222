"""Confidence intervals of means and of their differences.

Student's t with the Welch-Satterthwaite degrees of freedom (B. L. Welch, Biometrika 34, 1947, 28-35).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import scipy  # loads its parts when they are first used: some take as long as a small table

CONFIDENCE = 0.95


def half_interval(means: Sequence[tuple[float, int]]) -> float:
    """Half of the 95 % interval of a sum or difference of independent means; 0 where none varies.

    Args:
        means: of each mean, its variance (that of one value over the number of values) and that number. A mean of one
            value adds nothing, since its variance is not known.
    """
    freedom = degrees_of_freedom(means)
    total = sum(variance for variance, _ in means)
    return float(scipy.special.stdtrit(freedom, 0.5 + CONFIDENCE / 2)) * math.sqrt(total) if freedom else 0.0


def degrees_of_freedom(means: Sequence[tuple[float, int]]) -> float:
    """Those of the interval of such a sum; 0 where none varies."""
    below = sum(variance**2 / (count - 1) for variance, count in means if count > 1)
    return sum(variance for variance, _ in means) ** 2 / below if below else 0.0


def p_value(distance: float, half: float, freedom: float) -> float:
    """The two-sided p-value of a mean that lies so far from another value, with half of its 95 % interval: 0 where
    nothing varies."""
    if not half:
        return 0.0 if distance else 1.0
    quantile = float(scipy.special.stdtrit(freedom, 0.5 + CONFIDENCE / 2))
    return 2 * float(scipy.special.stdtr(freedom, -abs(distance) / half * quantile))
