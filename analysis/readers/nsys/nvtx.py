"""NVTX ranges from the rows of NVTX_EVENTS, which come in chunks."""

from __future__ import annotations

import polars as pl

_PUSH_POP, _START_END, _DOMAIN = (59, 70), (60, 71), 75
"""eventType of ranges (without and with a payload), and of what gives a domain its name."""
_KEYS = ["domainId", "process"]


class Marks:
    """Makes ranges of chunks of rows, and keeps what all chunks share.

    `domains`: numbers of the domains of libraries; `strings`: StringIds (id, value). Several threads may add chunks at
    the same time.
    """

    def __init__(self, strings: pl.DataFrame) -> None:
        self.strings = strings
        self.domains: set[int] = set()
        self._named: list[pl.DataFrame] = []
        self._lasts: list[int] = [0]

    def ranges(self, chunk: pl.DataFrame) -> pl.DataFrame:
        """The ranges among these rows; one that was never closed has no end yet.

        `chunk`: rows of NVTX_EVENTS with the fields of export_fields.SOURCES.
        """
        kind = pl.col("eventType")
        isin = kind.is_in([*_PUSH_POP, *_START_END]) & pl.col("start").is_not_null()
        last, by_id, libraries, names, only = chunk.select(
            last=pl.max_horizontal(pl.col("start", "end").max()),
            by_id=pl.col("textId").count() > 0,
            libraries=(pl.col("domainId") != 0).any(),
            names=(kind == _DOMAIN).any(),
            only=isin.all(),
        ).row(0)
        self._lasts.append(last or 0)
        texts = chunk.with_columns(text=self._texts(chunk)) if by_id else chunk
        if libraries:
            self.domains |= {number for number in chunk["domainId"].drop_nulls().unique().to_list() if number}
        if names:
            self._named.append(texts.filter(kind == _DOMAIN).select(*_KEYS, domain="text"))
        style = pl.when(kind.is_in(_PUSH_POP)).then(pl.lit("push_pop")).otherwise(pl.lit("start_end"))
        return (texts if only else texts.filter(isin)).select(
            "process",
            "thread",
            "domainId",
            start_ns="start",
            end_ns="end",
            name="text",
            style=pl.when("across").then(pl.lit("across")).otherwise(style).cast(pl.Categorical()),
        )

    def complete(self, ranges: pl.DataFrame) -> pl.DataFrame:
        """The ranges of all chunks with their domains' names; one that was never closed ends with the last event."""
        found = (
            ranges.with_columns(pl.col("end_ns").fill_null(max(self._lasts)))
            if ranges["end_ns"].has_nulls()
            else ranges
        )
        named = pl.concat(self._named) if self._named else pl.DataFrame()
        if named.is_empty():
            return found.drop("domainId")
        return found.join(named.unique(_KEYS), on=_KEYS, how="left", maintain_order="left")

    def _texts(self, chunk: pl.DataFrame) -> pl.Series:
        """The texts; those given by the id of a string are looked up."""
        strings = self.strings.filter(pl.col("id").is_in(chunk["textId"].unique().implode()))
        looked_up = chunk["textId"].replace_strict(
            strings["id"], strings["value"], default=None, return_dtype=pl.Categorical()
        )
        return chunk.select(pl.coalesce("text", looked_up.alias("by_id"))).to_series()
