"""What depends on the size of a forward pass's batch: how well it fills the GPU, and what it shares."""

from __future__ import annotations

import numpy as np
import polars as pl

from analysis.diagnosis.evidence.evidence import Evidence, Floats
from analysis.diagnosis.evidence.lane import Lane
from analysis.diagnosis.thresholds import SMALL_FILL, SMALL_IMAGES, SMALL_TOKENS
from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals
from analysis.metrics.steps import selection


def is_small(e: Evidence) -> bool:
    """Whether the batch is what keeps kernels small."""
    if e.point is None or e.setting("micro_batch") is None:
        return mean_fill(e) < SMALL_FILL.value
    tokens = e.point.seq_len and e.point.micro_batch * e.point.seq_len
    few = tokens <= SMALL_TOKENS.value if tokens else e.point.micro_batch <= SMALL_IMAGES.value
    return few and (e.memory is None or e.growth > 1)


def mean_fill(e: Evidence) -> float:
    """Mean over time of blocks over SMs, at most 1, of compute kernels; 1 where it is not known."""
    compute = e.part("compute").sum()
    return 1 - float(e.kernels["underfilled"].sum() / compute) if compute else 1.0


def optimizer_saving(e: Evidence) -> Floats:
    """Time of the optimizer's kernels, ns, that the largest batch for which memory has room would save of a sample's
    time."""
    return np.asarray(e.length(_optimizer).min(axis=0, keepdims=True) * (1 - 1 / e.growth))


def _optimizer(lane: Lane) -> Intervals:
    kernels = lane.own["kernels"]
    named = pl.col("category").cast(pl.String) == "optimizer"
    launched = kernels["launch_ns"].fill_null(-1).to_numpy()
    stepping = selection.pass_time(lane.events["nvtx"], "(?i)optimizer")
    inside = pl.Series(intervals.length_before(stepping, launched + 1) > intervals.length_before(stepping, launched))
    own = kernels.filter((named | inside) & (pl.col("category").cast(pl.String) != "communication"))
    return intervals.intersect(lane.sets["compute"], intervals.union(own.select("start_ns", "end_ns").to_numpy()))
