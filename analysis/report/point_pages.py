"""The data of the points' own pages and of the interactive figures, as JSON for the scripts of page/.

Columns lie by column, and texts that many points share are written once, so that most of 1,000 points takes little.
What could still grow is cut to a share of a budget (records.LOGS_BYTES, lanes.BYTES): the more points, the less of
each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from nightsweep.analysis.figures import remedies, style
from nightsweep.analysis.report import chart_data, lanes, start_times
from nightsweep.analysis.report.causes import interval, outcomes
from nightsweep.analysis.report.records import Log, environment
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables import points as schemas
from nightsweep.analysis.tables.part_names import GROUPS
from nightsweep.jobs.record.record import Record

MOST_RANKS = 8
SELF = "{point}"
"""Stands in a fact for the point's own id, so that texts that differ in it alone are one."""


class Texts:
    """Texts, each written once; a text stands for its place."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def place(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def as_json(tables: dataset.Tables, found: list[Record], logs: Mapping[str, Log], traces: Mapping[str, Any]) -> str:
    """JSON that may stand within a script element. `traces`: as analysis/report/traces.py has them."""
    points = dataset.labelled(tables)
    texts = Texts()
    content = {
        "ids": points["point_id"].to_list(),
        "configs": column(points["workload"] + ": " + points["config"]),
        "settings": {name: column(points[name]) for name in dataset.SETTINGS},
        "vary": {workload: dataset.varying(part, but=()) for workload, part in dataset.per_workload(points)},
        "results": _results(points),
        "parts": parts(tables),
        "lanes": lanes.point_lanes(tables["timeline"], texts.place),
        "causes": causes(tables, texts),
        "facts": facts(found, texts),
        "traces": traces,
        "logs": {point: [log.file, log.text] for point, log in logs.items()},
        "colours": {**style.PART_COLOURS, **lanes.COLOURS},
        "part_names": GROUPS,
        "compare": start_times.start_times(tables, points),
        "charts": chart_data.chart_data(tables, points),
        "texts": list(texts.places),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def column(values: pl.Series) -> dict[str, Any]:
    """{"same": value}, or {"values": [...]} in the order of points, or {"values": distinct, "of": [place, ...]}."""
    short = [_short(value) for value in values]
    places = {value: place for place, value in enumerate(dict.fromkeys(short))}
    if len(places) == 1:
        return {"same": short[0]}
    if 2 * len(places) < len(short):
        return {"values": list(places), "of": [places[value] for value in short]}
    return {"values": short}


def _short(value: Any) -> Any:
    """Seven digits are more than any of these numbers is measured to. JSON has no NaN, so that is a word."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    short = float(f"{value:.7g}")
    return int(short) if short.is_integer() else short


def _results(points: pl.DataFrame) -> list[list[Any]]:
    """(name, meaning, column) of the table's columns that are no settings and that some point has."""
    points = points.drop("point_id").with_columns(pl.col("hosts").list.join(" "))
    rest = [n for n in schemas.POINTS if n in points.columns and n not in dataset.SETTINGS]
    known = [name for name in rest if points[name].null_count() < points.height]
    return [[name, schemas.POINTS[name].text, column(points[name])] for name in known]


def parts(tables: dataset.Tables) -> dict[str, Any]:
    """By point: ranks in all, traced steps, and of the first ranks (rank, ns of each part over these steps). Sums are
    exact: the parts of a rank add up to its steps."""
    sums = tables["breakdown"].group_by("point_id", "rank", "part").agg(pl.col("duration_ns").sum())
    steps = tables["breakdown"].group_by("point_id").agg(pl.col("step").n_unique(), ranks=pl.col("rank").n_unique())
    wide = sums.pivot("part", index=["point_id", "rank"], values="duration_ns").sort("point_id", "rank")
    by_point = {
        r["point_id"]: {"steps": r["step"], "ranks": r["ranks"], "rows": []} for r in steps.sort("point_id").to_dicts()
    }
    for row in wide.to_dicts():
        rows = by_point[row["point_id"]]["rows"]
        if len(rows) < MOST_RANKS:
            rows.append([row["rank"], *(row.get(part) or 0 for part in GROUPS)])
    return by_point


def causes(tables: dataset.Tables, texts: Texts) -> dict[str, list[list[Any]]]:
    """By point: (kind and cause, share, advice, remedy, method, gain, verdict) in order of their place."""
    tried = {(r["point_id"], r["kind"]): r for r in outcomes(tables)}
    by_point: dict[str, list[list[Any]]] = {}
    for row in tables["diagnoses"].sort("point_id", "place").to_dicts():
        trial = tried.get((row["point_id"], row["kind"]))
        rank = "" if row["rank"] is None else f", rank {row['rank']}"
        words = [f"{row['kind']} ({row['cause']}{rank})", interval(row["share"], row["share_low"], row["share_high"])]
        words += [
            row["advice"] or "",
            remedies.change(row["remedy"] or "{}") if row["remedy"] != "{}" else "",
            row["method"] or "",
        ]
        words += [interval(trial["gain"], trial["gain_low"], trial["gain_high"]) if trial else ""]
        words += [f"{trial['said']}: {trial['remedied_id']}" if trial else ""]
        by_point.setdefault(row["point_id"], []).append([texts.place(word) for word in words])
    return by_point


def facts(found: list[Record], texts: Texts) -> dict[str, list[int]]:
    """By point: the names of facts of its record, beside what the tables have, as one text of lines; then their values,
    in which SELF is the point's id."""
    by_point: dict[str, list[int]] = {}
    for record in sorted(found, key=lambda record: str(record.point_id)):
        if record.point_id and (known := _facts(record)):
            names, values = zip(*known, strict=True)
            own = [value.replace(record.point_id, SELF) for value in values]
            by_point[record.point_id] = [texts.place("\n".join(names)), *map(texts.place, own)]
    return by_point


def _facts(record: Record) -> list[tuple[str, str]]:
    runs = [
        f"{name} {run.status}" + (f" ({run.wall_s:.1f} s)" if run.wall_s else "") for name, run in record.runs.named()
    ]
    facts = [("runs", ", ".join(runs)), ("ended_at", record.ended_at or ""), ("command", record.command or "")]
    return [(name, value) for name, value in facts if value] + environment(record)
