"""The fields that are read of each table of an Nsight Systems export."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True)
class Number:
    """A field of whole numbers or truth values: a column, or what is computed from the columns `needs`."""

    name: str
    dtype: pl.DataType = field(default_factory=pl.Int32)
    expr: pl.Expr | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Text:
    """A field of text with few distinct values, read as categorical."""

    name: str


Field = str | Number | Text
"""A field to read; a name alone is a column of 64-bit numbers."""


def name_of(field: Field) -> str:
    return field if isinstance(field, str) else field.name


def columns_of(field: Field) -> tuple[str, ...]:
    """The columns that a field is read from."""
    return field.needs if isinstance(field, Number) and field.needs else (name_of(field),)


def readable_fields(fields: Sequence[Field], columns: Collection[str]) -> list[Field]:
    """The fields whose columns are all among these."""
    return [field for field in fields if all(name in columns for name in columns_of(field))]


def expressions(fields: Sequence[Field], columns: Collection[str]) -> list[pl.Expr]:
    """The expressions of all fields, in order; null where the export does not have their columns."""
    have = readable_fields(fields, columns)
    return [_value(field, field in have) for field in fields]


def complete(frame: pl.DataFrame, fields: Sequence[Field]) -> pl.DataFrame:
    """All fields, in order, from the frame's columns; no rows of a frame without columns."""
    return frame.select(expressions(fields, frame.columns)).filter(pl.lit(bool(frame.columns)))


def _value(field: Field, there: bool) -> pl.Expr:
    expr = field.expr if isinstance(field, Number) and field.expr is not None else pl.col(name_of(field))
    dtype = field.dtype if isinstance(field, Number) else pl.Categorical() if isinstance(field, Text) else pl.Int64()
    return (expr if there else pl.lit(None)).cast(dtype).alias(name_of(field))


def _product(name: str, *columns: str) -> Number:
    expr = pl.col(columns[0]).cast(pl.Int64)
    for column in columns[1:]:
        expr = expr * pl.col(column)
    return Number(name, pl.Int64(), expr, columns)


def _process_of(column: str) -> Number:
    return Number("process", pl.Int32(), pl.col(column) // 2**24 & 0xFFFFFF, (column,))


_THREAD = Number("thread", pl.Int32(), pl.col("globalTid") & 0xFFFFFF, ("globalTid",))
_SPAN: list[Field] = ["start", "end"]
_DEVICE: list[Field] = [_process_of("globalPid"), "streamId", "deviceId", "correlationId"]
SOURCES: dict[str, tuple[str, list[Field]]] = {
    # The largest first, for the last to be read has nothing beside it.
    "nvtx": (
        "NVTX_EVENTS",
        [
            *_SPAN,
            _process_of("globalTid"),
            _THREAD,
            Number("eventType"),
            Number("across", pl.Boolean(), pl.col("endGlobalTid").is_not_null(), ("endGlobalTid",)),
            "domainId",
            Text("text"),
            "textId",
        ],
    ),
    "kernels": (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        [
            *_SPAN,
            *_DEVICE,
            Number("demangledName"),
            _product("blocks", "gridX", "gridY", "gridZ"),
            _product("threads", "blockX", "blockY", "blockZ"),
            Number("registersPerThread"),
            Number(
                "shared_bytes",
                pl.Int32(),
                pl.col("staticSharedMemory") + pl.col("dynamicSharedMemory"),
                ("staticSharedMemory", "dynamicSharedMemory"),
            ),
            "graphNodeId",
        ],
    ),
    "graphs": ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", [*_SPAN, *_DEVICE, "graphId"]),
    "copies": (
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        [*_SPAN, *_DEVICE, Number("copyKind"), Number("srcKind"), Number("dstKind"), "bytes"],
    ),
    "memsets": ("CUPTI_ACTIVITY_KIND_MEMSET", [*_SPAN, *_DEVICE, "bytes"]),
    "runtime": (
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        [*_SPAN, _process_of("globalTid"), _THREAD, "correlationId", Number("nameId")],
    ),
    "syncs": ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", [*_SPAN, *_DEVICE, Number("syncType")]),
    "allocations": (
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        [
            "start", _process_of("globalPid"), "deviceId", "correlationId", "bytes", Number("memKind"),
            Number("memoryOperationType"),
        ],
    ),
    "counters": ("GPU_METRICS", ["timestamp", "typeId", "metricId", "value"]),
}  # fmt: skip
