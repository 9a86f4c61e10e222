"""`nightsweep ingest TRACE... --out DIR`: traces of any origin to tables, one Parquet file each.

A TRACE is an Nsight Systems export (SQLite, or a folder of Parquet files), a report (.nsys-rep, exported by the nsys on
the PATH), or a trace of PyTorch's profiler (.json, .json.gz). Unless they are small, every file is read by a process of
its own, so that ranks are read at the same time and the memory of one is free before the next begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from analysis.ingest import engine
from analysis.metrics.ranks import all_ranks
from analysis.metrics.ranks import side_by_side as ranks
from analysis.sweep.labels import counted
from analysis.tables import files as trace_files
from analysis.tables.traces import TRACE_TABLES
from jobs.telemetry.trace.nsys import BLOBS

EXIT_PARTIAL, EXIT_WRONG = 1, 2
_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's mallopt."""
LARGE_BYTES = 64 << 20
"""Less in all is read sooner than a process has started."""


@dataclass(frozen=True)
class Job:
    """A file, and the folder for its tables; whether it is the only one."""

    trace: Path
    folder: Path
    alone: bool


@dataclass(frozen=True)
class Part:
    """What became of one file. `ranks`: below 0 where the file does not tell them."""

    folder: Path
    ranks: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    failed: str | None = None


def ingest(traces: Sequence[Path], out: Path) -> int:
    """Write the tables; the exit status: 0, 1 where something could not be read, 2 where nothing could."""
    if out.exists() and not out.is_dir():
        print(f"nightsweep ingest: {out}: is no folder; a folder to write tables to was expected", file=sys.stderr)
        return EXIT_WRONG
    good, lines = write_all(traces, out)
    for line in lines:
        print(f"nightsweep ingest: {line}", file=sys.stderr)
    if not good:
        return EXIT_WRONG
    count = sum(len(part.ranks) for part in good)
    print(f"{out}: {counted(len(TRACE_TABLES), 'table')} of {counted(count, 'rank')}")
    return EXIT_PARTIAL if lines else 0


def few_arenas() -> None:
    """Let threads share what each has freed: with a heap for each thread, as glibc has it, a large trace takes up to a
    fifth more memory, in a time that is not told apart. Other C libraries have no such setting."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, os.cpu_count() or 1)


def write_all(traces: Sequence[Path], out: Path) -> tuple[list[Part], list[str]]:
    """Write the tables of all traces that can be read: these, and what could not be read, a line each. Of none there
    are no tables."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".parts-") as scratch:
        jobs = [Job(trace, Path(scratch) / str(place), len(traces) == 1) for place, trace in enumerate(traces)]
        large = sum(size(trace) for trace in traces) >= LARGE_BYTES
        parts = ranks.each(jobs, one, workers=(os.cpu_count() or 1) if large else 1)
        good = [part for part in parts if part.failed is None]
        if good:
            join(good, out)
    return good, [line for part in parts for line in ([part.failed] if part.failed else part.problems)]


def size(trace: Path) -> int:
    """Bytes of a file, or of all in a folder."""
    files = trace.rglob("*") if trace.is_dir() else [trace]
    return sum(path.stat().st_size for path in files if path.is_file())


def one(job: Job) -> Part:
    """The tables of a file, in a folder."""
    few_arenas()
    trace, folder = job.trace, job.folder
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = exported(trace, Path(scratch)) if trace.suffix == ".nsys-rep" else trace
            with trace_files.Writer(folder) as files:
                for frames in engine.analysed(path, trace.name, job.alone):
                    reports = frames.get("reports")
                    files.add(frames)
    except (ValueError, OSError) as error:
        return Part(folder, failed=" ".join(str(error).split()))
    except pl.exceptions.PolarsError as error:  # tables whose columns are not what their names say
        return Part(folder, failed=f"{trace}: cannot be made sense of: {' '.join(str(error).split())[:200]}")
    assert reports is not None  # they come with the last rank
    problems = tuple(f"{trace}: {line}" for line in (reports["problems"][0] if reports.height else []))
    return Part(folder, tuple(reports["rank"].to_list()), problems)


def exported(report: Path, scratch: Path) -> Path:
    """A report as a folder of Parquet files. Raises ValueError where that cannot be had."""
    if shutil.which("nsys") is None:
        raise ValueError(
            f"{report}: is a report, and there is no nsys on the PATH to export it; an export was expected"
        )
    target = scratch / "export"
    command = ["nsys", "export", "--type=parquetdir", "-o", str(target), str(report)]
    done = subprocess.run([*command, BLOBS], capture_output=True, text=True, errors="replace")
    if done.returncode and BLOBS in done.stdout + done.stderr:  # an nsys that does not know it, such as 2023.4
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode or not target.is_dir():
        told = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ValueError(f"{report}: nsys cannot export it: {told[-1].strip() if told else 'it says nothing'}")
    return target


def join(parts: Sequence[Part], out: Path) -> None:
    """All parts' tables as one table each, on one clock. Ranks that files do not tell get the numbers that are left."""
    numbers = numbered(parts)
    calls = [read(part, "collectives", names).collect() for part, names in zip(parts, numbers, strict=True)]
    offsets = all_ranks.clocks(calls)
    by = offsets["offset_ns"].fill_null(0).to_list() if offsets.height else [0] * len(parts)
    for name in TRACE_TABLES.keys() - set(all_ranks.NAMES):
        frames = [
            all_ranks.moved(read(part, name, names), each) for part, names, each in zip(parts, numbers, by, strict=True)
        ]
        if len(parts) == 1 and all(old == new for old, new in numbers[0].items()):
            (parts[0].folder / f"{name}.parquet").replace(out / f"{name}.parquet")
        else:
            trace_files.sink(pl.concat(frames), out / f"{name}.parquet")
    aligned = [all_ranks.moved(frame.lazy(), each).collect() for frame, each in zip(calls, by, strict=True)]

    def events_of(rank: int) -> dict[str, pl.DataFrame]:
        kinds = all_ranks.NEEDED
        return {k: pl.scan_parquet(out / f"{k}.parquet").filter(pl.col("rank") == rank).collect() for k in kinds}

    found = all_ranks.together(aligned, events_of)
    trace_files.write(found | {"file_clocks": offsets}, out)


def read(part: Part, name: str, ranks: Mapping[int, int]) -> pl.LazyFrame:
    """A table of a part, under its ranks' numbers."""
    return pl.scan_parquet(part.folder / f"{name}.parquet").with_columns(pl.col("rank").replace(ranks))


def numbered(parts: Sequence[Part]) -> list[dict[int, int]]:
    """For each part, its ranks' numbers: told ones stay, unless two files tell the same."""
    taken: set[int] = set()
    out: list[dict[int, int]] = []
    for part in parts:
        told = {rank: rank for rank in part.ranks if rank >= 0 and rank not in taken}
        taken |= set(told)
        out.append(told)
    for part, known in zip(parts, out, strict=True):
        for rank in part.ranks:
            if rank not in known:
                free = next(number for number in range(len(taken) + 1) if number not in taken)
                known[rank] = free
                taken.add(free)
    return out
