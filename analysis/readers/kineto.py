"""Traces of the PyTorch profiler (Kineto's JSON, plain or gzipped) as event tables. Times are UTC ns."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl

from analysis import tables
from analysis.event_tables import DEVICES, Trace
from analysis.readers.nsys import fill_process

_KINDS = {
    "kernel": "kernels",
    "gpu_memcpy": "copies",
    "gpu_memset": "memsets",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "user_annotation": "nvtx",
    "cpu_op": "operators",
}
_ON_DEVICE = ("kernels", "copies", "memsets")
_DIRECTION = r"^Memcpy (HtoD|DtoH|DtoD|PtoP)\b"


def read(path: Path) -> Trace:
    """Event tables of a trace, by name of `tables.EVENTS`. ValueError where it is none."""
    trace = _load(path)
    base = int(trace.get("baseTimeNanoseconds") or 0)
    rank = (trace.get("distributedInfo") or {}).get("rank")
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        kind = _KINDS.get(event.get("cat", ""))
        if kind and event.get("ph") == "X":
            events[kind].append(event)
    found = fill_process({kind: _table(kind, events[kind], base, rank) for kind in tables.EVENTS})
    return Trace(found, tables.empty(DEVICES))


def _load(path: Path) -> dict[str, Any]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            trace = json.load(stream)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path}: not a Kineto trace: {error}") from error
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError(f"{path}: not a Kineto trace: it has no traceEvents")
    return trace


def _table(kind: str, events: list[dict[str, Any]], base: int, rank: int | None) -> pl.DataFrame:
    args = [e.get("args") or {} for e in events]

    def column(name: str, values: list[Any], dtype: Any = pl.Int64) -> pl.Series:
        return pl.Series(name, values, dtype=dtype, strict=False)

    frame = pl.DataFrame(
        [
            column("ts", [e["ts"] for e in events], pl.Float64),
            column("dur", [e.get("dur", 0) for e in events], pl.Float64),
            column("name", [e.get("name") for e in events], pl.String),
            *(column(n, [a.get(n) for a in args]) for n in ("correlation", "device", "stream", "bytes")),
            # An event on the device has the device where others have their process.
            column("process", [None if kind in _ON_DEVICE else e.get("pid") for e in events]),
            column("thread", [e.get("tid") for e in events]),
        ]
    )
    start = (pl.col("ts") * 1000).round().cast(pl.Int64) + base
    frame = frame.with_columns(
        start_ns=start,
        end_ns=start + (pl.col("dur") * 1000).round().cast(pl.Int64),
        rank=pl.lit(rank, dtype=pl.Int64),
        direction=pl.col("name").str.extract(_DIRECTION).fill_null("other"),
    )
    return tables.conform(frame, tables.EVENTS[kind]).collect()
