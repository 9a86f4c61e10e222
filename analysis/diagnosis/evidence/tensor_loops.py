"""Loops over tensors: a thread launches the same few kernels again and again, once for each of many tensors, as an
optimizer that is not fused, averages of weights, or one table of embeddings after the other. Layers of a model repeat
too, but have products in them, and each needs the one before."""

from __future__ import annotations

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.evidence import optimizer
from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.diagnosis.replay.measured import PLACE

SIMPLE = ("elementwise", "reduction", "memory", "indexing")
"""What such a loop does."""
JOINT = r"(?i)multi_tensor|fused|triton"
"""Kernels that take many tensors already."""
LONGEST, OFTEN = 32, 16
"""Kernels for each tensor, at most, and tensors, at least: a model's own chains of such kernels are shorter."""
BEGINNING_NS = 1_000
"""Of a kernel's time, what it takes to begin; assumed: one of 0.93 us was seen on an H200."""
FUSED_TIME = 0.35
"""Of an optimizer, what a fused AdamW leaves, assumed: it reads and writes seven values a weight, one kernel an
operation about twenty."""


def joint(lane: Lane) -> pl.DataFrame:
    """Kernels of such loops, with `optimizer`, whether they are its, and what is left where all tensors are taken at
    once, for `Evidence.scaled`: one launch of each kernel in place of many, which begins once. That kernels then fill
    the GPU counts as other causes."""
    stepping = optimizer.kernels(lane).select(*PLACE, optimizer=pl.lit(True))
    found = _looped(lane).join(stepping, on=PLACE, how="left", nulls_equal=True, maintain_order="left")
    found = found.with_columns(pl.col("optimizer").fill_null(False))
    arithmetic = pl.col("optimizer") & (pl.col("category").cast(pl.String) == "elementwise")
    took, kept = pl.col("end_ns") - pl.col("start_ns"), 1 / pl.col("often")
    left = 1 - (1 - kept) * took.clip(0, BEGINNING_NS) / took.clip(1)
    return found.with_columns(factor=left * pl.when(arithmetic).then(FUSED_TIME).otherwise(1.0), kept=kept)


def _looped(lane: Lane) -> pl.DataFrame:
    """Kernels of such loops, with `often`, the number of tensors."""
    own = lane.own["kernels"].filter(pl.col("launch_ns").is_not_null()).sort("thread", "launch_ns", "start_ns")
    name = pl.col("name").cast(pl.String)
    simple = pl.col("category").cast(pl.String).is_in(SIMPLE) & ~name.str.contains(JOINT)
    own = own.with_row_index("place").with_columns(  # what is not simple is like nothing else, and so in no loop
        kind=pl.struct(name.rank("dense"), "thread", pl.when(simple).then(-1).otherwise("place")).rank("dense")
    )
    kinds, often = own["kind"].to_numpy(), np.zeros(own.height, np.int64)
    for length in range(1, min(LONGEST, own.height - 1) + 1):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], kinds[length:] == kinds[:-length], [0])))).reshape(-1, 2)
        for begin, end in edges[edges[:, 1] - edges[:, 0] >= (OFTEN - 1) * length].tolist():
            free = begin + np.flatnonzero(often[begin : end + length] == 0)  # a shorter loop may have some of them
            if len(free) // length >= OFTEN:
                often[free] = len(free) // length
    begins, ends = lane.steps["start_ns"].min(), lane.steps["end_ns"].max()
    return own.with_columns(often=often).filter(pl.col("often") > 0, pl.col("start_ns").is_between(begins, ends))
