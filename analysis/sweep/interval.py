"""Confidence intervals of means and of their differences.

Student's t with the Welch-Satterthwaite degrees of freedom (B. L. Welch, Biometrika 34, 1947, 28-35).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit  # scipy.stats takes a second to import

CONFIDENCE = 0.95


def half_interval(means: Sequence[tuple[float, int]]) -> float:
    """Half of the 95 % interval of a sum or difference of independent means; 0 where none varies.

    Args:
        means: of each mean, its variance (that of one value over the number of values) and that number. A mean of one
            value adds nothing, since its variance is not known.
    """
    total = sum(variance for variance, _ in means)
    below = sum(variance**2 / (count - 1) for variance, count in means if count > 1)
    return float(stdtrit(total**2 / below, 0.5 + CONFIDENCE / 2)) * math.sqrt(total) if below else 0.0
