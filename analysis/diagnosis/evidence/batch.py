"""What depends on the size of a forward pass's batch: how well it fills the GPU, and what it shares."""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.evidence import optimizer
from nightsweep.analysis.diagnosis.evidence.evidence import Evidence, Floats
from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.replay.graph import Mask
from nightsweep.analysis.diagnosis.thresholds import SMALL_FILL, SMALL_IMAGES, SMALL_TOKENS
from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.intervals import Intervals

OVER_WEIGHTS = ("memory", "elementwise")
"""Assumed: in a small pass these are mostly casts of weights and sums of their gradients, of which a large pass has as
many."""


def is_small(e: Evidence) -> bool:
    """Whether the batch is what keeps kernels small."""
    if e.point is None or e.setting("micro_batch") is None:
        return mean_fill(e) < SMALL_FILL.value and _most_are_small(e)
    tokens = e.point.seq_len and e.point.micro_batch * e.point.seq_len
    few = tokens <= SMALL_TOKENS.value if tokens else e.point.micro_batch <= SMALL_IMAGES.value
    return few and (e.memory is None or e.growth > 1)


def _most_are_small(e: Evidence) -> bool:
    """Whether most kernels have too few blocks; where few do, however long they take, they are small by themselves."""
    few = pl.concat(e.savings)["few"]
    return bool(few.sum() > len(few) / 2)


def mean_fill(e: Evidence) -> float:
    """Mean over time of blocks over SMs, at most 1, of compute kernels; 1 where it is not known."""
    compute = e.part("compute").sum()
    return 1 - float(e.saved("underfilled").sum() / compute) if compute else 1.0


def optimizer_saving(e: Evidence) -> Floats:
    """Time of the optimizer's kernels, ns, that the largest batch for which memory has room would save of a sample's
    time."""
    return np.asarray(e.length(_optimizer).min(axis=0, keepdims=True) * (1 - 1 / e.growth))


def _optimizer(lane: Lane) -> Intervals:
    spans = optimizer.kernels(lane).select("start_ns", "end_ns").to_numpy()
    return intervals.intersect(lane.sets["compute"], intervals.union(spans))


def merged(lane: Lane, passes: int, of: int) -> pl.DataFrame:
    """What is left of a lane's kernels where `passes` forward and backward passes, `of` those of a step, become one of
    as many samples, for `Evidence.scaled`: one launch of all; what goes over weights is done once, and kernels that had
    too few blocks for the GPU run with more of them. The optimizer's stay, and what is of no pass; all do, where
    optimizers step between the passes, for then they are of several models."""
    own = lane.own["kernels"].filter(pl.col("category").cast(pl.String) != "communication")
    own = own.join(optimizer.kernels(lane), on=["device", "stream", "start_ns"], how="anti")
    own = own.filter(_in_passes(lane, own, of))
    filled = pl.col("est_sm_efficiency").fill_null(1.0).clip(1 / passes, 1.0)
    over_weights = pl.col("category").cast(pl.String).is_in(OVER_WEIGHTS)
    return own.with_columns(factor=pl.when(over_weights).then(1 / passes).otherwise(filled), kept=pl.lit(1 / passes))


def _in_passes(lane: Lane, own: pl.DataFrame, passes: int) -> Mask:
    """Which kernels are of forward and backward passes: not those of a rollout or an evaluation before them. Autograd
    launches a backward pass from another thread, and the first forward pass begins as many launches before it as there
    are before the second. All of a step that has not that many backward passes, or whose threads are not
    known."""
    inside = np.ones(own.height, bool)
    launch, thread = own["launch_ns"].fill_null(-1).to_numpy(), own["thread"].fill_null(-1).to_numpy()
    stepping = optimizer.kernels(lane)["launch_ns"].fill_null(-1).to_numpy()
    for begin, end in lane.steps.select("host_start_ns", "host_end_ns").drop_nulls().iter_rows():
        here = np.flatnonzero((launch >= begin) & (launch < end))
        here = here[np.argsort(launch[here], kind="stable")]
        backward = np.flatnonzero(np.diff(thread[here] != thread[here[:1]], prepend=False, append=False))
        starts, ends = backward[::2], backward[1::2]
        if len(starts) != passes or passes < 2:
            continue
        if ((stepping > launch[here[starts[0]]]) & (stepping < launch[here[starts[-1]]])).any():
            inside[here] = False
            continue
        first = starts[0] - int(np.median(starts[1:] - ends[:-1]))
        inside[here[: max(first, 0)]] = False
        inside[here[ends[-1] :]] = False
    return inside
