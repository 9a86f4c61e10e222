"""What failed and why, as a table."""

from __future__ import annotations

import textwrap

import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nightsweep.analysis.figures import style
from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.sweep import dataset

MOST = 24
_COLUMNS = (("Configuration", 0.0, 44), ("Reason", 0.38, 20), ("Message", 0.56, 52))
_LINE_IN = 0.14


def bad_points(tables: dataset.Tables) -> pl.DataFrame:
    """Points that failed or were cancelled, labelled."""
    return dataset.labelled(tables).filter(pl.col("status").is_in(["failed", "cancelled"]))


def verdict(points: pl.DataFrame) -> str:
    """The count of points by status, in one sentence."""
    count = dict(points.group_by("status").len().iter_rows())
    if not points.height:
        return "The sweep has no points."
    if count.get("ok", 0) == points.height:
        return (
            f"All {points.height} points of the sweep itself are ok." if points.height > 1 else "Its one point is ok."
        )
    words = ("ok", "failed", "cancelled", "not_run")
    counts = [f"{count[word]} {word.replace('_', ' ')}" for word in words if count.get(word)]
    return f"Of {points.height} points: {', '.join(counts)}."


def _cells(row: dict[str, object]) -> list[list[str]]:
    name = f"{row['workload']}: {row['config']}, repeat {row['repeat']}"
    texts = (name, str(row["reason"] or row["status"]), str(row["message"] or "no message"))
    wrap = [textwrap.wrap(text, width, max_lines=4) for text, (_, _, width) in zip(texts, _COLUMNS, strict=True)]
    return [lines or [""] for lines in wrap]


def _write(made: Figure, rows: list[list[list[str]]], height_in: float) -> None:
    y = 1 - 0.34 / height_in
    for title, x, _ in _COLUMNS:
        made.text(0.01 + x, y, title, weight="bold", va="top", fontsize=7)
    y -= 1.4 * _LINE_IN / height_in
    for cells in rows:
        above = y + 0.25 * _LINE_IN / height_in
        made.add_artist(Line2D([0.01, 0.99], [above, above], color="#BBBBBB", linewidth=0.5))
        for lines, (_, x, _) in zip(cells, _COLUMNS, strict=True):
            made.text(0.01 + x, y, "\n".join(lines), va="top", fontsize=6.5, linespacing=1.25)
        y -= (max(map(len, cells)) + 0.6) * _LINE_IN / height_in


def paint(_points: pl.DataFrame, tables: dataset.Tables, _width_in: float) -> Figure:
    """One row a point that failed or was cancelled."""
    bad = bad_points(tables)
    said = verdict(tables["points"])
    if bad.is_empty():
        return style.says(said)
    rows = [_cells(row) for row in bad.head(MOST).to_dicts()]
    height_in = 0.7 + sum((max(map(len, cells)) + 0.6) * _LINE_IN for cells in rows)
    made = Figure(figsize=(style.TWO_COLUMNS_IN, height_in))
    more = f" The first {MOST} of {bad.height} are shown." if bad.height > MOST else ""
    made.text(0.01, 1 - 0.1 / height_in, said + more, va="top", fontsize=8)
    _write(made, rows, height_in)
    return made


def numbers(_points: pl.DataFrame, tables: dataset.Tables) -> pl.DataFrame:
    """A row a point that failed or was cancelled."""
    return bad_points(tables).select("point_id", "config", "status", "reason", "message")


FAMILY = Family(
    "Failures",
    "Points that failed or were cancelled, each with its reason and message.",
    "There is no point.",
    lambda tables: tables["points"],
    paint,
    numbers=numbers,
    place="supplement",
)
