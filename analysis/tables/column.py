"""A column of a tidy table, and the columns that many tables share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Column:
    """A column of a table: its type, its meaning with the unit, and the file or table that it comes from."""

    dtype: pl.DataType | type[pl.DataType]
    text: str
    source: str = ""


ID = {"point_id": Column(pl.String, "Id of the point: hash of its settings.", "record.json")}
RANK = {**ID, "rank": Column(pl.Int64, "Global rank.")}
SAMPLE = {
    **ID,
    "look": Column(pl.String, "Run of the point: timed or traced."),
    "host": Column(pl.String, "Host name."),
    "t_ns": Column(pl.Int64, "UTC ns."),
}


def schema(columns: Mapping[str, Column]) -> pl.Schema:
    """Polars schema of a table."""
    return pl.Schema({name: column.dtype for name, column in columns.items()})


def conform(frame: pl.LazyFrame | pl.DataFrame, columns: Mapping[str, Column]) -> pl.LazyFrame:
    """The frame with exactly these columns, in this order and of these types; missing ones are null."""
    lazy = frame.lazy()
    have = lazy.collect_schema()
    same = {name for name, column in columns.items() if have.get(name) == column.dtype}
    if len(same) == len(columns) and have.names() == list(columns):
        return lazy
    return lazy.select(
        pl.col(name)
        if name in same
        else (pl.col(name) if name in have else pl.lit(None)).cast(column.dtype).alias(name)
        for name, column in columns.items()
    )


def empty(columns: Mapping[str, Column]) -> pl.DataFrame:
    """A table of no rows."""
    return pl.DataFrame(schema=schema(columns))
