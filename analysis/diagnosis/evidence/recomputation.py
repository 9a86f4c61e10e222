"""Activations that are computed again in the backward pass, seen by the kernels of forward passes.

A backward pass runs in a separate thread, and launches no forward kernel of attention or of a norm, which have names
that backward kernels do not have, unless the forward pass is run again there (activation checkpointing).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

SIGNED = ("attention", "normalisation")
"""Categories whose forward kernels have names of their own."""
LEAST_AGAIN = 0.25
"""Share of these that must run again; fewer are chance."""
OF_OPTIMIZER = r"(?i)multi_tensor_apply|adam|sgd"


def recomputed_share(kernels: pl.DataFrame) -> npt.NDArray[np.float64]:
    """The share of each kernel that is recomputation: of all in the threads of backward passes alike, so that they add
    up to the time of the forward kernels that are run again. `kernels`: of a lane's steps, in order of their start."""
    nothing = np.zeros(kernels.height)
    rows = kernels.select(
        "thread", "launch_ns", pl.col("name", "category").cast(pl.String), ns=pl.col("end_ns") - pl.col("start_ns")
    )
    known = rows.drop_nulls(["thread", "launch_ns"])
    optimizer = known.filter(pl.col("name").str.contains(OF_OPTIMIZER))
    if known["thread"].n_unique() < 2:
        return nothing
    main = (optimizer if optimizer.height else known)["thread"].mode()[0]
    forward = known.filter(pl.col("thread") == main, ~pl.col("name").str.contains(OF_OPTIMIZER))
    counts = forward.group_by("name").agg(pl.len().alias("once"), pl.col("category").first(), pl.col("ns").sum())
    again = known.filter(pl.col("thread") != main).group_by("name").agg(pl.len().alias("again"))
    both = counts.join(again, on="name", how="left").with_columns(
        again=pl.min_horizontal(pl.col("again").fill_null(0), "once")
    )
    signed = both.filter(pl.col("category").is_in(SIGNED))
    share = float(signed["again"].sum()) / max(float(signed["once"].sum()), 1.0)
    if share < LEAST_AGAIN:
        return nothing
    twice = share * float(both.filter(pl.col("again") >= pl.col("once") / 2)["ns"].sum())
    backward = (rows["thread"].fill_null(main) != main).to_numpy()
    whole = float(rows["ns"].to_numpy()[backward].sum())
    return np.where(backward, min(1.0, twice / max(whole, 1.0)), 0.0)
