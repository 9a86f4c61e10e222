"""Writes the tables of traces, one Parquet file each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq


def write(frames: Mapping[str, pl.DataFrame], out: Path) -> None:
    """OUT/NAME.parquet for each table."""
    out.mkdir(parents=True, exist_ok=True)
    largest = sorted(frames, key=lambda name: -frames[name].height)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda name: write_one(frames[name], out / f"{name}.parquet"), largest))


def write_one(frame: pl.DataFrame, path: Path) -> None:
    """One table. Times grow by little from row to row, and are small as differences; text is a dictionary already.

    Without Arrow's schema in the file, categorical columns come back as what they stand for: text.
    """
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    times = [name for name, kind in frame.schema.items() if name.endswith("_ns") and kind == pl.Int64]
    rest = [name for name in frame.columns if name not in times]
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(
        table,
        scratch,
        compression="zstd",
        compression_level=1,
        use_dictionary=rest,
        column_encoding=dict.fromkeys(times, "DELTA_BINARY_PACKED"),
        store_schema=False,
    )
    scratch.replace(path)


def sink(frame: pl.LazyFrame, path: Path) -> None:
    """A table that may be larger than memory."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    frame.sink_parquet(scratch, compression="zstd", compression_level=1)
    scratch.replace(path)
