"""The tables of whatever Nightsweep measures, reads or writes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from nightsweep.analysis.diagnosis.evidence.sources import is_point, is_tables, published_tables
from nightsweep.analysis.ingest import point_tables, trace_tables
from nightsweep.analysis.sweep import dataset
from nightsweep.analysis.sweep.dataset import Tables
from nightsweep.analysis.tables import parquet
from nightsweep.analysis.tables.parquet import StrPath
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.point_folder import record_of
from nightsweep.jobs.record.raw_files import unpacked


@parquet.faults_as_input_errors()
def read(path: StrPath, *others: StrPath) -> Tables:
    """Read the tables of a sweep, a point or traces.

    Args:
        path: results/SWEEP, a published data set, a point's folder, a folder of `nightsweep ingest`, or a trace (an
            nsys export or report, or Kineto's JSON).
        others: traces of the other ranks of the run.

    Returns:
        Polars frames by name: `names()` lists them, `tables["steps"]` is a DataFrame, `tables.scan("steps")` a
        LazyFrame. Their columns, with units, are those of docs/tables.md; times in `_ns` are whole nanoseconds. Those
        of a sweep and of `nightsweep ingest` stay on disk until they are asked for; those of a point and of traces are
        in memory.

    Raises:
        InputError: in one line, where this cannot be read.

    The points of a published data set, and the kernels of a trace:

        >>> import nightsweep
        >>> tables = nightsweep.read("data/h200-2026-11-27")
        >>> tables["points"].filter(point_id="042c2f281434").select("model", "world_size").row(0)
        ('llama-8b', 2)
        >>> trace = nightsweep.read("tests/data/kineto-h200-ddp-r0.json.gz")
        >>> trace["kernels"].height, trace["kernels"].schema["start_ns"]
        (2022, Int64)
    """
    folder, *more = paths = [Path(path), *map(Path, others)]
    for one in paths:
        if not one.exists():
            raise InputError(f"{one}: is not there; expected results/SWEEP, a data set, a point's folder or a trace")
    if more or not folder.is_dir():
        return read_traces(paths)
    if is_tables(folder):
        return Tables(parquet.scan_whole(folder, TRACE_TABLES, "nightsweep ingest"))
    if is_point(folder):
        published = published_tables(folder)
        point_id = record_of(folder).point_id or folder.resolve().name
        return read_point(folder) if published is None else dataset.load(published).of_point(point_id)
    if any((folder / name).exists() for name in ("sweep.json", "manifest.json", "tables")):
        parquet.require(folder / "tables/points.parquet", "expected a sweep's tables; `snakemake tables` writes them")
        return dataset.load(folder / "tables")
    return read_traces(paths)


def read_point(folder: Path) -> Tables:
    """The tables of a point, and those of its trace, as a launch left it."""
    with tempfile.TemporaryDirectory() as scratch, unpacked(folder) as raw:
        own = point_tables.ingest(raw, Path(scratch))
        points = dataset.with_defaults(own["points"])
        return Tables({**own, "points": points, **read_all(Path(scratch) / point_tables.TRACES)})


def read_traces(traces: Sequence[Path]) -> Tables:
    """The tables of traces. Raises InputError where one of them cannot be read; what one lacks is in its `reports`."""
    with tempfile.TemporaryDirectory() as scratch:
        good, problems = trace_tables.write_all(traces, Path(scratch))
        if len(good) < len(traces):
            raise InputError("; ".join(problems))
        return Tables(read_all(Path(scratch)))


def read_all(folder: Path) -> dict[str, pl.DataFrame]:
    """The trace tables of this folder, in memory."""
    return {file.stem: pl.read_parquet(file) for file in sorted(folder.glob("*.parquet")) if file.stem in TRACE_TABLES}
