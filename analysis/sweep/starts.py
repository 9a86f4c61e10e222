"""How far starts of the same settings differ, and so when two runs do.

Steps of one start are alike in what differs from start to start: the host's load, its clocks, where threads run. They
say nothing of it, however many there are. So the unit is the start (Kalibera and Jones, ISMM 2013): a difference of two
runs is judged by the spread of starts, from repeats of their own settings, else from repeats of like runs of the data
set, else from TABLE. Times are compared as ratios, for the spread is in proportion to them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import scipy

from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank
from nightsweep.analysis.sweep import blocks, dataset
from nightsweep.analysis.sweep.interval import CONFIDENCE

Frame = pl.DataFrame | pl.LazyFrame
LEAST_OWN, LEAST_POOLED = 2, 5
"""Degrees of freedom that repeats must have: of the two settings that are compared, and of all like them together."""
DEVICE, MIXED = 85.0, 70.0
"""SM activity (GPM, %) from which on the device alone decides how long a step takes, and from which on it does in the
main: at 50 to 70 % starts of language models that are tuned with adapters differ as they do where the host decides."""
TABLE = {
    (True, "device"): (0.005, 123),
    (True, "mixed"): (0.061, 47),
    (True, "host"): (0.100, 224),
    (True, None): (0.098, 396),
    (False, "device"): (0.045, 140),
    (False, "mixed"): (0.084, 52),
    (False, "host"): (0.152, 223),
    (False, None): (0.139, 415),
}
"""Relative standard deviation of a start's mean step, and its degrees of freedom, by whether both starts ran on one
host on one day and by what decides (None: not known): runs on H200s of data/h200-2026-11-21, -27 and -28. Pooled over
settings, or larger, where else above one pair in twenty of one of these sets would be called different
(tests/bench/starts_table.py)."""
_ON = {"device": "where the device decides", "mixed": "where device and host decide", "host": "where the host decides"}


@dataclass(frozen=True)
class Noise:
    """`sd`: relative standard deviation of the mean step of a start; `freedom`: its degrees of freedom; `source`: from
    what it is known, in words."""

    sd: float
    freedom: int
    source: str

    def half(self, starts: tuple[int, ...], confidence: float = CONFIDENCE) -> float:
        """Half of the interval of the logarithm of a mean of starts, or of a ratio of two means. `starts`: number of
        each mean."""
        quantile = float(scipy.special.stdtrit(self.freedom, 0.5 + confidence / 2))
        return quantile * self.sd * math.sqrt(sum(1 / count for count in starts))


def known_noise(sm_active: float | None, *, one_host: bool) -> Noise:
    """The noise of TABLE. `sm_active`: mean of both runs in their timed steps, %."""
    kind = what_decides(sm_active)
    sd, freedom = TABLE[one_host, kind]
    where = _ON.get(kind or "", "of any kind")
    return Noise(sd, freedom, f"starts on H200s {where}, on {'one host' if one_host else 'several hosts'}")


def what_decides(sm_active: float | None) -> str | None:
    """What decides how long steps take: device, mixed or host; None where that is not known."""
    if sm_active is None:
        return None
    return "device" if sm_active >= DEVICE else "mixed" if sm_active >= MIXED else "host"


def noise_of_repeats(groups: Sequence[Sequence[float]], least: int, source: str) -> Noise | None:
    """The noise of mean steps of starts, by settings; None where they have fewer degrees of freedom than `least`."""
    logs = [np.log(np.asarray(group)) for group in groups]
    freedom = sum(len(group) - 1 for group in logs if len(group))
    if freedom < least:
        return None
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in logs if len(group))
    return Noise(math.sqrt(squares / freedom), freedom, source)


def own_noise(a: Sequence[float], b: Sequence[float]) -> Noise | None:
    """The noise of the repeats of two settings."""
    return noise_of_repeats([a, b], LEAST_OWN, f"{len(a)} and {len(b)} repeats of these settings")


@dataclass(frozen=True)
class Starts:
    """The ok points of a data set as starts. `frame`: point_id, `settings` (all but repeats and tracing), `ms` (mean
    timed step of the slowest rank), `sm_active`, `host` (of which day), `disturbed`. The spread of starts is of those
    that nothing disturbed."""

    frame: pl.DataFrame

    @classmethod
    def of(cls, points: pl.DataFrame, steps: Frame) -> Starts:
        names = [name for name in dataset.SETTINGS if name not in blocks.NEUTRAL]
        timed = steps.lazy().filter(pl.col("phase") == "timed")
        host = pl.col("hosts").cast(pl.List(pl.String)).list.join(",") + pl.col("started_at").str.slice(0, 10)
        own = points.filter(pl.col("status") == "ok").select(
            "point_id",
            settings=pl.struct(names).struct.json_encode(),
            host=host.fill_null(""),
            disturbed="disturbed",
            sm_active="sm_active_percent",
        )
        times = slowest_rank(timed, "point_id").group_by("point_id").agg(ms=pl.col("step_ms").mean()).collect()
        frame = own.join(times, on="point_id")
        return cls(frame.filter(pl.col("ms") > 0))  # a start without times of steps tells nothing

    def repeats(self, point_id: str) -> list[float]:
        """Mean steps of the point's settings, its own first; then of all other starts that nothing disturbed."""
        own = self.frame.filter(pl.col("point_id") == point_id)
        if own.is_empty():
            return []
        others = dataset.undisturbed(self.frame).filter(pl.col("point_id") != point_id)
        return [own["ms"][0], *others.filter(pl.col("settings") == own["settings"][0])["ms"]]

    def noise(self, one: str, other: str) -> Noise:
        """The noise that the difference of two points is judged by."""
        active, one_host = self._pair(one, other)
        if (one_host or self._spans_hosts(one) or self._spans_hosts(other)) and (found := self._own_noise(one, other)):
            return found
        quiet = dataset.undisturbed(self.frame)
        groups = quiet.partition_by(["settings", "host"] if one_host else ["settings"])
        if not one_host:
            groups = [group for group in groups if group["host"].n_unique() > 1]
        alike = [g["ms"].to_list() for g in groups if what_decides(_mean(g["sm_active"])) == what_decides(active)]
        pooled = noise_of_repeats(alike, LEAST_POOLED, "repeats of like runs of the data set")
        return pooled or known_noise(active, one_host=one_host)

    def _own_noise(self, one: str, other: str) -> Noise | None:
        """The noise of the repeats of two points' settings; where these are the same, for points may differ in what
        changes no times, each repeat counts once."""
        a, b = self.repeats(one), self.repeats(other)
        settings = self.frame.filter(pl.col("point_id").is_in([one, other]))["settings"]
        if len(settings) == 2 and settings.n_unique() == 1:
            return noise_of_repeats([a], LEAST_OWN, f"{len(a)} repeats of these settings")
        return own_noise(a, b)

    def _pair(self, one: str, other: str) -> tuple[float | None, bool]:
        """Mean SM activity of two points, and whether both ran on one host on one day."""
        both = self.frame.filter(pl.col("point_id").is_in([one, other])).select("sm_active", "host").rows()
        return _of_pair(both[0], both[-1]) if both else (None, True)

    def _spans_hosts(self, point_id: str) -> bool:
        """Whether starts of the point's settings ran on several hosts or days, so that their spread has that in it."""
        settings = self.frame.filter(pl.col("point_id") == point_id).select("settings")
        return self.frame.join(settings, on="settings", how="semi")["host"].n_unique() > 1

    def identical_pairs(self) -> tuple[int, int]:
        """Of all pairs of starts of the same settings, how many are called different by TABLE alone, and how many there
        are: one in twenty is expected."""
        called = pairs = 0
        half = functools.cache(lambda active, one_host: known_noise(active, one_host=one_host).half((1, 1)))
        several = dataset.undisturbed(self.frame).filter(pl.len().over("settings") > 1)
        for group in several.partition_by("settings"):
            for (a, *one), (b, *other) in combinations(group.select("ms", "sm_active", "host").iter_rows(), 2):
                pairs += 1
                called += abs(math.log(b / a)) > half(*_of_pair(one, other))
        return called, pairs


def _of_pair(one: Sequence[Any], other: Sequence[Any]) -> tuple[float | None, bool]:
    """Of (sm_active, host) of two starts: mean SM activity, and whether both ran on one host on one day."""
    return both_active(one[0], other[0]), one[1] == other[1] != ""


def both_active(one: float | None, other: float | None) -> float | None:
    """The SM activity, %, that decides which noise two runs have; None where one's is not known."""
    return None if one is None or other is None else (one + other) / 2


def _mean(values: pl.Series) -> float | None:
    """Their mean; None where one is not known."""
    found = None if values.null_count() else values.mean()
    return found if isinstance(found, float) else None
