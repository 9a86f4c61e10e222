"""Blocks of points that may be compared: all their settings are equal but those that are compared.

Points of different blocks are never compared, nor are those that something outside of their job disturbed. Repeats of a
configuration, and whether a trace was taken after the timed run, do not make different blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from nightsweep.analysis.sweep import dataset

NEUTRAL = (*dataset.ASIDE, "nvml_hz")
"""Settings that do not change the times of the timed run."""


def add_blocks(points: pl.DataFrame, free: Iterable[str]) -> pl.DataFrame:
    """Add `block` to the ok points that nothing disturbed: it is equal where all settings but the free ones are.
    `free`: names of settings."""
    skip = {*NEUTRAL, *free}
    fixed = [name for name in dataset.SETTINGS if name not in skip]
    kept = dataset.undisturbed(points.filter(pl.col("status") == "ok"))
    return kept.with_columns(block=pl.struct(fixed).struct.json_encode())


def select_contrasts(points: pl.DataFrame, factor: str, free: Iterable[str] = ()) -> pl.DataFrame:
    """Select points of blocks in which `factor` has several values while the other free settings are equal too."""
    all_free = {factor, *free}
    several = pl.col(factor).n_unique().over("block") > 1
    kept = add_blocks(points, {factor}).filter(several)
    return add_blocks(points, all_free).join(kept, on="point_id", how="semi") if len(all_free) > 1 else kept


def widest_block(points: pl.DataFrame, factor: str, along: Iterable[str] = ()) -> tuple[pl.DataFrame, int]:
    """The points of the block with most values of `factor` and of the settings `along`, and how many blocks vary in it.

    Of equal blocks it is the one with most points, then the first by its settings.
    """
    found = select_contrasts(points, factor, along)
    if found.is_empty():
        return found, 0
    cell = pl.struct(factor, *along).n_unique()
    sizes = (
        found.group_by("block")
        .agg(cells=cell, runs=pl.len())
        .sort(["cells", "runs", "block"], descending=[True, True, False])
    )
    return found.filter(pl.col("block") == sizes["block"][0]).sort("point_id"), sizes.height


def levels(points: pl.DataFrame, name: str) -> list[Any]:
    """The values of a setting among these points, in the order of the setting."""
    key = (lambda value: dataset.order(name, value)) if name in dataset.SETTINGS else None
    return sorted(points[name].unique().to_list(), key=key)
