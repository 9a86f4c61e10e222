"""What figures share: the tables of a sweep, and its points grouped into configurations.

A configuration is all settings but a few (ASIDE). Its label names only the settings that vary among the
points of its workload, so within a workload the label is also its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from analysis import tables as schemas
from analysis.words import SPEAKING
from jobs import point as settings

ASIDE = ("repeat", "seed", "cost_pairs", "keep_report", "trace_ranks", "trace_preset")
"""Settings that make no other configuration: a further run of it, or what is looked at beside its times."""
SHAPE = ("nodes", "ranks_per_node")
SETTINGS = tuple(settings.FIELDS)

_SHORT = {
    "ranks_per_node": "{} rank{s}/node",
    "nodes": "{} node{s}",
    "image_size": "{} px",
    "loader_workers": "{} loader worker{s}",
    "resize_on": "resize on {}",
}


@dataclass(frozen=True)
class Tables:
    """The tables of one sweep, by name."""

    frames: Mapping[str, pl.DataFrame]

    def __getitem__(self, name: str) -> pl.DataFrame:
        """The table, with exactly its schema's columns; empty where there is none."""
        columns = schemas.TABLES[name]
        frame = self.frames.get(name)
        return schemas.empty(columns) if frame is None else schemas.conform(frame, columns).collect()

    def own(self) -> Tables:
        """Of the sweep's own points, without those that remedies added: these are no part of what it compares."""
        ids = self["points"].filter(pl.col("round").is_null())["point_id"].implode()
        return Tables({name: self[name].filter(pl.col("point_id").is_in(ids)) for name in self.frames})


def load(folder: Path) -> Tables:
    """Every table that the folder has, as NAME.parquet."""
    files = {name: folder / f"{name}.parquet" for name in schemas.TABLES}
    return Tables({name: pl.read_parquet(file) for name, file in files.items() if file.exists()})


def varying(points: pl.DataFrame, but: Iterable[str] = ASIDE) -> list[str]:
    """Settings with more than one value among these points, in the order of the settings."""
    skip = set(but)
    return [name for name in SETTINGS if name not in skip and points[name].n_unique() > 1]


def fixed(points: pl.DataFrame) -> dict[str, Any]:
    """Settings with one value among these points, and that value; settings of the other workload are absent."""
    if points.is_empty():
        return {}
    alike = [name for name in SETTINGS if points[name].n_unique() == 1]
    return {name: points[name][0] for name in alike if points[name][0] is not None}


def word(name: str, value: Any) -> str:
    """A setting's value as a label says it."""
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if value is None:
        return f"no {name}"
    if name in SPEAKING:
        return str(value)
    if name in _SHORT:
        return _SHORT[name].format(value, s="" if value == 1 else "s")
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def label(row: Mapping[str, Any], names: Iterable[str]) -> str:
    """What sets a point apart; its model where nothing does."""
    return ", ".join(word(name, row[name]) for name in names) or str(row["model"])


def order(name: str, value: Any) -> tuple[bool, Any]:
    """A sort key of a setting's values: those of a closed list as it has them (fp64, fp32, ...), not by alphabet."""
    choices = settings.setting_schema(name).get("enum")
    return (value is not None, choices.index(value) if choices and value in choices else value)


def _labelled(points: pl.DataFrame, but: tuple[str, ...]) -> pl.DataFrame:
    names = varying(points, but)
    rows = points.select(SETTINGS).to_dicts()
    keys = [tuple(order(name, row[name]) for name in names) for row in rows]
    rank = {key: index for index, key in enumerate(sorted(set(keys)))}
    return points.with_columns(
        pl.Series("config", [label(row, names) for row in rows], pl.String),
        pl.Series("config_order", [rank[key] for key in keys], pl.Int64),
    )


def configured(points: pl.DataFrame, but: tuple[str, ...] = ASIDE) -> pl.DataFrame:
    """Points with `config`, their configuration's label, and `config_order`, its place within the workload."""
    if points.is_empty():
        return points.with_columns(config=pl.lit("", pl.String), config_order=pl.lit(0, pl.Int64))
    parts = points.sort("workload", "point_id").partition_by("workload", maintain_order=True)
    return pl.concat([_labelled(part, but) for part in parts]).sort("workload", "config_order", "repeat", "point_id")


def ok_points(tables: Tables, but: tuple[str, ...] = ASIDE) -> pl.DataFrame:
    """Points that are ok. Labels are made among all points, so that they are the same in every figure."""
    return configured(tables["points"], but).filter(pl.col("status") == "ok")


def per_workload(points: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """(workload, its points), in order."""
    parts = points.partition_by("workload", maintain_order=True)
    return [(part["workload"][0], part) for part in parts]


def leading(points: pl.DataFrame, most: int) -> tuple[pl.DataFrame, str]:
    """The points of the first configurations, and what a title must add where there are more."""
    orders = points["config_order"].unique().sort()
    if len(orders) <= most:
        return points, ""
    kept = points.filter(pl.col("config_order").is_in(orders.head(most).to_list()))
    return kept, f" (the first {most} of {len(orders)} configurations)"
