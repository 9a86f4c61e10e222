"""A point in one row: the table POINTS.

The numbers of the timed window are given only where that run ended well: the steps of half a window come from before
something went wrong, and figures would show them beside those of whole windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.metrics.points import conditions, efficiency, warm_up
from nightsweep.analysis.metrics.points.energy import doubt
from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank
from nightsweep.analysis.readers import point_files
from nightsweep.jobs.record.json_files import count_lines
from nightsweep.jobs.record.launch_files import WHOLE_RUN, RankResult
from nightsweep.jobs.record.phases import starts_of
from nightsweep.jobs.record.point_folder import by_rank, record_of, results_of
from nightsweep.jobs.record.record import Record

_Json = dict[str, Any]


def row(point: Path, tables: Mapping[str, pl.DataFrame]) -> _Json:
    """The point's row, from its record and its tables."""
    record = record_of(point)
    base = point_files.point_row(record) | {"notes": damaged_lines(point, tables)}
    if not is_measured(record):
        return base
    results = results_of(point)
    window = warm_up.in_window(tables["steps"])
    timed = window.filter(pl.col("phase") == "timed")
    missing = missing_files(point, record, results, window)
    numbers = _results(results) | _steps(tables["steps"], timed) | _rates(timed, _steady_seconds(results, window))
    if (found := warm_up.of_point(window)) is not None:
        numbers |= {"warm_from": found.first, "steady": found.steady}
    if numbers["steps_per_epoch"] is not None and numbers.get("step_ms_mean") is not None:
        numbers["epoch_s"] = numbers["steps_per_epoch"] * numbers["step_ms_mean"] / 1e3
    if numbers.get("step_ms_mean") is not None:
        world = record.world_size or len(results)
        numbers |= efficiency.utilisation(results, record.settings, world, numbers["step_ms_mean"])
    memory = "peak_allocated_bytes" if record.device == "cuda" else "peak_rss_bytes"
    peak = tables["ranks"][memory].max()
    tenants = record.settings.get("tenants")
    around = conditions.columns(
        tables, on_gpus=record.device == "cuda", has_tenants=isinstance(tenants, int) and tenants > 1
    )
    numbers["notes"] = "; ".join(filter(None, (missing, base["notes"], numbers["notes"]))) or None
    return base | numbers | around | {"peak_memory_bytes": peak} | _energy(tables["energy"], window)


def is_measured(record: Record) -> bool:
    """Whether the timed run ended well."""
    return record.runs.timed.status == "ok"


def missing_files(point: Path, record: Record, results: Sequence[RankResult], timed: pl.DataFrame) -> str | None:
    """What the record says was written and is not there, in one line. `timed`: the timed steps that there are, those
    that settled too."""
    found = []
    ranks = {rank for rank, path in by_rank(point / "timed", r"steps-r(\d+)\.jsonl") if path.is_file()}
    for what, there, other in (
        ("results", {r.rank for r in results}, ranks),
        ("steps", ranks, {r.rank for r in results}),
    ):
        if not there:
            found.append(f"all {what}")
        elif lost := sorted(other - there):
            found.append(f"{what} of rank {', '.join(map(str, lost))}")
    each = timed.group_by("rank").len()["len"].to_list()
    asked = record.settings.get("timed_steps")
    fewer = any(result.ended_early or result.step_source == WHOLE_RUN for result in results)  # a script's, which say so
    most = max([*each, asked] if isinstance(asked, int) and not fewer else each, default=0)
    if each and min(each) < most:
        found.append(f"{most - min(each)} of {most} timed steps")
    if record.nvml.available and not any(path.is_file() for path in (point / "timed").glob("nvml-*.arrow")):
        found.append("samples of GPUs")
    if record.tracer.used and record.runs.traced.status == "ok" and not by_rank(point / "traced", r"trace-r(\d+)\..*"):
        found.append("all traces")
    return f"files are missing: {', '.join(found)}" if found else None


def damaged_lines(point: Path, tables: Mapping[str, pl.DataFrame]) -> str | None:
    """How many lines of its logs could not be read and are not in these tables, in one line. The last line of a log may
    be half written where its writer was killed."""
    read = {
        ("attempts.jsonl",): len(starts_of(point)),
        ("timed/steps-r*.jsonl",): tables["steps"].height,
        ("timed/host-*.jsonl", "traced/host-*.jsonl"): tables["host_samples"].height,
        ("timed/events-*.jsonl", "traced/events-*.jsonl"): tables["gpu_events"].height,
        ("timed/accuracy.jsonl",): tables["accuracy"].height,
    }
    lost = []
    for names, there in read.items():
        count = sum(count_lines(path) for name in names for path in point.glob(name)) - there
        if count > 0:
            lost.append(f"{count} of {Path(names[0]).name}")
    return f"lines that cannot be read are left out: {', '.join(lost)}" if lost else None


def _results(results: Sequence[RankResult]) -> _Json:
    """What ranks agree on, or the largest where they do not."""
    notes = list(dict.fromkeys(note for result in results for note in result.notes))
    of_script = {"step_source": next((r.step_source for r in results), None), "notes": "; ".join(notes)}
    names = ("steps_per_epoch", "parameters", "trainable_parameters")
    known = {name: [value for r in results if (value := getattr(r, name)) is not None] for name in names}
    return of_script | {name: max(values, default=None) for name, values in known.items()}


def _steps(steps: pl.DataFrame, timed: pl.DataFrame) -> _Json:
    if timed.is_empty():
        return {}
    slowest = slowest_rank(timed)["step_ms"]
    return {
        "step_ms_median": slowest.median(),
        "step_ms_mean": slowest.mean(),
        "step_ms_p95": slowest.quantile(0.95, "linear"),
        "step_ms_std": slowest.std(),
        "data_ms_median": timed["data_ms"].median(),
        "samples_per_step": timed.group_by("step").agg(pl.col("samples").sum())["samples"].max(),
        "loss_first": steps.filter(pl.col("step") == steps["step"].min())["loss"].mean(),
        "loss_last": timed.filter(pl.col("step") == timed["step"].max())["loss"].mean(),
    }


def _rates(timed: pl.DataFrame, length_s: float | None) -> _Json:
    if not length_s or timed.is_empty():
        return {}
    tokens = None if timed["tokens"].null_count() else float(timed["tokens"].sum()) / length_s
    return {"samples_per_s": float(timed["samples"].sum()) / length_s, "tokens_per_s": tokens}


def window_seconds(results: Sequence[RankResult], timed: pl.DataFrame) -> float | None:
    """Length of the timed window, by the rank that took longest: they begin together, but hosts' clocks may differ."""
    lengths = [(r.window.end_ns - r.window.start_ns) / 1e9 for r in results if r.window]
    if lengths:
        return float(max(lengths))
    start, end = timed["start_ns"].min(), timed["end_ns"].max()
    return (end - start) / 1e9 if isinstance(start, int) and isinstance(end, int) else None


def _steady_seconds(results: Sequence[RankResult], window: pl.DataFrame) -> float | None:
    """Length of the timed window without the steps that settled. Their device times are taken off, for the host is
    ahead of the device, and its clock does not tell where on it a step began."""
    length = window_seconds(results, window)
    settling = slowest_rank(window).filter(pl.col("phase") == warm_up.SETTLING)["step_ms"]
    return None if length is None else length - float(settling.sum()) / 1e3


def _energy(energy: pl.DataFrame, timed: pl.DataFrame) -> _Json:
    """Sums over the GPUs, of the whole window; null where one of them is unknown or in doubt."""
    reason = doubt(energy)

    def total(name: str) -> float | None:
        column = energy[name]
        return float(column.sum()) if reason is None and not column.null_count() else None

    joules = total("counter_j")
    tokens = None if timed["tokens"].null_count() else int(timed["tokens"].sum())
    over = {"step_j": timed["step"].n_unique(), "sample_j": int(timed["samples"].sum()), "token_j": tokens}
    return {
        "energy_j": joules,
        "energy_reason": reason,
        "energy_integrated_j": total("integrated_j"),
        "energy_above_idle_j": total("above_idle_j"),
        **{name: joules / count if joules is not None and count else None for name, count in over.items()},
    }
