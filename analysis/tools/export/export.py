"""`nightsweep export`: what was measured, for other tools."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import polars as pl

from nightsweep.analysis.diagnosis.evidence.sources import is_point, is_tables
from nightsweep.analysis.ingest import point_tables, trace_tables
from nightsweep.analysis.readers import gpu_log, point_files
from nightsweep.analysis.sweep.labels import plural
from nightsweep.analysis.tables import column, parquet, points, trace_files
from nightsweep.analysis.tables.csv_cells import without_formulas
from nightsweep.analysis.tools.export import perfetto
from nightsweep.analysis.tools.read import read
from nightsweep.jobs.record.input_error import InputError
from nightsweep.jobs.record.raw_files import unpacked
from nightsweep.jobs.telemetry.gpu import log


def folder_of_tables(path: Path) -> Path:
    """The tables that a path stands for: a sweep's results, a copy of them, a data set, or the folder itself."""
    for folder in (path / "tables", path):
        if any(folder.glob("*.parquet")):
            return folder
    raise InputError(f"{path}: no tables; expected results/SWEEP, a data set, or a folder of Parquet tables")


def to_csv(path: Path, out: Path) -> str:
    """OUT/TABLE.csv of each table, streamed; elements of a list are joined by semicolons. A text that a spreadsheet
    would compute begins with an apostrophe."""
    files = sorted(folder_of_tables(path).glob("*.parquet"))
    if there := [name for file in files if (name := out / f"{file.stem}.csv").exists()]:
        raise InputError(f"{there[0]}: there is something already; a folder without such files was expected")
    for file in files:
        parquet.require(file, "expected Parquet, as `snakemake tables` or `nightsweep ingest` writes it")
    out.mkdir(parents=True, exist_ok=True)
    for file in files:
        frame = pl.scan_parquet(file)
        kinds = frame.collect_schema()
        lists = [name for name, kind in kinds.items() if isinstance(kind, pl.List)]
        joined = frame.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join(";"))
        texts = {name: kind for name, kind in kinds.items() if kind == pl.List(pl.String)}
        safe = without_formulas(kinds) + without_formulas(dict.fromkeys(texts, pl.String()))
        joined.with_columns(safe).sink_csv(out / f"{file.stem}.csv")
    return f"{out}: {plural(len(files), 'table')}"


def to_perfetto(
    paths: Sequence[Path],
    out: Path,
    steps: tuple[int, int] | None,
    ms: tuple[float, float] | None,
    log_of_gpus: Path | None,
) -> str:
    """OUT, a file of trace events. `paths`: traces of ranks, a folder of `nightsweep ingest`, or a point's folder."""
    with ExitStack() as stack:
        samples: dict[str, pl.DataFrame] = {}
        if len(paths) == 1 and is_tables(paths[0]):
            folder = paths[0]
            trace_files.require(folder, ["windows", *(kind.table for kind in perfetto.KINDS)])
        else:
            traces = list(paths)
            if len(paths) == 1 and is_point(paths[0]):
                point = stack.enter_context(unpacked(paths[0]))
                samples = samples_of(point)
                found = point_tables.readable(point)
                traces = [found[rank] for rank in sorted(found)]
                if not traces:
                    raise InputError(f"{paths[0]}: no trace of a rank; expected a point with a traced run")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            good, problems = trace_tables.write_all(traces, folder)
            if not good:
                raise InputError(f"nothing of the traces could be read: {'; '.join(problems)}")
            for problem in problems:
                print(f"nightsweep export: {problem}", file=sys.stderr)
        if log_of_gpus is not None:
            host = log.header_of(log_of_gpus)["host"]
            samples["gpu_samples"] = column.conform(
                gpu_log.read_log(log_of_gpus).with_columns(host=pl.lit(host)), points.TABLES["gpu_samples"]
            ).collect()
        window = perfetto.window_of(folder, steps, ms)
        out.parent.mkdir(parents=True, exist_ok=True)
        count = perfetto.write(folder, out, window, samples)
    length = (window.end_ns - window.start_ns) / 1e6
    return f"{out}: {plural(count, 'event')} of {length:.3f} ms; open it at https://ui.perfetto.dev"


def samples_of(point: Path) -> dict[str, pl.DataFrame]:
    """The samples of a point's traced run."""
    found = point_files.read(point)
    return {name: found[name].filter(pl.col("look") == "traced") for name in ("gpu_samples", "host_samples")}


@parquet.faults_as_input_errors()
def export(
    paths: Sequence[Path], kind: str, out: str, steps: str | None, ms: str | None, log_of_gpus: Path | None
) -> int:
    """`nightsweep export`; its exit status. Points go to the module of the format's name: its library may be absent."""
    try:
        for path in paths:
            if not path.exists():
                raise InputError(f"{path}: is not there; a trace, or a folder of results was expected")
        if kind == "perfetto":
            said = to_perfetto(paths, Path(out), _steps(steps), _ms(ms), log_of_gpus)
        elif len(paths) > 1 or steps or ms or log_of_gpus:
            raise InputError(f"--to {kind} takes one folder, and no window or log: these are for --to perfetto")
        elif kind == "csv":
            said = to_csv(paths[0], Path(out))
        else:
            said = import_module(f".{kind}", __package__).write(read(paths[0]), out)
    except ValueError as error:
        raise InputError(str(error)) from error
    print(said)
    return 0


def _steps(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        first, last = text.partition("-")[::2]
        begin, end = int(first), int(last or first)
    except ValueError:
        begin, end = 1, 0
    if begin > end:
        raise InputError(f"--steps {text}: expected one step, or FIRST-LAST")
    return begin, end


def _ms(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        begin, end = (float(part) for part in text.split("-"))
    except ValueError:
        begin, end = 1.0, 0.0
    if not 0 <= begin < end:
        raise InputError(f"--ms {text}: expected FROM-TO in milliseconds from the trace's start")
    return begin, end
