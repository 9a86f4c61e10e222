"""An Nsight Systems export rewritten as a trace of PyTorch's profiler, for tools that read no other: the same kernels,
copies, calls and ranges, with their times, streams and correlation ids."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Unknown"}
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
HOST = 1
"""The process of calls and ranges; devices are processes of their own."""

_KERNELS = """SELECT s.value AS name, start, end, deviceId AS device, streamId AS stream, correlationId AS correlation
FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName"""
_COPIES = """SELECT start, end, deviceId AS device, streamId AS stream, correlationId AS correlation, bytes,
copyKind AS kind, srcKind AS source, dstKind AS target FROM CUPTI_ACTIVITY_KIND_MEMCPY"""
_SETS = """SELECT start, end, deviceId AS device, streamId AS stream, correlationId AS correlation, bytes
FROM CUPTI_ACTIVITY_KIND_MEMSET"""
_CALLS = """SELECT s.value AS name, start, end, globalTid AS thread, correlationId AS correlation
FROM CUPTI_ACTIVITY_KIND_RUNTIME r JOIN StringIds s ON s.id = r.nameId"""
_RANGES = """SELECT coalesce(text, s.value) AS name, start, end, globalTid AS thread
FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE end IS NOT NULL"""


def write(export: Path, target: Path, rank: int, ranks: int) -> None:
    """The export of a rank as `target`, a .json.gz."""
    with closing(sqlite3.connect(export)) as db:
        db.row_factory = sqlite3.Row
        events = list(_events(db))
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": ranks}, "traceEvents": events}
    with gzip.open(target, "wt") as sink:
        json.dump(trace, sink)


def _events(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    there = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for row in db.execute(_KERNELS):
        yield _on_device(row, "kernel", row["name"])
    if "CUPTI_ACTIVITY_KIND_MEMCPY" in there:
        for row in db.execute(_COPIES):
            ends = f"{MEMORY.get(row['source'], 'Unknown')} -> {MEMORY.get(row['target'], 'Unknown')}"
            yield _on_device(row, "gpu_memcpy", f"Memcpy {COPIES.get(row['kind'], 'Unknown')} ({ends})", row["bytes"])
    if "CUPTI_ACTIVITY_KIND_MEMSET" in there:
        for row in db.execute(_SETS):
            yield _on_device(row, "gpu_memset", "Memset (Device)", row["bytes"])
    for row in db.execute(_CALLS):
        name = row["name"].split("_v")[0]  # cudaLaunchKernel_v7000
        yield _span(row, "cuda_runtime", name, HOST, _thread(row), {"correlation": row["correlation"]})
    for row in db.execute(_RANGES):
        yield _span(row, "user_annotation", row["name"], HOST, _thread(row), {})


def _thread(row: sqlite3.Row) -> int:
    return int(row["thread"]) & 0xFFFFFF


def _span(
    row: sqlite3.Row, category: str, name: str, process: int, thread: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": row["start"] / 1e3, "dur": (row["end"] - row["start"]) / 1e3}
    return {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, **times, "args": args}


def _on_device(row: sqlite3.Row, category: str, name: str, size: int | None = None) -> dict[str, Any]:
    args = {name: row[name] for name in ("device", "stream", "correlation")}
    if size is not None:
        args["bytes"] = size
    return _span(row, category, name, 100 + row["device"], row["stream"], args)
