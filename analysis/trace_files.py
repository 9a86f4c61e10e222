"""Writes the tables of traces, one Parquet file each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

SLICE_ROWS = 1_000_000


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
    times = [name for name, kind in frame.schema.items() if name.endswith("_ns") and kind == pl.Int64]
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    writer = None
    for part in frame.iter_slices(SLICE_ROWS) if frame.height else [frame]:  # what is converted at once is held twice
        table = part.to_arrow(compat_level=pl.CompatLevel.oldest())
        if writer is None:
            writer = pq.ParquetWriter(
                scratch,
                table.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in frame.columns if name not in times],
                column_encoding=dict.fromkeys(times, "DELTA_BINARY_PACKED"),
                write_statistics=False,
                store_schema=False,
            )
        writer.write_table(table.cast(writer.schema))
    assert writer is not None
    writer.close()
    scratch.replace(path)


def sink(frame: pl.LazyFrame, path: Path) -> None:
    """A table that may be larger than memory."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    frame.sink_parquet(scratch, compression="zstd", compression_level=1)
    scratch.replace(path)
