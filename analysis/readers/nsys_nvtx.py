"""NVTX ranges out of the rows of NVTX_EVENTS, which come in parts."""

from __future__ import annotations

import polars as pl

from analysis.readers.nsys_fields import TEXT_BY_ID, THREAD, process_of

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
        """The ranges among the rows, with the fields of `nsys_fields.nvtx_fields`. One that was never closed has no
        end yet."""
        kind = pl.col("kind") & 0xFF
        part = part.with_columns(end=pl.col("start") + pl.col("took"))
        told = part.with_columns(text=self._texts(part["text"]))
        last = part.select(pl.max_horizontal(pl.col("start").max(), pl.col("end").max())).item()
        self._lasts.append(last or 0)
        self.domains |= {number for number in (part["kind"].drop_nulls().unique() // 2**9).to_list() if number}
        isin = told.select(kind.is_in([*_PUSH_POP, *_START_END]) & pl.col("start").is_not_null()).to_series()
        ranges = told if isin.all() else told.filter(isin)
        style = pl.when(kind.is_in(_PUSH_POP)).then(pl.lit("push_pop")).otherwise(pl.lit("start_end"))
        across = pl.when(pl.col("kind") & 0x100 != 0).then(pl.lit("across")).otherwise(style)
        process, domain = process_of("globalTid").expr, pl.col("kind") // 2**9
        assert process is not None and THREAD.expr is not None
        self._named.append(told.filter(kind == _DOMAIN).select(domainId=domain, process=process, domain="text"))
        return ranges.select(
            start_ns="start",
            end_ns="end",
            name="text",
            process=process.cast(pl.Int32),
            thread=THREAD.expr.cast(pl.Int32),
            style=across.cast(pl.Categorical()),
            domainId=domain,
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
        known = named.unique(_KEYS).with_columns(pl.col("process").cast(pl.Int32))
        return found.join(known, on=_KEYS, how="left", maintain_order="left")

    def _texts(self, texts: pl.Series) -> pl.Series:
        """Texts, those given by the number of a string looked up."""
        words = texts.unique()
        by_id = words.filter(words.cast(pl.String).str.starts_with(TEXT_BY_ID).fill_null(False))
        if by_id.is_empty():
            return texts
        ids = pl.DataFrame({"id": by_id.cast(pl.String).str.strip_prefix(TEXT_BY_ID).cast(pl.Int64)})
        values = ids.join(self.strings, on="id", how="left", maintain_order="left")["value"].cast(pl.Categorical())
        return texts.replace_strict(by_id, values, default=texts, return_dtype=pl.Categorical())
