"""What a launch wrote (docs/formats.md), apart from its traces, as tables.

What is missing or broken is empty or null.
"""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from msgspec import Struct, structs

from nightsweep.analysis.readers import gpu_log
from nightsweep.analysis.tables import failures, points
from nightsweep.jobs.point.point import Value, applicable, complete
from nightsweep.jobs.record.json_files import FormatError, load_json, read_lines
from nightsweep.jobs.record.launch_files import EpochLine, Event, HostSample, StepLine
from nightsweep.jobs.record.point_folder import by_rank, record_of, results_of, traced_from
from nightsweep.jobs.record.record import Record
from nightsweep.jobs.sweep.code import code_words

_TAIL = 4000
_Row = dict[str, Any]
_Line = TypeVar("_Line", bound=Struct)


def read(point: Path) -> dict[str, pl.DataFrame]:
    """The tables of a point that need no trace, except its summary (analysis/metrics/points/point_row.py)."""
    record = record_of(point)
    identity = {"point_id": record.point_id}
    logs = {
        "host_samples": frame(_lines(point, "host", HostSample, identity), "host_samples"),
        "gpu_samples": gpu_log.samples(point, record.point_id or point.name),
        "gpu_events": frame(_lines(point, "events", Event, identity), "gpu_events"),
    }
    return {
        "steps": steps(point),
        "accuracy": _accuracy(point, identity),
        "ranks": frame([structs.asdict(r) | identity for r in results_of(point)], "ranks"),
        "failures": frame(_failures(point, record), "failures"),
        **{name: in_their_run(rows, traced_from(point, record.runs)) for name, rows in logs.items()},
    }


def in_their_run(rows: pl.DataFrame, traced_ns: int | None) -> pl.DataFrame:
    """Rows of logs with the run that they are of. `traced_ns`: when the traced run began in the timed run's start."""
    if traced_ns is None:
        return rows
    look = pl.when(pl.col("t_ns") >= traced_ns).then(pl.lit("traced")).otherwise("look")
    return rows.with_columns(look=look)


def problem(point: Path) -> str | None:
    """Why the record that is there cannot be read, in one line; None where it can, or where there is none."""
    path = point / "record.json"
    try:
        load_json(path, Record)
    except FormatError as error:
        return str(error) if path.exists() else None
    return None


def steps(point: Path, look: str = "timed") -> pl.DataFrame:
    """The table `steps`, or the same of another run."""
    identity = {"point_id": record_of(point).point_id}
    return frame(_step_rows(point / look, identity), "steps")


def point_row(record: Record) -> _Row:
    """The columns of POINTS that the record itself holds."""
    first = record.hosts[0] if record.hosts else None
    gpus = [gpu for host in record.hosts for gpu in host.gpus]
    gpu = gpus[0].name if gpus else None
    unwritten = record.status == "not_run" and record.reason is None
    names = ("point_id", "sweep", "status", "message", "attempt", "backend", "world_size", "started_at", "wall_s")
    return {
        **settings_columns(record.settings),
        **{name: getattr(record, name) for name in names},
        "reason": failures.NO_RECORD if unwritten else record.reason,
        "micro_batch_found": record.found and record.found.micro_batch,
        "device_used": record.device,
        "accelerator": gpu if record.device == "cuda" else first and first.cpu_model,
        "hosts": [host.hostname for host in record.hosts],
        "topology": first and first.topology,
        "tracer_used": record.tracer.used,
        "tracer_reason": record.tracer.reason,
        "trace_status": None if unwritten else record.runs.traced.status,
        "nvml_reason": record.nvml.reason,
    }


def settings_columns(settings: Mapping[str, Value]) -> _Row:
    """The columns of a point's settings. A script's own axes, whatever their names, are one: `variables`; its `model`
    is the name of the script, or of the module."""
    if settings.get("workload") != "command":
        return dict(settings)
    point = complete(dict(settings))
    known = set(applicable("command"))
    return {
        **{name: value for name, value in settings.items() if name in known},
        "model": script_name(str(point.command)),
        "variables": json.dumps(dict(point.variables)),
    }


def script_name(command: str) -> str:
    """The name of the script that a command runs; else of the module that Python runs, else of the command."""
    words = shlex.split(command)
    before = itertools.takewhile("-m".__ne__, words)
    of_python = all(word.startswith("-") or Path(word).name.startswith("python") for word in before)
    scripts_first = sorted(code_words(words), key=lambda found: found[1])
    return Path(next((word for word, is_module in scripts_first if of_python or not is_module), words[0])).name


def frame(rows: list[_Row], name: str) -> pl.DataFrame:
    """The table of this name of these rows; absent columns are null."""
    # Not strict: a field of an unexpected type is a null in the table, not an end of the sweep's analysis.
    columns = points.TABLES[name].items()
    return pl.DataFrame([pl.Series(n, [r.get(n) for r in rows], dtype=c.dtype, strict=False) for n, c in columns])


def _step_rows(folder: Path, identity: _Row) -> list[_Row]:
    files = by_rank(folder, r"steps-r(\d+)\.jsonl")
    return [
        {**_step_row(line), "rank": rank, **identity} for rank, path in files for line in read_lines(path, StepLine)
    ]


def _step_row(line: StepLine) -> _Row:
    known = line.reserved_bytes and line.inactive_bytes is not None
    return {
        **structs.asdict(line),
        "data_ms": None if line.data_ns is None else line.data_ns / 1e6,
        "step_ms": step_ms(line),
        "fragmentation": (line.inactive_bytes or 0) / (line.reserved_bytes or 1) if known else None,
    }


def step_ms(line: StepLine) -> float | None:
    """The length of a step, by the device where it tells; None where it is not known, or not above zero."""
    length = line.device_ns
    if length is None and line.start_ns is not None and line.end_ns is not None:
        length = line.end_ns - line.start_ns
    return length / 1e6 if length is not None and length > 0 else None


def _lines(point: Path, kind: str, line: type[_Line], identity: _Row) -> list[_Row]:
    files = [(look, f) for look in ("timed", "traced") for f in sorted((point / look).glob(f"{kind}-*.jsonl"))]
    return [{**structs.asdict(one), "look": look, **identity} for look, path in files for one in read_lines(path, line)]


def _accuracy(point: Path, identity: _Row) -> pl.DataFrame:
    lines = read_lines(point / "timed/accuracy.jsonl", EpochLine)
    epochs = frame([{**structs.asdict(line), **identity} for line in lines], "accuracy").sort("epoch")
    return epochs.with_columns(total_s=pl.col("seconds").cum_sum())


def _failures(point: Path, record: Record) -> list[_Row]:
    if record.status not in ("failed", "cancelled"):
        return []
    row = {name: getattr(record, name) for name in ("point_id", "status", "reason", "message")}
    if record.failure is None:
        return [row]
    texts = record.failure.tracebacks
    tails = {"traceback": _tail(point, texts.first_failed), "traceback_rank0": _tail(point, texts.rank0)}
    return [structs.asdict(record.failure) | row | tails]


def _tail(point: Path, name: str | None) -> str | None:
    try:
        return (point / name).read_text(errors="replace")[-_TAIL:] if name else None
    except OSError:
        return None
