"""A column of a tidy table, and the columns that many tables share."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Column:
    """One column: its type, what it means (with its unit), and the raw file it comes from."""

    dtype: pl.DataType | type[pl.DataType]
    text: str
    source: str = ""


ID = {"point_id": Column(pl.String, "Id of the point: hash of its settings.", "record.json")}
RANK = {**ID, "rank": Column(pl.Int64, "Global rank.")}
SAMPLE = {
    **ID,
    "look": Column(pl.String, "timed or traced."),
    "host": Column(pl.String, "Host name."),
    "t_ns": Column(pl.Int64, "UTC ns."),
}
