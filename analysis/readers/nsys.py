"""Nsight Systems exports (SQLite, or a folder of one Parquet file a table) as event tables.

The export's schema moves from version to version: columns are read by name, added ones may stand anywhere, and a table
without rows is not written at all. Times are moved to UTC where the export says when its session began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from adbc_driver_sqlite import dbapi

from analysis import tables

_Load = Callable[[str, list[str]], pl.DataFrame]
"""Gives some columns of one table."""

_SOURCES = {
    "kernels": "CUPTI_ACTIVITY_KIND_KERNEL",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "memsets": "CUPTI_ACTIVITY_KIND_MEMSET",
    "runtime": "CUPTI_ACTIVITY_KIND_RUNTIME",
    "nvtx": "NVTX_EVENTS",
}
_STRINGS, _SESSION = "StringIds", "TARGET_INFO_SESSION_START_TIME"

_TYPES: dict[str, pl.DataType | type[pl.DataType]] = {"text": pl.String, "value": pl.String}
_COLUMNS = {
    "kernels": ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName", "shortName"],
    "copies": ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind"],
    "memsets": ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes"],
    "runtime": ["start", "end", "globalTid", "correlationId", "nameId"],
    "nvtx": ["start", "end", "globalTid", "eventType", "text", "textId"],
}

_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_RANGES = (59, 60)  # push/pop and start/end; the rest are marks, categories and names


def read(path: Path) -> dict[str, pl.DataFrame]:
    """Event tables of an export, by name of `tables.EVENTS`. ValueError where it is none."""
    return _read_folder(path) if path.is_dir() else _read_sqlite(path)


def _read_folder(path: Path) -> dict[str, pl.DataFrame]:
    files = {f.stem: f for f in sorted(path.glob("*.parquet"))}

    def load(table: str, names: list[str]) -> pl.DataFrame:
        return pl.scan_parquet(files[table]).select(names).collect()

    try:
        columns = {t: set(pl.read_parquet_schema(f)) for t, f in files.items() if t in _wanted()}
        return _events(path, columns, load)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ValueError(f"{path}: not an Nsight Systems export: {str(error).splitlines()[0]}") from error


def _read_sqlite(path: Path) -> dict[str, pl.DataFrame]:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with dbapi.connect(f"{path.absolute().as_uri()}?mode=ro") as connection, connection.cursor() as cursor:
            columns = _sqlite_columns(cursor)

            def load(table: str, names: list[str]) -> pl.DataFrame:
                return _query(cursor, f'SELECT {", ".join(map(_selected, names))} FROM "{table}"')

            return _events(path, columns, load)
    except dbapi.Error as error:
        raise ValueError(f"{path}: not an Nsight Systems export: {str(error).splitlines()[0]}") from error


def _query(cursor: Any, sql: str) -> pl.DataFrame:
    cursor.execute(sql)
    return pl.DataFrame(cursor.fetch_arrow())


def _selected(name: str) -> str:
    # The driver takes a column's type from its first rows: nulls there would make a text column one of numbers.
    return f"""coalesce("{name}", '') AS "{name}\"""" if name in _TYPES else f'"{name}"'


def _sqlite_columns(cursor: Any) -> dict[str, set[str]]:
    sql = "SELECT m.name AS t, c.name AS c FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    rows = _query(cursor, sql)
    columns: dict[str, set[str]] = {}
    for table, column in rows.iter_rows():
        columns.setdefault(table, set()).add(column)
    return columns


def _wanted() -> set[str]:
    return {*_SOURCES.values(), _STRINGS, _SESSION}


def _events(path: Path, columns: Mapping[str, set[str]], load: _Load) -> dict[str, pl.DataFrame]:
    if not any(t in columns for t in _wanted()) and not any(re.match("META_DATA_|TARGET_INFO_", t) for t in columns):
        raise ValueError(f"{path}: not an Nsight Systems export: it has none of its tables")

    def take(table: str, names: list[str]) -> pl.DataFrame:
        have = [n for n in names if n in columns.get(table, ())]
        frame = load(table, have) if have else pl.DataFrame()
        return frame.select(
            (pl.col(n) if n in have else pl.lit(None)).cast(_TYPES.get(n, pl.Int64)).alias(n) for n in names
        ).filter(pl.lit(bool(have)))

    strings = take(_STRINGS, ["id", "value"]).unique("id")
    epoch = take(_SESSION, ["utcEpochNs"])["utcEpochNs"].max() or 0
    raw = {kind: take(table, _COLUMNS[kind]) for kind, table in _SOURCES.items()}
    named = _named(raw, strings)
    shift = (pl.col("start_ns", "end_ns") + epoch,)
    events = {k: tables.conform(f, tables.EVENTS[k]).with_columns(*shift).collect() for k, f in named.items()}
    return fill_process({kind: tables.empty(columns) for kind, columns in tables.EVENTS.items()} | events)


def _named(raw: Mapping[str, pl.DataFrame], strings: pl.DataFrame) -> dict[str, pl.DataFrame]:
    def name(frame: pl.DataFrame, key: str) -> pl.DataFrame:
        ids = strings.rename({"id": key, "value": "name_" + key})
        return frame.join(ids, on=key, how="left", maintain_order="left")

    kernels = name(name(raw["kernels"], "demangledName"), "shortName")
    nvtx = name(raw["nvtx"].filter(pl.col("eventType").is_in(_RANGES), pl.col("end").is_not_null()), "textId")
    text = pl.when(pl.col("text") != "").then("text")
    kind = pl.col("copyKind").replace_strict(_DIRECTIONS, default="other", return_dtype=pl.String)
    return {
        "kernels": _device(kernels.with_columns(name=pl.coalesce("name_demangledName", "name_shortName"))),
        "copies": _device(raw["copies"].with_columns(direction=kind, name="Memcpy " + kind)),
        "memsets": _device(raw["memsets"].with_columns(name=pl.lit("Memset"))),
        "runtime": _host(name(raw["runtime"], "nameId").with_columns(name=pl.col("name_nameId"))),
        "nvtx": _host(nvtx.with_columns(name=pl.coalesce(text, pl.col("name_textId")))),
    }


def _device(frame: pl.DataFrame) -> pl.DataFrame:
    new = {"start": "start_ns", "end": "end_ns", "deviceId": "device", "streamId": "stream"}
    return frame.rename(new | {"correlationId": "correlation"}).with_columns(process=_process("globalPid"))


def _host(frame: pl.DataFrame) -> pl.DataFrame:
    new = {"start": "start_ns", "end": "end_ns", "correlationId": "correlation"}
    thread = pl.col("globalTid") % 0x1000000
    # The API's version is no part of its name: cudaLaunchKernel_v7000.
    plain = pl.col("name").str.replace(r"^(cu\w+?)_v\d+$", "$1")
    return frame.rename(new, strict=False).with_columns(process=_process("globalTid"), thread=thread, name=plain)


def _process(column: str) -> pl.Expr:
    return (pl.col(column) // 0x1000000) % 0x1000000


def fill_process(events: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Events on the device with the launching process where the trace leaves it out and only one made calls."""
    callers = events["runtime"]["process"].drop_nulls().unique()
    if len(callers) != 1:
        return events
    fill = pl.col("process").fill_null(callers[0])
    return events | {k: events[k].with_columns(fill) for k in ("kernels", "copies", "memsets")}
