"""Kernels that run beside collectives share the SMs and the memory with them: how much longer they take.

A kernel is compared with kernels that ran alone and do the same: of its name and number of blocks, between the same two
kernels of its stream. Names and blocks do not tell matrices apart, of which a layer has several. Of Llama-8B on four
H200s with FSDP2, kernel by kernel against the same card without messages, products beside messages took 1.3 to 1.4
times as long, 37 to 50 ms of a step of 920 (November 2026).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from nightsweep.analysis.diagnosis.evidence.lane import Lane
from nightsweep.analysis.metrics import intervals

BESIDE, ALONE = 0.9, 0.1
"""Shares of its time that a kernel runs beside a collective, from which and up to which it counts as such."""
FEWEST = 3
"""Kernels of each sort that a comparison needs."""
BETWEEN = ("before", "after")
"""Of a kernel, the names of its neighbours in its stream, which tell what it does."""


def slowdowns(lanes: Sequence[Lane]) -> list[pl.DataFrame]:
    """Of each lane, the kernels that run beside its collectives, as fast as alone: for `Evidence.scaled`. How much
    longer like kernels take there is of all lanes, each against its own kernels alone, as ranks may differ in speed."""
    kernels = [_kernels(lane) for lane in lanes]
    kind, beside, alone = ("name", "blocks", *BETWEEN), pl.col("inside") > BESIDE, pl.col("inside") < ALONE
    known = (
        pl.concat([own.select(*kind, "inside", "took", lane=pl.lit(place)) for place, own in enumerate(kernels)])
        .with_columns(longer=pl.col("took") / pl.col("took").filter(alone).median().over("lane", *kind))
        .drop_nulls("longer")
        .group_by(kind)
        .agg(slowdown=pl.col("longer").filter(beside).median(), fewest=pl.min_horizontal(beside.sum(), alone.sum()))
        .filter(pl.col("fewest") >= FEWEST, pl.col("slowdown") > 1)
    )
    factor = 1 - pl.col("inside") * (1 - 1 / pl.col("slowdown"))
    slowed = (
        own.filter(pl.col("inside") >= ALONE).join(known, on=kind, how="inner", nulls_equal=True) for own in kernels
    )
    return [own.with_columns(factor=factor, kept=pl.lit(1.0)).drop(BETWEEN) for own in slowed]


def _kernels(lane: Lane) -> pl.DataFrame:
    """The lane's kernels that are no collectives. `inside`: the share of its time (`took`, ns) that one runs beside a
    collective; `before`, `after`: names of its neighbours."""
    frame = lane.own["kernels"]
    sent = frame["category"].cast(pl.String) == "communication"
    start, end = (frame[name].to_numpy() for name in ("start_ns", "end_ns"))
    covered = intervals.union(np.column_stack((start, end))[sent.to_numpy()])
    took = np.maximum(end - start, 1)
    inside = (intervals.length_before(covered, end) - intervals.length_before(covered, start)) / took
    kernels = frame.with_columns(pl.col("name").cast(pl.String), inside=pl.Series(inside), took=pl.Series(took))
    neighbour = (pl.col("name").shift(by).over("stream").alias(name) for by, name in zip((1, -1), BETWEEN, strict=True))
    return kernels.filter(~sent).sort("start_ns").with_columns(neighbour)
