"""`nightsweep ingest TRACE... --out DIR`: traces of any tracer to tables, one Parquet file each.

A TRACE is an Nsight Systems export (SQLite, or a folder of Parquet files), a report (.nsys-rep, exported by the nsys on
the PATH), or a trace of PyTorch's profiler (.json, .json.gz). Unless they are small, each file is read in a separate
process: ranks are read at the same time, and the memory of one is free before the next begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from nightsweep.analysis.ingest import engine
from nightsweep.analysis.metrics.ranks import all_ranks, pool
from nightsweep.analysis.sweep.labels import plural
from nightsweep.analysis.tables import trace_files
from nightsweep.analysis.tables.traces import TRACE_TABLES
from nightsweep.jobs.host.cores import allowed_cores
from nightsweep.jobs.record.failures import is_disk_full, os_error_line
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.telemetry.trace import nsys

EXIT_PARTIAL, EXIT_WRONG = 1, 2
EXPORT_TIMEOUT_S = 3600
"""Of one report, which may have tens of gigabytes: longer than after a run, where GPUs would wait for it."""
_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's mallopt."""
LARGE_BYTES = 64 << 20
"""Files smaller than this in all are read sooner than a process has started."""
PROCESS_BYTES = 256 << 20
"""What one process reads before another takes its place; of larger files, one."""
SMALL_BYTES = 4 << 20
"""A file takes as much time as if it were larger by this."""
UTC_NS = 10**18
"""September 2001: clocks that count from another moment, such as a boot, show less."""
FOR_DIAGNOSIS = frozenset(
    ("windows", "parts", "step_parts", "devices", "waited_for", "file_clocks", "collectives", "kernels", "graphs")
) | {"copies", "memsets", "runtime", "operators", "nvtx"}
"""The tables that a diagnosis reads (analysis/diagnosis/evidence/sources.py)."""
APART_NS, MATCHED_APART_NS = 10 * 10**9, 3600 * 10**9
"""How far apart by UTC steps of one run may be, since clocks of hosts differ: 10 s, and an hour where their collectives
match, which those of two runs of one script may do, too."""


@dataclass(frozen=True)
class TraceJob:
    """A trace to read, the folder for its tables, whether it is the only trace, and which tables are wanted."""

    trace: Path
    folder: Path
    alone: bool
    names: frozenset[str]


@dataclass(frozen=True)
class FileTables:
    """The outcome of reading one trace: the folder of its tables, or in `failed` why there are none.

    `trace`: its path. `ranks`: the number of each; below 0 where neither the trace nor its name has one. `problems`:
    what could not be read, a line each.
    """

    trace: Path
    folder: Path
    ranks: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    failed: str | None = None


def ingest(traces: Sequence[Path], out: Path) -> int:
    """Write the tables of these traces to a folder, as `nightsweep ingest` does.

    Returns:
        The exit status: 0; 1 where something could not be read; 2 where nothing could.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is no folder; a folder to write tables to was expected")
    new = not out.exists()
    try:
        good, lines = write_all(traces, out)
    finally:
        if new and out.exists() and not any(out.iterdir()):
            out.rmdir()
    for line in lines:
        print(f"nightsweep ingest: {line}", file=sys.stderr)
    if not good:
        return EXIT_WRONG
    count = sum(len(file.ranks) for file in good)
    print(f"{out}: {plural(len(TRACE_TABLES), 'table')} of {plural(count, 'rank')}")
    return EXIT_PARTIAL if lines else 0


def limit_arenas() -> None:
    """Let threads share what each has freed.

    With a heap for each thread, as glibc has it, a large trace takes up to a fifth more memory, in the same time. Other
    C libraries have no such setting.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, allowed_cores())


def write_all(
    traces: Sequence[Path],
    out: Path,
    processes: int | None = None,
    *,
    of_one_run: bool = False,
    names: Collection[str] = TRACE_TABLES.keys(),
) -> tuple[list[FileTables], list[str]]:
    """Write the tables of all traces that can be read; no tables where none can.

    Args:
        traces: their paths.
        out: folder of the tables.
        processes: how many may read at the same time; without it as many as there are cores.
        of_one_run: whether they are known to be, whatever the clocks of their hosts say.
        names: the tables to write.

    Returns:
        The traces that were read, and what could not be read, a line each.

    Raises:
        InputError: one is named twice, two are of the same rank, or steps of two are too far apart to be of one run.
    """
    places = [trace.resolve() for trace in traces]
    for trace, place in zip(traces, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"{trace}: is named twice; traces of different ranks of one run were expected")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".parts-") as scratch:
        parts, alone, wanted = Path(scratch), len(traces) == 1, frozenset(names)
        jobs = [TraceJob(trace, parts / str(place), alone, wanted) for place, trace in enumerate(traces)]
        files = in_processes(jobs, processes or allowed_cores())
        good = [file for file in files if file.failed is None]
        if good:
            join(good, out, of_one_run, names)
    return good, [line for file in files for line in ([file.failed] if file.failed else file.problems)]


def in_processes(traces: Sequence[TraceJob], processes: int) -> list[FileTables]:
    """Read traces, several at the same time where that is sooner."""
    sizes = [size_bytes(job.trace) + SMALL_BYTES for job in traces]
    workers = processes if sum(sizes) >= LARGE_BYTES else 1
    return pool.map_in_processes(traces, write_file_tables, workers, max(1, PROCESS_BYTES // max(sizes)))


def size_bytes(trace: Path) -> int:
    """Size of a file, or of all files in a folder, bytes."""
    files = trace.rglob("*") if trace.is_dir() else [trace]
    return sum(path.stat().st_size for path in files if path.is_file())


def write_file_tables(job: TraceJob) -> FileTables:
    """Write the tables of one trace to its folder."""
    limit_arenas()
    trace, folder = job.trace, job.folder
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = export(trace, Path(scratch)) if trace.suffix == ".nsys-rep" else trace
            with trace_files.Writer(folder) as writer:
                for frames in engine.analyse(path, trace.name, job.alone):
                    reports = frames.get("reports")
                    for name in frames.keys() - job.names:
                        del frames[name]
                    writer.add(frames)
    except (ValueError, OSError) as error:
        if is_disk_full(error):  # which is no fault of the trace
            raise
        said = os_error_line(error) if isinstance(error, OSError) else str(error)
        return FileTables(trace, folder, failed=" ".join(said.split()))
    except pl.exceptions.PolarsError as error:  # tables whose columns are not what their names say
        return FileTables(
            trace, folder, failed=f"{trace}: cannot be made sense of: {' '.join(str(error).split())[:200]}"
        )
    assert reports is not None  # they come with the last rank
    problems = tuple(f"{trace}: {line}" for line in (reports["problems"][0] if reports.height else []))
    return FileTables(trace, folder, tuple(reports["rank"].to_list()), problems)


def export(report: Path, scratch: Path) -> Path:
    """Export a report as a folder of Parquet files.

    Raises:
        ValueError: where there is no nsys on the PATH, or it fails or hangs.
    """
    if shutil.which("nsys") is None:
        raise ValueError(
            f"{report}: is a report, and there is no nsys on the PATH to export it; an export was expected"
        )
    target = scratch / "export"
    if why := nsys.export_report(report, target, "parquetdir", EXPORT_TIMEOUT_S):
        raise ValueError(f"{report}: {why}")
    return target


def join(files: Sequence[FileTables], out: Path, of_one_run: bool, names: Collection[str]) -> None:
    """Join the tables of these names of all files, on one clock; ranks without a known number get the next free one."""
    numbers = rank_numbers(files)
    calls = [scan_table(file, "collectives", ranks).collect() for file, ranks in zip(files, numbers, strict=True)]
    offsets = all_ranks.file_offsets(calls)
    if not of_one_run:
        refuse_other_runs(files, offsets)
    shifts = offsets["offset_ns"].fill_null(0).to_list() if offsets.height else [0] * len(files)
    plain = set(names) - set(all_ranks.NAMES)
    if len(files) == 1 and all(old == new for old, new in numbers[0].items()):
        for name in plain:
            (files[0].folder / f"{name}.parquet").replace(out / f"{name}.parquet")
    else:
        with trace_files.Writer(out) as writer:
            for file, ranks, by in zip(files, numbers, shifts, strict=True):  # one at a time: it can take gigabytes
                scans = {name: all_ranks.subtract_offset(scan_table(file, name, ranks), by) for name in plain}
                writer.add(dict(zip(scans, pl.collect_all(scans.values()), strict=True)))
    aligned = [all_ranks.subtract_offset(frame.lazy(), by).collect() for frame, by in zip(calls, shifts, strict=True)]

    def events_of(rank: int) -> dict[str, pl.DataFrame]:
        return {kind: trace_files.rank_table(out, kind, rank) for kind in all_ranks.NEEDED}

    joint = all_ranks.joint_tables(aligned, events_of, names)
    trace_files.write(joint | {"file_clocks": offsets}, out)


def refuse_other_runs(files: Sequence[FileTables], offsets: pl.DataFrame) -> None:
    """Raises InputError where by UTC the steps of a file are too far from the first one's to be of one run. `offsets`:
    the table file_clocks."""
    begin, end = pl.col("start_ns").min(), pl.col("end_ns").max()
    spans = [pl.scan_parquet(file.folder / "windows.parquet").select(begin, end).collect().row(0) for file in files]
    for file, span, events in zip(files[1:], spans[1:], offsets["events"][1:], strict=True):
        if None in (*spans[0], *span) or min(spans[0][0], span[0]) < UTC_NS:
            continue
        apart = max(spans[0][0], span[0]) - min(spans[0][1], span[1])
        if apart > (MATCHED_APART_NS if events else APART_NS):
            what = f"{file.trace}: its steps are by UTC {apart / 1e9:.0f} s away from those of {files[0].trace}"
            raise InputError(f"{what}; traces of different ranks of one run were expected")


def scan_table(file: FileTables, name: str, ranks: Mapping[int, int]) -> pl.LazyFrame:
    """A table of a file, with its ranks renumbered by `ranks`."""
    return pl.scan_parquet(file.folder / f"{name}.parquet").with_columns(pl.col("rank").replace(ranks))


def rank_numbers(files: Sequence[FileTables]) -> list[dict[int, int]]:
    """For each file, the new number of each of its ranks: known ones stay. Raises InputError where two files are of the
    same rank: they are of different runs, or of the same run at different times, and no ranks of one step."""
    known: dict[int, Path] = {}
    for file in files:
        for rank in file.ranks:
            if rank in known:
                what = f"{file.trace}: is of rank {rank}, by what it records or by its name, and so is {known[rank]}"
                raise InputError(f"{what}; traces of different ranks of one run were expected")
            if rank >= 0:
                known[rank] = file.trace
    free = (number for number in itertools.count() if number not in known)
    return [{rank: rank if rank >= 0 else next(free) for rank in file.ranks} for file in files]
