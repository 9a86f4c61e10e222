"""Labels of the configurations of a figure, as short as they can be: a model's heading stands above them.

A label names the fewest settings that tell a model's configurations apart: of those that always change together the
first. Of more than FEW it names only those that differ from the model's most common values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from nightsweep.analysis.sweep import dataset, labels

FEW = 2
WHAT_IS_TRAINED = "method"
BASE = "base"
"""The label of a configuration with the most common values."""


def telling_settings(points: pl.DataFrame, aside: Sequence[str]) -> list[str]:
    """The settings, first ones preferred, without any of which some configurations would be alike; and what is
    trained, where it varies, though others tell: nobody is to take those for alike that train other parameters."""
    names = dataset.varying(points, aside)
    count = points.select(names).n_unique() if names else 1
    for name in (name for name in reversed(names) if name != WHAT_IS_TRAINED):
        rest = [other for other in names if other != name]
        if rest and points.select(rest).n_unique() == count:
            names = rest
    return names


def usual_values(points: pl.DataFrame, aside: Sequence[str]) -> dict[str, Any]:
    """Of points of one model, the most common value of each telling setting."""
    return dataset.usual_values(points, telling_settings(points, aside))


def per_model(points: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """(model, its points), image models first."""
    parts = points.sort("workload", "model", maintain_order=True).partition_by("workload", "model", maintain_order=True)
    return [(part["model"][0] or part["workload"][0], part) for part in parts]


def add_labels(points: pl.DataFrame, aside: Sequence[str], always: str | None = None) -> pl.DataFrame:
    """Points with `label`, which is equal for the points of a model that differ in settings of `aside` alone. Where the
    setting `always` tells any apart, every label of the model names it."""
    if points.is_empty():
        return points.with_columns(label=pl.lit("", pl.String))
    labelled = []
    for _, part in per_model(points):
        usual = usual_values(part, aside)
        rows = dataset.only_varying(part.select(dataset.VARIABLES, *(set(usual) - {dataset.VARIABLES})).to_dicts())
        named = (labels.named(row, usual, FEW, always) for row in rows)
        texts = [", ".join(labels.word(n, row[n]) for n in names) for names, row in zip(named, rows, strict=True)]
        labelled.append(part.with_columns(pl.Series("label", [text or BASE for text in texts], pl.String)))
    return pl.concat(labelled)
