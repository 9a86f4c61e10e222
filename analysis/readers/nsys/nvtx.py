"""NVTX ranges out of the rows of NVTX_EVENTS, which come in parts."""

from __future__ import annotations

import polars as pl

_PUSH_POP, _START_END, _DOMAIN = (59, 70), (60, 71), 75
"""eventType of ranges (without and with a payload), and of what gives a domain its name."""
_KEYS = ["domainId", "process"]


class Marks:
    """What the parts have in common. `domains`: numbers of the domains of libraries; `strings`: StringIds (id, value).

    Parts may come at the same time, from several threads.
    """

    def __init__(self, strings: pl.DataFrame) -> None:
        self.strings = strings
        self.domains: set[int] = set()
        self._named: list[pl.DataFrame] = []
        self._lasts: list[int] = [0]

    def ranges(self, part: pl.DataFrame) -> pl.DataFrame:
        """The ranges among the rows, with the fields of `nsys_fields`. One that was never closed has no end yet."""
        kind = pl.col("eventType")
        isin = kind.is_in([*_PUSH_POP, *_START_END]) & pl.col("start").is_not_null()
        last, by_id, own, names, only = part.select(
            last=pl.max_horizontal(pl.col("start", "end").max()),
            by_id=pl.col("textId").count() > 0,
            own=(pl.col("domainId") != 0).any(),
            names=(kind == _DOMAIN).any(),
            only=isin.all(),
        ).row(0)
        self._lasts.append(last or 0)
        told = part.with_columns(text=self._texts(part)) if by_id else part
        if own:
            self.domains |= {number for number in part["domainId"].drop_nulls().unique().to_list() if number}
        if names:
            self._named.append(told.filter(kind == _DOMAIN).select(*_KEYS, domain="text"))
        style = pl.when(kind.is_in(_PUSH_POP)).then(pl.lit("push_pop")).otherwise(pl.lit("start_end"))
        return (told if only else told.filter(isin)).select(
            "process",
            "thread",
            "domainId",
            start_ns="start",
            end_ns="end",
            name="text",
            style=pl.when("across").then(pl.lit("across")).otherwise(style).cast(pl.Categorical()),
        )

    def completed(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """All parts' ranges, with the names of their domains; one that was never closed ends with the last event."""
        found = (
            ranges.with_columns(pl.col("end_ns").fill_null(max(self._lasts)))
            if ranges["end_ns"].has_nulls()
            else ranges
        )
        named = pl.concat(self._named) if self._named else pl.DataFrame()
        if named.is_empty():
            return found.drop("domainId")
        return found.join(named.unique(_KEYS), on=_KEYS, how="left", maintain_order="left")

    def _texts(self, part: pl.DataFrame) -> pl.Series:
        """Texts, those given by the number of a string looked up."""
        told = self.strings.filter(pl.col("id").is_in(part["textId"].unique().implode()))
        looked_up = part["textId"].replace_strict(
            told["id"], told["value"], default=None, return_dtype=pl.Categorical()
        )
        return part.select(pl.coalesce("text", looked_up.alias("by_id"))).to_series()
