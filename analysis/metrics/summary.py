"""A point in one row: the table POINTS.

The numbers of the timed window are given only where that look ran to its end: the steps of a half window are those
before things went wrong, and would stand in figures next to whole ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from analysis.readers import raw

_Json = dict[str, Any]


def row(point: Path, tables: Mapping[str, pl.DataFrame]) -> _Json:
    """The point's row, from its record and its tables."""
    record = raw.record_of(point)
    base = raw.point_row(record)
    if ((record.get("looks") or {}).get("timed") or {}).get("status") != "ok":
        return base
    results = raw.results(point)
    timed = tables["steps"].filter(pl.col("phase") == "timed")
    window = _window(results, timed)
    numbers = _results(results) | _steps(tables["steps"], timed) | _rates(timed, window)
    if numbers["steps_per_epoch"] is not None and numbers.get("step_ms_mean") is not None:
        numbers["epoch_s"] = numbers["steps_per_epoch"] * numbers["step_ms_mean"] / 1e3
    memory = "peak_allocated_bytes" if record.get("device") == "cuda" else "peak_rss_bytes"
    peak = tables["ranks"][memory].max()
    return base | numbers | {"peak_memory_bytes": peak, "energy_j": _energy(tables["gpu_samples"], window)}


def _results(results: list[_Json]) -> _Json:
    names = ("steps_per_epoch", "parameters", "trainable_parameters")
    return {n: max((r[n] for r in results if r.get(n) is not None), default=None) for n in names}


def _steps(steps: pl.DataFrame, timed: pl.DataFrame) -> _Json:
    if timed.is_empty():
        return {}
    # The slowest rank's time is the step's: the others wait for it.
    per_step = timed.group_by("step").agg(pl.col("step_ms").max(), pl.col("samples").sum())
    slowest = per_step["step_ms"]
    return {
        "step_ms_median": slowest.median(),
        "step_ms_mean": slowest.mean(),
        "step_ms_p95": slowest.quantile(0.95, "linear"),
        "step_ms_std": slowest.std(),
        "data_ms_median": timed["data_ms"].median(),
        "samples_per_step": per_step["samples"].max(),
        "loss_first": steps.filter(pl.col("step") == steps["step"].min())["loss"].mean(),
        "loss_last": timed.filter(pl.col("step") == timed["step"].max())["loss"].mean(),
    }


def _rates(timed: pl.DataFrame, window: tuple[int, int] | None) -> _Json:
    if window is None or window[1] <= window[0] or timed.is_empty():
        return {}
    seconds = (window[1] - window[0]) / 1e9
    tokens = None if timed["tokens"].null_count() else float(timed["tokens"].sum()) / seconds
    return {"samples_per_s": float(timed["samples"].sum()) / seconds, "tokens_per_s": tokens}


def _window(results: list[_Json], timed: pl.DataFrame) -> tuple[int, int] | None:
    """From the first rank's start of the timed window to the last one's end, UTC ns."""
    windows = [r["window"] for r in results if r.get("window")]
    if windows:
        return min(w["start_ns"] for w in windows), max(w["end_ns"] for w in windows)
    start, end = timed["start_ns"].min(), timed["end_ns"].max()
    return (start, end) if isinstance(start, int) and isinstance(end, int) else None


def _energy(samples: pl.DataFrame, window: tuple[int, int] | None) -> float | None:
    """What the GPUs' counters rose by in the window; between two samples the counter is taken to rise evenly."""
    counted = samples.filter(pl.col("look") == "timed").drop_nulls(["uuid", "t_ns", "energy_j"]).sort("t_ns")
    if window is None or counted.is_empty():
        return None
    rises = []
    for gpu in counted.partition_by("uuid", maintain_order=True):
        # Floats hold no UTC ns: count from the window's start.
        at = (gpu["t_ns"] - window[0]).to_numpy()
        low, high = np.interp([0, window[1] - window[0]], at, gpu["energy_j"].to_numpy())
        rises.append(float(high - low))
    return sum(rises)
