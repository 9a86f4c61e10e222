"""What a launch wrote (docs/formats.md), apart from its traces, as tables.

What is missing or broken is empty or null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from analysis.readers import gpu_log
from analysis.tables import points
from analysis.tables.column import Column
from jobs.record import json_lines

_TAIL = 4000
_Json = dict[str, Any]


def read(point: Path) -> dict[str, pl.DataFrame]:
    """The tables of a point that need no trace, except its summary (`metrics.summary`)."""
    record = record_of(point)
    identity = {"point_id": record["point_id"]}
    return {
        "steps": steps(point),
        "accuracy": _accuracy(point, identity),
        "ranks": _frame([{**r, **identity} for r in results(point)], points.RANKS),
        "host_samples": frame(_jsonl(point, "host", identity), "host_samples"),
        "gpu_samples": gpu_log.samples(point, identity["point_id"]),
        "gpu_events": frame(_jsonl(point, "events", identity), "gpu_events"),
        "failures": _frame(_failures(point, record), points.FAILURES),
    }


def record_of(point: Path) -> _Json:
    """record.json; where there is none, what point.json says, with status not_run."""
    record = _json(point / "record.json")
    base = _json(point / "point.json")
    if not record:
        record = {"status": "not_run", "reason": "no_record"}
    return {"point_id": point.name, "sweep": None, "settings": {}} | base | record


def steps(point: Path, look: str = "timed") -> pl.DataFrame:
    """The table `steps`, or the same of another look."""
    identity = {"point_id": record_of(point)["point_id"]}
    return _with_step_ms(_frame(_step_rows(point / look, identity), points.STEPS))


def results(point: Path, look: str = "timed") -> list[_Json]:
    """rankR.result.json of a look, by rank."""
    found = [_json(path) | {"rank": rank} for rank, path in ranked(point / look, r"rank(\d+)\.result\.json")]
    return [r for r in found if len(r) > 1]


def ranked(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """Files (and folders) whose name is this pattern, with the rank that its first group gives, in order of rank."""
    if not folder.is_dir():
        return []
    found = [(re.fullmatch(pattern, path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)


def point_row(record: Mapping[str, Any]) -> _Json:
    """The columns of POINTS that the record itself holds."""
    hosts, looks = record.get("hosts") or [], record.get("looks") or {}
    device = record.get("device")
    gpus = [gpu for host in hosts for gpu in host.get("gpus") or []]
    cpu = hosts[0].get("cpu_model") if hosts else None
    tracer = record.get("tracer") or {}
    return {
        **(record.get("settings") or {}),
        **{n: record.get(n) for n in ("point_id", "sweep", "status", "reason", "message", "attempt")},
        **{n: record.get(n) for n in ("backend", "world_size", "started_at", "wall_s")},
        "micro_batch_found": (record.get("found") or {}).get("micro_batch"),
        "device_used": device,
        "accelerator": (gpus[0].get("name") if gpus else None) if device == "cuda" else cpu,
        "hosts": [host.get("hostname") for host in hosts],
        "topology": hosts[0].get("topology") if hosts else None,
        "tracer_used": tracer.get("used"),
        "tracer_reason": tracer.get("reason"),
        "trace_status": (looks.get("traced") or {}).get("status"),
        "nvml_reason": (record.get("nvml") or {}).get("reason"),
    }


def frame(rows: list[_Json], name: str) -> pl.DataFrame:
    """The table of this name of these rows; absent columns are null."""
    return _frame(rows, points.TABLES[name])


def points_frame(rows: list[_Json]) -> pl.DataFrame:
    """POINTS of these rows; absent columns are null."""
    return _frame(rows, points.POINTS)


def _frame(rows: list[_Json], columns: Mapping[str, Column]) -> pl.DataFrame:
    # Not strict: a field of an unexpected type is a null in the table, not an end of the sweep's analysis.
    return pl.DataFrame(
        [pl.Series(n, [r.get(n) for r in rows], dtype=c.dtype, strict=False) for n, c in columns.items()]
    )


def _json(path: Path) -> _Json:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _step_rows(look: Path, identity: _Json) -> list[_Json]:
    files = ranked(look, r"steps-r(\d+)\.jsonl")
    return [{**_in_ms(line), "rank": rank, **identity} for rank, path in files for line in json_lines.read(path)]


def _in_ms(line: _Json) -> _Json:
    def ms(key: str) -> float | None:
        value = line.get(key)
        return value / 1e6 if isinstance(value, int | float) else None

    reserved, inactive = line.get("reserved_bytes"), line.get("inactive_bytes")
    fragmentation = inactive / reserved if reserved and inactive is not None else None
    return {**line, "data_ms": ms("data_ns"), "device_ms": ms("device_ns"), "fragmentation": fragmentation}


def _with_step_ms(steps: pl.DataFrame) -> pl.DataFrame:
    host = (pl.col("end_ns") - pl.col("start_ns")) / 1e6
    return steps.with_columns(step_ms=pl.coalesce("device_ms", host))


def _jsonl(point: Path, kind: str, identity: _Json) -> list[_Json]:
    files = [(look, f) for look in ("timed", "traced") for f in sorted((point / look).glob(f"{kind}-*.jsonl"))]
    return [{**line, "look": look, **identity} for look, path in files for line in json_lines.read(path)]


def _accuracy(point: Path, identity: _Json) -> pl.DataFrame:
    path = point / "timed/accuracy.jsonl"
    rows = json_lines.read(path) if path.is_file() else []
    epochs = _frame([{**row, **identity} for row in rows], points.ACCURACY).sort("epoch")
    return epochs.with_columns(total_s=pl.col("seconds").cum_sum())


def _failures(point: Path, record: _Json) -> list[_Json]:
    if record["status"] not in ("failed", "cancelled"):
        return []
    failure = record.get("failure") or {}
    traces = failure.get("tracebacks") or {}
    return [
        {
            **failure,
            **{n: record.get(n) for n in ("point_id", "status", "reason", "message")},
            "traceback": _tail(point, traces.get("first_failed")),
            "traceback_rank0": _tail(point, traces.get("rank0")),
        }
    ]


def _tail(point: Path, name: str | None) -> str | None:
    try:
        return (point / name).read_text(errors="replace")[-_TAIL:] if name else None
    except OSError:
        return None
