"""What a short trace does not see: waits for a loader, for its few steps may live on what was loaded while the tracer
began, and workers that are too slow make one step in several wait for long; steps that are long again and
again, as where one in several saves a checkpoint; and pauses of a known length in some steps."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.thresholds import LONG_STEP, NOISE
from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank

LEAST_LONG = 3
"""Fewer long steps in a timed window may be accidents."""
LEAST_TIMED = 16
"""Fewer timed steps do not tell which are the fastest."""
FASTEST = 0.1
"""Of a rank's steps, those that nothing holds up, at least; assumed."""


@dataclass(frozen=True)
class Unseen:
    """`timed`, `traced`: tables of steps; the first traced step does not count."""

    timed: pl.DataFrame
    traced: pl.DataFrame

    @functools.cached_property
    def slowest_ms(self) -> pl.Series:
        """Times of the timed steps of the slowest rank, ms."""
        return _slowest(self.timed)["step_ms"]

    @functools.cached_property
    def usual_ms(self) -> pl.Series:
        """The same without `long_steps`."""
        return _slowest(self.timed).filter(~pl.col("step").is_in(self.long_steps))["step_ms"]

    @functools.cached_property
    def mean_ns(self) -> float:
        """Mean time of a timed step of the slowest rank, ns; 0 where there is none."""
        mean = self.slowest_ms.mean()
        return float(mean) * 1e6 if isinstance(mean, float) else 0.0

    @functools.cached_property
    def _counted(self) -> pl.DataFrame:
        first = pl.col("step").min().over("rank")
        return self.traced.filter((pl.col("step") > first) | (pl.len().over("rank") == 1))

    @functools.cached_property
    def longer(self) -> dict[int, float]:
        """How much longer the host of each rank waits in the mean timed step than in the mean traced one, ns."""
        waits, before = (table.group_by("rank").agg(pl.col("data_ms").mean()) for table in (self.timed, self._counted))
        both = waits.join(before, on="rank", suffix="_traced").drop_nulls()
        return {row["rank"]: (row["data_ms"] - row["data_ms_traced"]) * 1e6 for row in both.iter_rows(named=True)}

    @functools.cached_property
    def rank(self) -> int | None:
        """The rank whose waits the trace saw least of; None where none is known, or where that is noise."""
        rank = max(self.longer, key=lambda each: self.longer[each], default=None)
        return None if rank is None or self.longer[rank] < NOISE.value * self.mean_ns else rank

    @functools.cached_property
    def rank_alone(self) -> int | None:
        """That rank, where the others wait for less than half as long; None where it is one of several, or the one."""
        rest = [ns for rank, ns in self.longer.items() if rank != self.rank]
        return self.rank if self.rank is not None and rest and max(rest) < self.longer[self.rank] / 2 else None

    @functools.cached_property
    def long_steps(self) -> list[int]:
        """Timed steps that are long on their slowest rank, but for waiting for batches; none where they do not come
        again and again, evenly apart."""
        found = _longer(self.timed).filter("long")["step"].to_list()
        apart = {after - before for before, after in itertools.pairwise(found)}
        return found if len(found) >= LEAST_LONG and len(apart) == 1 else []

    @property
    def long_told(self) -> str:
        """How many steps are long, and how far apart."""
        first, second = self.long_steps[:2]
        return f"{len(self.long_steps)} of {self.timed['step'].n_unique()} timed steps, {second - first} steps apart"

    def pauses_ns(self) -> float:
        """What long steps add to the mean timed step more than to the mean traced one, ns. 0 where that is noise."""
        if not self.long_steps:
            return 0.0
        long = pl.col("longer_ms") * pl.col("long")
        timed, traced = (
            _longer(own).select(long.mean().fill_null(0.0)).item() * 1e6 for own in (self.timed, self._counted)
        )
        return float(timed - traced) if timed - traced >= NOISE.value * self.mean_ns else 0.0

    def stalls_ns(self, least: float, most: float) -> float | None:
        """What pauses of a length between these add to the mean timed step of the slowest rank, ns: by how much steps
        are longer than the fastest, but for waits for batches, where that is `least` or more; of one that is longer by
        more than `most`, so much, and none where it is by more than twice that, or one of `long_steps`: these have
        another reason. None where it is not known: of few steps."""
        own = _slowest(self.timed)
        if own.height < LEAST_TIMED:
            return None
        usual = own.filter(~pl.col("step").is_in(self.long_steps))
        lengths = (usual["step_ms"] - usual["data_ms"]).to_numpy() * 1e6
        longer = lengths - np.quantile(lengths, FASTEST / self.timed["rank"].n_unique(), method="lower")
        paused = (longer >= least) & (longer <= 2 * most)
        return float(np.minimum(longer, most)[paused].sum()) / own.height

    def waits_ns(self, traced_ns: float) -> float:
        """By how much the mean timed step is longer than a traced one of `traced_ns` without the tracer for want of
        batches, ns. 0 where that is noise."""
        unseen = 0.0 if self.rank is None else min(self.mean_ns - traced_ns, self.longer[self.rank])
        return unseen if unseen >= NOISE.value * traced_ns else 0.0


def _slowest(steps: pl.DataFrame) -> pl.DataFrame:
    """The steps of the slowest rank that have a time: step, step_ms, data_ms."""
    own = slowest_rank(steps.drop_nulls("step_ms"))
    return own.select("step", "step_ms", pl.col("data_ms").fill_null(0.0))


def _longer(steps: pl.DataFrame) -> pl.DataFrame:
    """Of each step of the slowest rank in order: by how much it takes longer than the median one, ms, both but for
    waits for batches, of the rank that waits longest, for the others wait for it (`longer_ms`), and whether it is
    `long`."""
    own = pl.col("step_ms") - pl.col("waits")
    waits = steps.group_by("step").agg(waits=pl.col("data_ms").max().fill_null(0.0))
    both = _slowest(steps).join(waits, on="step", maintain_order="left")
    longer = both.select("step", "step_ms", longer_ms=own - own.median())
    return longer.with_columns(long=pl.col("longer_ms") > LONG_STEP.value * pl.col("step_ms").median())
