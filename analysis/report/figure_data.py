"""The numbers behind each figure, and how a page holds them: as a link to CSV whose data is in the link."""

from __future__ import annotations

import polars as pl
from polars import selectors

from nightsweep.analysis.figures.family import Family
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.tables.csv_cells import without_formulas


def frame(family: Family, tables: dataset.Tables) -> pl.DataFrame | None:
    """The numbers that a figure shows, also of configurations that it had no room for; None where it has none."""
    points = family.points(tables)
    if points.is_empty():
        return None
    found = round_columns(family.numbers(points, tables))
    return found if found.height else None


def round_columns(rows: pl.DataFrame) -> pl.DataFrame:
    """Without the columns that tell nothing, and to seven digits: more are not measured, and a mean's last ones hang on
    the order in which it was summed up."""
    return rows.select(column for column in rows.get_columns() if column.null_count() < rows.height).with_columns(
        selectors.float().round_sig_figs(7)
    )


_ENCODED = str.maketrans({character: f"%{ord(character):02X}" for character in "%#\n\r\t\"'<>&"})


def as_csv(rows: pl.DataFrame) -> str:
    return rows.with_columns(without_formulas(rows.schema)).write_csv()


def link(rows: pl.DataFrame) -> str:
    """A URL that is a CSV file. Of all characters only those are encoded that a browser would drop or cut at, or HTML
    would write longer, so that the page's source can be read, and searched."""
    return "data:text/csv;charset=utf-8," + as_csv(rows).translate(_ENCODED)
