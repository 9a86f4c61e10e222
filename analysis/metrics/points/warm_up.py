"""From which step of the timed window on a run was steady.

The rule looks for a change point in the times of the steps, those of the slowest rank, by the standardised statistic of
Mann and Whitney at every place (Hawkins and Deng, "A nonparametric change-point control chart", Journal of Quality
Technology 42, 2010, 165-173). It is of ranks of times, so a pause in one step is no change. For the first k of n steps,
of which R is the sum of ranks,

    z(k) = (R - k (n + 1) / 2) / sqrt(k (n - k) (n + 1) / 12)

A change is where |z| is largest, if that is CLEAR and the medians of both sides are MATERIAL apart. What is before it
settles, and the rest is looked through again. Only the first half of the window may be left out (the bound that White
gives MSER, Simulation 69, 1997, 323-334): a change beyond it means that the window was too short to be steady, and what
was left out so far stays left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank

FEWEST = 16
"""Steps of a window that can tell: with 8, complete separation of its halves gives |z| 2.3, with 16 it gives 3.4."""
CLEAR = 3.0
"""|z| of a change. Of windows of pure noise 1 in 100 has one at 20 steps, 2 at 40, 4 at 100 and 6 at 400."""
MATERIAL = 0.01
"""Medians of both sides must differ by so much."""
SETTLING = "settling"
"""Phase of the timed steps before the first steady one."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WarmUp:
    """`first`: index of the first steady step of the window; `steady`: False where it changes beyond the bound."""

    first: int
    steady: bool


def find(times: Floats) -> WarmUp | None:
    """The warm-up in the times of a window's steps, in their order; None where they are fewer than FEWEST."""
    if len(times) < FEWEST:
        return None
    first, bound = 0, len(times) // 2
    while (change := change_point(times[first:])) is not None:
        if first + change > bound:
            return WarmUp(first, steady=False)
        first += change
    return WarmUp(first, steady=True)


def change_point(times: Floats) -> int | None:
    """Number of the steps before the clearest change; None where there is none."""
    n, ranks = len(times), pl.Series(times).rank("average").to_numpy()
    k = np.arange(1, n)
    z = np.abs(np.cumsum(ranks)[:-1] - k * (n + 1) / 2) / np.sqrt(k * (n - k) * (n + 1) / 12)
    if not z.size or z.max() < CLEAR:
        return None
    place = int(z.argmax()) + 1
    before, after = float(np.median(times[:place])), float(np.median(times[place:]))
    return place if abs(before - after) >= MATERIAL * after else None


def in_window(steps: pl.DataFrame) -> pl.DataFrame:
    """All steps of the timed window, those that settled too."""
    return steps.filter(pl.col("phase").is_in(["timed", SETTLING]))


def of_point(steps: pl.DataFrame) -> WarmUp | None:
    """The warm-up of a point, of its table STEPS; None where a step has no time."""
    times = slowest_rank(in_window(steps))["step_ms"]
    return None if times.null_count() else find(times.to_numpy())


def mark_settling(steps: pl.DataFrame) -> pl.DataFrame:
    """STEPS of one point with the phase of timed steps before the first steady one changed to SETTLING."""
    found = of_point(steps)
    if found is None or not found.first:
        return steps
    left_out = slowest_rank(in_window(steps))["step"].head(found.first).implode()
    settling = (pl.col("phase") == "timed") & pl.col("step").is_in(left_out)
    return steps.with_columns(phase=pl.when(settling).then(pl.lit(SETTLING)).otherwise("phase"))
