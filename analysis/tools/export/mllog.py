"""A point as MLPerf's logging library would have written it: lines of `:::MLLOG` and a JSON object.

Keys are those of mlperf_logging (its constants; `number_of_nodes` and `accelerators_per_node` are its summarizer's),
and `train_loss` and `tracked_stats`, which it does not check and submitters write. Times are milliseconds since the
epoch. A point is a measurement and no submission: there is no quality target, and the keys that name a submission are
`submission_benchmark` (the model) and `submission_platform` (accelerator and count) alone. Its compliance checker
therefore passes every line but `init_stop` (a submission of no division may take no time to set up), and misses a
submission's keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

START, END, POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"
SETTINGS = {
    "seed": "seed",
    "optimizer": "opt_name",
    "learning_rate": "opt_base_learning_rate",
    "grad_accum": "gradient_accumulation_steps",
    "nodes": "number_of_nodes",
    "ranks_per_node": "accelerators_per_node",
    "seq_len": "max_sequence_length",
}
"""MLPerf's key of a setting."""


def line(key: str, value: Any, time_ms: int, event: str = POINT, **metadata: Any) -> str:
    """One line; its JSON has the keys in the library's order."""
    told = {"namespace": "", "time_ms": time_ms, "event_type": event, "key": key, "value": value, "metadata": metadata}
    return ":::MLLOG " + json.dumps(told)


def lines(point: Mapping[str, Any], steps: pl.DataFrame, accuracy: pl.DataFrame) -> Iterator[str]:
    """The log of a point: its row of `points`, its rows of `steps` (all ranks) and of `accuracy`."""
    by_step = (
        steps.group_by("step", "phase")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("loss").mean(), pl.col("samples").sum())
        .sort("step")
    )
    begun = _ms(point["started_at"]) if point["started_at"] else None
    first = by_step["start_ns"].min()
    run_start = int(first) // 1_000_000 if isinstance(first, int) else begun
    if begun is None or run_start is None:
        return
    yield line("init_start", None, begun, START)
    yield line("submission_benchmark", point["model"], begun)
    yield line("submission_platform", f"{point['world_size']}x{point['accelerator']}", begun)
    if point["samples_per_step"] is not None:
        yield line("global_batch_size", point["samples_per_step"], begun)
    for name, key in SETTINGS.items():
        if point[name] is not None:
            yield line(key, point[name], begun)
    yield line("init_stop", None, run_start, END)
    yield line("run_start", None, run_start, START)
    last = by_step["end_ns"].max()
    stop = int(last) // 1_000_000 if isinstance(last, int) else begun + int(1000 * (point["wall_s"] or 0))
    trained = 0
    for row in by_step.iter_rows(named=True):
        now, trained = row["end_ns"] // 1_000_000, trained + row["samples"]
        took_s = (row["end_ns"] - row["start_ns"]) / 1e9
        about = {"step_num": row["step"] + 1, "samples_count": trained, "phase": row["phase"]}
        if row["loss"] is not None:
            yield line("train_loss", row["loss"], now, **about)
        if took_s > 0:
            yield line("tracked_stats", {"throughput": row["samples"] / took_s}, now, **about)
    for row in accuracy.sort("epoch").iter_rows(named=True):
        stop += int(1000 * row["seconds"])
        yield line("eval_accuracy", row["accuracy"], stop, epoch_num=row["epoch"])
    status = "success" if point["status"] == "ok" else "aborted"
    yield line("run_stop", None, stop, END, status=status, **({"reason": point["reason"]} if point["reason"] else {}))


def _ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def write(frames: Mapping[str, pl.DataFrame], out: Path) -> int:
    """OUT/POINT_ID.log for each point that ran; returns how many."""
    out.mkdir(parents=True, exist_ok=True)
    written = 0
    for point in frames["points"].sort("point_id").iter_rows(named=True):
        own = [frames[name].filter(pl.col("point_id") == point["point_id"]) for name in ("steps", "accuracy")]
        text = "".join(f"{one}\n" for one in lines(point, *own))
        if text:
            (out / f"{point['point_id']}.log").write_text(text)
            written += 1
    return written
