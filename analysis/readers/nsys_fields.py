"""What is read of each table of an Nsight Systems export, in the order of the cells that it shares."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from analysis.readers.nsys_cells import Bits, Field, Text

TEXT_BY_ID = "\x01"
"""Before the number of a string that stands for a text."""


def _product(name: str, bits: int, *columns: str) -> Bits:
    sql = " * ".join(f'"{c}"' for c in columns)
    expr = pl.col(columns[0]).cast(pl.Int64)
    for column in columns[1:]:
        expr = expr * pl.col(column)
    return Bits(name, bits, sql, expr, columns, checked=True)


def process_of(column: str) -> Bits:
    return Bits("process", 24, f'("{column}" >> 24) & 16777215', pl.col(column) // 2**24 & 0xFFFFFF, (column,))


def _given(column: str) -> Bits:
    """1 where there is a value, else 0."""
    return Bits(f"{column} given", 2, f'"{column}" IS NOT NULL', pl.col(column).is_not_null().cast(pl.Int32), (column,))


# An hour fits into 42 bits of ns; there is next to nothing on a GPU that takes longer, but a range may.
_TOOK = Bits("took", 42, '"end" - "start"', pl.col("end") - pl.col("start"), ("start", "end"), checked=True)
THREAD = Bits("thread", 24, '"globalTid" & 16777215', pl.col("globalTid") & 0xFFFFFF, ("globalTid",))
_DEVICE: list[Field] = [process_of("globalPid"), Bits("streamId", 32), Bits("deviceId", 7, checked=True)]
_CORRELATION = Bits("correlationId", 32)
SOURCES: dict[str, tuple[str, list[Field]]] = {
    # The largest first, for the last to be read has nothing beside it.
    "nvtx": ("NVTX_EVENTS", ["start", "globalTid"]),  # and what nvtx_fields adds
    "kernels": (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        [
            "start",
            _TOOK,
            Bits(
                "shared_bytes",
                20,
                '"staticSharedMemory" + "dynamicSharedMemory"',
                pl.col("staticSharedMemory") + pl.col("dynamicSharedMemory"),
                ("staticSharedMemory", "dynamicSharedMemory"),
            ),
            *_DEVICE,
            _CORRELATION,
            Bits("demangledName", 31),
            _product("blocks", 38, "gridX", "gridY", "gridZ"),
            _product("threads", 12, "blockX", "blockY", "blockZ"),
            Bits("registersPerThread", 10),
            _given("graphNodeId"),
        ],
    ),
    "graphs": ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ["start", _TOOK, *_DEVICE, _CORRELATION, "graphId"]),
    "copies": (
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        [
            "start", _TOOK, Bits("copyKind", 7), Bits("srcKind", 7), Bits("dstKind", 7), *_DEVICE, _CORRELATION,
            "bytes",
        ],
    ),
    "memsets": ("CUPTI_ACTIVITY_KIND_MEMSET", ["start", _TOOK, *_DEVICE, _CORRELATION, "bytes"]),
    "runtime": (
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        ["start", _TOOK, process_of("globalTid"), THREAD, _CORRELATION, Bits("nameId", 31)],
    ),
    "syncs": ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", ["start", _TOOK, Bits("syncType", 8), *_DEVICE, _CORRELATION]),
    "allocations": (
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        [
            "start", process_of("globalPid"), Bits("deviceId", 16), _CORRELATION, "bytes", Bits("memKind", 8),
            Bits("memoryOperationType", 8),
        ],
    ),
    "counters": ("GPU_METRICS", ["timestamp", "typeId", "metricId", "value"]),
}  # fmt: skip


def nvtx_fields(columns: Collection[str]) -> list[Field]:
    """Two more cells: `took` with `kind` (eventType, 1 << 8 for a range that ends on another thread, domain << 9), and
    the text or the number of it."""
    sql, expr = ['"eventType"'], pl.col("eventType").cast(pl.Int64)
    needs = ["eventType"]
    if "endGlobalTid" in columns:
        sql.append('(("endGlobalTid" IS NOT NULL) << 8)')
        expr = expr + pl.col("endGlobalTid").is_not_null().cast(pl.Int64) * 2**8
        needs.append("endGlobalTid")
    if "domainId" in columns:
        sql.append('(coalesce("domainId", 0) << 9)')
        expr = expr + pl.col("domainId").cast(pl.Int64).fill_null(0) * 2**9
        needs.append("domainId")
    took = replace(_TOOK, bits=40)  # a quarter of an hour
    kind = Bits("kind", 23, " | ".join(sql), expr, tuple(needs), checked=True)
    by_id = f"""coalesce("text", char({ord(TEXT_BY_ID)}) || "textId")"""
    either = pl.coalesce("text", pl.format(TEXT_BY_ID + "{}", "textId"))
    both = "textId" in columns
    return [took, kind, Text("text", by_id, either, ("text", "textId")) if both else Text("text")]
