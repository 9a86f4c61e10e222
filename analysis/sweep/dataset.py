"""What figures share: the tables of a sweep, and its points grouped into configurations.

A configuration is all settings but a few (ASIDE). Its label names only the settings that vary among the
points of its workload, so within a workload the label is also its key. Where many vary, it names its model and what
differs from that model's most common values, and is a key as well.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.sweep.labels import label, named
from nightsweep.analysis.tables import column, parquet
from nightsweep.analysis.tables import points as schemas
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.point import point as settings
from nightsweep.jobs.point.workloads import WORKLOADS
from nightsweep.jobs.record.input_error import InputError

ASIDE = (
    "repeat",
    "seed",
    "cost_pairs",
    "keep_report",
    "timed_steps",
    "traced_steps",
    "tracer",
    "trace_ranks",
    "trace_preset",
)
"""Settings that make no other configuration: a further run of it, how many steps are timed, or what is looked at beside
its times."""
MOST_NAMED = 6
"""Settings that a label names; where more vary, it names differences from the most common values."""
SHAPE = ("nodes", "ranks_per_node")
VARIABLES = "variables"
"""The column of the axes that the user of a script named."""
SETTINGS = (*settings.FIELDS, VARIABLES)
SCHEMAS = {**schemas.TABLES, **TRACE_TABLES}


@dataclass(frozen=True, eq=False)
class Tables:
    """Tables of a sweep, a point or traces, by name (docs/tables.md). What is lazy stays on disk until it is asked for,
    each time. Two are the same only if they are one object, by which computations that many figures share are kept."""

    frames: Mapping[str, pl.DataFrame | pl.LazyFrame]

    def __getitem__(self, name: str) -> pl.DataFrame:
        """The table, with exactly its schema's columns; empty where there is none."""
        if isinstance(self.frames.get(name), pl.DataFrame) and name not in self._whole:
            self._whole[name] = self.scan(name).collect()
        return self._whole[name] if name in self._whole else self.scan(name).collect()

    def scan(self, name: str) -> pl.LazyFrame:
        """The same, of which only the columns and rows that are needed are read: tables of steps and samples are
        large."""
        columns = SCHEMAS[name]
        frame = self.frames.get(name)
        return column.empty(columns).lazy() if frame is None else column.conform(frame, columns)

    @functools.cached_property
    def _whole(self) -> dict[str, pl.DataFrame]:
        """What was asked for of what is not lazy, as it was given."""
        return {}

    def names(self) -> list[str]:
        """The tables that are there."""
        return list(self.frames)

    @functools.cached_property
    def own(self) -> Tables:
        """Of the sweep's own points, without those that remedies added: these are no part of what it compares."""
        ids = self["points"].filter(pl.col("round").is_null())["point_id"].implode()
        own = {name: self.scan(name).filter(pl.col("point_id").is_in(ids)) for name in self.frames}
        return Tables({**own, "points": own["points"].collect()} if "points" in own else own)

    def of_point(self, point_id: str) -> Tables:
        """The rows of one point."""
        return Tables({name: self.scan(name).filter(pl.col("point_id") == point_id) for name in self.frames})


def load(folder: Path) -> Tables:
    """Every table that the folder has, as NAME.parquet. `points`, which all figures ask for many times, is read. Raises
    FormatError."""
    frames = parquet.scan_whole(folder, schemas.TABLES, "snakemake tables")
    return Tables({**frames, "points": with_defaults(frames["points"].collect())} if "points" in frames else frames)


def load_sets(folders: Sequence[Path]) -> Tables:
    """The tables of one folder, or of several sets as one. A point's id is SET/ID then, for two sets may each have
    measured the same one, and a host's name SET/HOST, for pseudonyms of two sets may be alike. A point's nights are
    those of its set (analysis/sweep/nights.py).

    Args:
        folders: of tables, each in the folder of its set, whose name is SET.

    Raises:
        FormatError: see `load`.
        InputError: two of them are of one name.
    """
    if len(folders) == 1:
        return load(folders[0])
    sets: dict[str, Tables] = {}
    for folder in folders:
        name = name_of(folder)
        if name in sets:
            raise InputError(f"{folder}: another set is named {name}, too; expected each set once, and different names")
        sets[name] = load(folder)
    return join(sets)


def name_of(folder: Path) -> str:
    """The name of the set whose tables the folder has."""
    return folder.resolve().parent.name


def join(sets: Mapping[str, Tables]) -> Tables:
    """Sets by name as one, as `load_sets` has it."""

    def named(name: str, of: str) -> pl.LazyFrame:
        own = (f"{of}/" + pl.col("^((point|remedied|having)_id|host)$")).name.keep()
        return sets[of].scan(name).with_columns(own, pl.col("^hosts$").list.eval(f"{of}/" + pl.element()))

    names = dict.fromkeys(name for tables in sets.values() for name in tables.names())
    frames = {name: pl.concat([named(name, of) for of in sets]) for name in names}
    return Tables({**frames, "points": frames["points"].collect()})


def absent(folder: Path) -> list[str]:
    """A line for each table that the folder does not have."""
    names = (f"{name}.parquet" for name in schemas.TABLES)
    return [
        f"{name}: no such file; what is shown lacks what it holds" for name in names if not (folder / name).exists()
    ]


def with_defaults(points: pl.DataFrame) -> pl.DataFrame:
    """The table of points with the defaults of settings that there were not yet when they ran: so points of old and of
    new data sets are alike where their settings are."""
    filled = {}
    for name in (name for name in settings.FIELDS if name in schemas.TABLES["points"]):
        known = [pl.col(name)] if name in points.columns else []
        own = {kind: settings.defaults(kind).get(name) for kind in WORKLOADS}
        cases = [pl.when(workload=kind).then(pl.lit(value)) for kind, value in own.items() if value is not None]
        if cases:
            filled[name] = pl.coalesce(*known, *cases)
    return points.with_columns(**filled)


def varying(points: pl.DataFrame, but: Iterable[str] = ASIDE) -> list[str]:
    """Settings with more than one value among these points, in the order of the settings."""
    skip = set(but)
    return [name for name in SETTINGS if name not in skip and points[name].n_unique() > 1]


def fixed_settings(points: pl.DataFrame) -> dict[str, Any]:
    """Settings with one value among these points, and that value; those of other workloads, and texts that say nothing,
    are absent."""
    if points.is_empty():
        return {}
    alike = [name for name in SETTINGS if points[name].n_unique() == 1]
    return {name: points[name][0] for name in alike if points[name][0] not in (None, "")}


def order(name: str, value: Any) -> tuple[bool, Any]:
    """A sort key of a setting's values: those of a closed list as it has them (fp64, fp32, ...), not by alphabet."""
    if name == VARIABLES:
        return (value is not None, sorted_values(value or "{}"))
    choices = settings.setting_schema(name).get("enum")
    return (value is not None, choices.index(value) if choices and value in choices else value)


def sorted_values(text: str) -> tuple[tuple[str, str, float, str], ...]:
    """A sort key of the user's axes: by name, numbers before texts."""
    known = sorted(json.loads(text).items())
    number = [isinstance(value, (int, float)) for _, value in known]
    return tuple(
        (name, "" if is_number else "text", float(value) if is_number else 0.0, str(value))
        for (name, value), is_number in zip(known, number, strict=True)
    )


def only_varying(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with those of the user's axes that vary among them."""
    known = [json.loads(row[VARIABLES] or "{}") for row in rows]
    names = {name for own in known for name in own}
    vary = {name for name in names if len({repr(own.get(name)) for own in known}) > 1}
    kept = [{name: value for name, value in own.items() if name in vary} for own in known]
    return [{**row, VARIABLES: json.dumps(own) if own else row[VARIABLES]} for row, own in zip(rows, kept, strict=True)]


def usual_values(points: pl.DataFrame, names: Iterable[str]) -> dict[str, Any]:
    """The most common value of each of these settings."""
    return {name: most_common(name, points[name].to_list()) for name in names}


def most_common(name: str, values: list[Any]) -> Any:
    """The most common value of a setting; among equally common ones the first in order."""
    count = Counter(values)
    return min(count, key=lambda value: (-count[value], order(name, value)))


def _add_labels(points: pl.DataFrame, but: tuple[str, ...]) -> pl.DataFrame:
    names = varying(points, but)
    usual = {part["model"][0]: usual_values(part, names) for part in points.partition_by("model")}
    rows = only_varying(points.select(SETTINGS).to_dicts())
    keys = [tuple(order(name, row[name]) for name in names) for row in rows]
    rank = {key: index for index, key in enumerate(sorted(set(keys)))}
    texts = [label(row, named(row, usual[row["model"]], MOST_NAMED, "model")) for row in rows]
    return points.with_columns(
        pl.Series("config", texts, pl.String), pl.Series("config_order", [rank[key] for key in keys], pl.Int64)
    )


def with_config(points: pl.DataFrame, but: tuple[str, ...] = ASIDE) -> pl.DataFrame:
    """Points with `config`, their configuration's label, and `config_order`, its place within the workload."""
    if points.is_empty():
        return points.with_columns(config=pl.lit("", pl.String), config_order=pl.lit(0, pl.Int64))
    parts = points.sort("workload", "point_id").partition_by("workload", maintain_order=True)
    return pl.concat([_add_labels(part, but) for part in parts]).sort("workload", "config_order", "repeat", "point_id")


@functools.lru_cache(maxsize=4)  # most figures and parts of a report ask for them
def labelled(tables: Tables, but: tuple[str, ...] = ASIDE) -> pl.DataFrame:
    """All points, as `with_config` has them."""
    return with_config(tables["points"], but)


def ok_points(tables: Tables, but: tuple[str, ...] = ASIDE) -> pl.DataFrame:
    """Points that are ok. Labels are made among all points, so that they are the same in every figure."""
    return labelled(tables, but).filter(pl.col("status") == "ok")


def undisturbed(points: pl.DataFrame) -> pl.DataFrame:
    """The points that estimates rest on: all but those that something outside of the job is known to have disturbed."""
    return points.filter(~pl.col("disturbed").fill_null(False)) if "disturbed" in points.columns else points


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
