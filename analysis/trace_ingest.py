"""`nightsweep ingest TRACE... --out DIR`: traces of any origin to tables, one Parquet file each.

A TRACE is an Nsight Systems export (SQLite, or a folder of Parquet files), a report (.nsys-rep, exported by the nsys on
the PATH), or a trace of PyTorch's profiler (.json, .json.gz). Every file is read by a process of its own, so that ranks
are read at the same time and the memory of one is free before the next begins.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from analysis import engine, trace_files
from analysis.trace_tables import TRACE_TABLES
from analysis.words import counted

EXIT_PARTIAL, EXIT_WRONG = 1, 2


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
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".parts-") as scratch:
        jobs = [(trace, Path(scratch) / str(place)) for place, trace in enumerate(traces)]
        parts = [one(*jobs[0])] if len(jobs) == 1 else several(jobs)
        for part in parts:
            for line in [part.failed] if part.failed else part.problems:
                print(f"nightsweep ingest: {line}", file=sys.stderr)
        good = [part for part in parts if part.failed is None]
        if not good:
            return EXIT_WRONG
        join(good, out)
    ranks = sum(len(part.ranks) for part in good)
    print(f"{out}: {counted(len(TRACE_TABLES), 'table')} of {counted(ranks, 'rank')}")
    return EXIT_PARTIAL if len(good) < len(parts) or any(part.problems for part in good) else 0


def several(jobs: Sequence[tuple[Path, Path]]) -> list[Part]:
    """Every file in a process of its own: polars' threads do not outlive a fork, so processes start anew."""
    workers = min(len(jobs), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        return list(pool.map(one, *zip(*jobs, strict=True)))


def one(trace: Path, folder: Path) -> Part:
    """The tables of one file, in a folder."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = exported(trace, Path(scratch)) if trace.suffix == ".nsys-rep" else trace
            frames = engine.analysed(path, trace.name)
    except (ValueError, OSError) as error:
        return Part(folder, failed=" ".join(str(error).split()))
    trace_files.write(frames, folder)
    reports = frames["reports"]
    problems = tuple(f"{trace}: {line}" for line in (reports["problems"][0] if reports.height else []))
    return Part(folder, tuple(reports["rank"].to_list()), problems)


def exported(report: Path, scratch: Path) -> Path:
    """A report as a folder of Parquet files. Raises ValueError where that cannot be had."""
    if shutil.which("nsys") is None:
        raise ValueError(
            f"{report}: is a report, and there is no nsys on the PATH to export it; an export was expected"
        )
    target = scratch / "export"
    command = ["nsys", "export", "--type=parquetdir", "--include-blobs=true", "-o", str(target), str(report)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode or not target.is_dir():
        told = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise ValueError(f"{report}: nsys cannot export it: {told[-1].strip() if told else 'it says nothing'}")
    return target


def join(parts: Sequence[Part], out: Path) -> None:
    """All parts' tables as one table each. Ranks that files do not tell get the numbers that are left."""
    numbers = numbered(parts)
    for name in TRACE_TABLES:
        files = [part.folder / f"{name}.parquet" for part in parts]
        target = out / f"{name}.parquet"
        if len(parts) == 1 and all(old == new for old, new in numbers[0].items()):
            files[0].replace(target)
            continue
        frames = [
            pl.scan_parquet(file).with_columns(pl.col("rank").replace(ranks))
            for file, ranks in zip(files, numbers, strict=True)
        ]
        scratch = files[0].with_suffix(".joined")
        pl.concat(frames).sink_parquet(scratch, compression="zstd", compression_level=1)
        scratch.replace(target)


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
