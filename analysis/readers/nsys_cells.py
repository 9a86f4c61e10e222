"""Fields of an export's tables, and how several of them share a cell of SQLite.

SQLite hands over one cell at a time, and a cell costs as much as about five operations that pack it. So whole numbers
that are bounded by their nature share one where a table has many of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

CELL_BITS = 63


@dataclass(frozen=True)
class Bits:
    """Whole numbers of so many bits at most, all ones standing for null: a column, or what is computed from some.

    `sql` and `expr` say the same to SQLite and to Polars, from the columns `needs`. `checked`: the numbers are only
    mostly so small; where one is not, all are read again in full. With 64 bits it has a cell of its own and no null.
    """

    name: str
    bits: int
    sql: str = ""
    expr: pl.Expr | None = None
    needs: tuple[str, ...] = ()
    checked: bool = False

    @property
    def cell(self) -> str:
        """Its bits, without those of a number that is too large: such a one shows as at least half the room."""
        room = (1 << self.bits) - 1
        value = f"min({in_sql(self)}, {room - 1})" if self.checked else in_sql(self)
        return f"(coalesce({value}, {room}) & {room})"


@dataclass(frozen=True)
class Text:
    """A column of text with few distinct values, read as categorical, or what is computed from some."""

    name: str
    sql: str = ""
    expr: pl.Expr | None = None
    needs: tuple[str, ...] = ()


Field = str | Bits | Text
"""What to read: a column of 64-bit numbers where it is given by its name alone."""


def name_of(field: Field) -> str:
    return field if isinstance(field, str) else field.name


def columns_of(field: Field) -> tuple[str, ...]:
    return (name_of(field),) if isinstance(field, str) or not field.needs else field.needs


def in_sql(field: Field) -> str:
    return f'"{name_of(field)}"' if isinstance(field, str) or not field.sql else field.sql


def in_polars(field: Field) -> pl.Expr:
    computed = None if isinstance(field, str) else field.expr
    return (pl.col(name_of(field)) if computed is None else computed).alias(name_of(field))


def dtype_of(field: Field) -> pl.DataType:
    if isinstance(field, Text):
        return pl.Categorical()
    return pl.Int32() if isinstance(field, Bits) and field.bits < 32 and not field.checked else pl.Int64()


def readable(fields: Sequence[Field], columns: Collection[str]) -> list[Field]:
    """Fields whose columns are there."""
    return [field for field in fields if all(name in columns for name in columns_of(field))]


def completed(frame: pl.DataFrame, fields: Sequence[Field]) -> pl.DataFrame:
    """The frame with all fields, in order: null where the export has no such column."""
    have = set(frame.columns)
    return frame.select(
        (pl.col(name_of(f)) if name_of(f) in have else pl.lit(None)).cast(dtype_of(f)).alias(name_of(f)) for f in fields
    ).filter(pl.lit(bool(have)))


def beyond(frame: pl.DataFrame, fields: Sequence[Field]) -> list[str]:
    """Names of the checked fields of which some number was too large for its bits."""
    checked = {field.name: field.bits for field in fields if isinstance(field, Bits) and field.checked}
    most = {name: frame[name].max() for name in checked if frame.height}
    return [n for n, value in most.items() if isinstance(value, int) and value >= 1 << (checked[n] - 1)]


Cell = tuple[str, list[Field]]
"""An SQL expression, and the fields that are in it, the last in the lowest bits."""


def packed(fields: Sequence[Field]) -> list[Cell]:
    """The fields in as few cells as hold them, in their order."""
    groups: list[list[Field]] = []
    room = 0
    for field in fields:
        bits = field.bits if isinstance(field, Bits) else CELL_BITS + 1
        if bits > room:
            groups.append([])
            room = CELL_BITS if bits <= CELL_BITS else 0
        groups[-1].append(field)
        room -= min(bits, room)
    return [(f'{_sql(group)} AS "c{place}"', group) for place, group in enumerate(groups)]


def _sql(group: Sequence[Field]) -> str:
    parts, shift = [], 0
    for field in reversed(group):
        if isinstance(field, Text):
            # The driver takes a column's type from its first rows: nulls there would make it one of numbers.
            return f"coalesce({in_sql(field)}, '')"
        if isinstance(field, str) or field.bits > CELL_BITS:
            return in_sql(field)
        parts.append(f"({field.cell} << {shift})" if shift else field.cell)
        shift += field.bits
    return " | ".join(parts)


def unpacked(frame: pl.DataFrame, cells: Sequence[Cell]) -> pl.DataFrame:
    """Cells as the fields that are in them."""
    out: list[pl.Series] = []
    for place, (_, group) in enumerate(cells):
        cell = frame[f"c{place}"]
        if not isinstance(group[0], Bits) or group[0].bits > CELL_BITS:
            out.append(cell.cast(dtype_of(group[0])).alias(name_of(group[0])))
            continue
        numbers, shift = cell.cast(pl.Int64).to_numpy(), 0
        for field in reversed(group):
            assert isinstance(field, Bits)
            out.append(_field(field, (numbers >> shift) & ((1 << field.bits) - 1)))
            shift += field.bits
    return pl.DataFrame(out)


def _field(field: Bits, values: npt.NDArray[np.int64]) -> pl.Series:
    empty = values == (1 << field.bits) - 1
    column = pl.Series(field.name, values).cast(dtype_of(field))
    return column.set(pl.Series(empty), None) if empty.any() else column
