"""The optimizer's kernels: in its ranges or by their names, and how much of them a fused optimizer leaves."""

from __future__ import annotations

import polars as pl

from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.steps import selection

FUSED = r"(?i)multi_tensor|fused"
LOOPED = 100
"""Elementwise kernels of a step, of one tensor each, from which an optimizer goes over its tensors one by one. Of the
labelled scripts one has 3,152 of all kinds, the others 32 at most."""
FUSED_TIME, FUSED_LAUNCHES = 0.35, 0.02
"""What a fused AdamW leaves, assumed: it reads and writes seven values a weight, one kernel an operation about twenty;
and one of its kernels takes tens of tensors (PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh)."""


def kernels(lane: Lane) -> pl.DataFrame:
    """Of a lane, the compute kernels of its optimizer."""
    own = lane.own["kernels"]
    named = pl.col("category").cast(pl.String) == "optimizer"
    launched = own["launch_ns"].fill_null(-1).to_numpy()
    stepping = selection.pass_time(lane.events["nvtx"], "(?i)optimizer")
    inside = pl.Series(intervals.length_before(stepping, launched + 1) > intervals.length_before(stepping, launched))
    return own.filter((named | inside) & (pl.col("category").cast(pl.String) != "communication"))


def is_looped(lane: Lane) -> bool:
    """Whether it goes over its tensors one by one."""
    return bool(lane.summed(_looped(lane)["start_ns"]).mean() > LOOPED)


def fused(lane: Lane) -> pl.DataFrame:
    """What fusing leaves of the kernels that go over tensors one by one, for `Evidence.scaled`."""
    return _looped(lane).with_columns(factor=pl.lit(FUSED_TIME), kept=pl.lit(FUSED_LAUNCHES))


def _looped(lane: Lane) -> pl.DataFrame:
    arithmetic = pl.col("category").cast(pl.String) == "elementwise"
    return kernels(lane).filter(arithmetic, ~pl.col("name").cast(pl.String).str.contains(FUSED))
