"""Texts in CSV: a spreadsheet computes cells that begin with =, +, - or @, also those of strangers."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

_FORMULA = r"^\s*[=+\-@]|^[\t\r]"


def without_formulas(kinds: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    """The columns of text, of these types, with an apostrophe before what would be a formula."""
    texts = [pl.col(name).cast(pl.String) for name, kind in kinds.items() if kind in (pl.String, pl.Categorical)]
    return [text.str.replace(_FORMULA, "'$0") for text in texts]
