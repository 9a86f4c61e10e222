"""Points that may be compared: a block is all points alike in every setting but those that the comparison is about.

Two points of one block differ in what is asked of them, and in nothing else; points of different blocks are never
compared. Repeats, and whether a trace was taken after the timed look, make no other block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from analysis.sweep import dataset

SAME = (*dataset.ASIDE, "nvml_hz")
"""Settings that leave the times of the timed look as they are."""


def of(points: pl.DataFrame, free: Iterable[str]) -> pl.DataFrame:
    """The ok points, with `block`: equal where all settings but the free ones are. `free`: names of settings."""
    skip = {*SAME, *free}
    rest = [name for name in dataset.SETTINGS if name not in skip]
    return points.filter(pl.col("status") == "ok").with_columns(block=pl.struct(rest).struct.json_encode())


def contrasted(points: pl.DataFrame, factor: str, free: Iterable[str] = ()) -> pl.DataFrame:
    """Points of the blocks in which `factor` has several values, other free settings being equal there too."""
    cells = of(points, {factor})
    several = pl.col(factor).n_unique().over("block") > 1
    kept = cells.filter(several).select("point_id")
    return of(points, {factor, *free}).join(kept, on="point_id", how="semi")


def widest(points: pl.DataFrame, factor: str, along: Iterable[str] = ()) -> tuple[pl.DataFrame, int]:
    """Of the blocks in which `factor` varies, the one with most values of it and of the settings `along`; their number.

    Among equals the one with most points, then the first by its settings.
    """
    found = contrasted(points, factor, along)
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
    """Values of a setting among these points, in its own order."""
    key = (lambda value: dataset.order(name, value)) if name in dataset.SETTINGS else None
    return sorted(points[name].unique().to_list(), key=key)
