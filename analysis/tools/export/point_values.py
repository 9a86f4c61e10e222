"""Points as tools for metrics want them: numbers with labels, a series of steps, settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from nightsweep.analysis.metrics.points.slowest_rank import slowest_rank
from nightsweep.analysis.sweep import dataset, held_time
from nightsweep.analysis.sweep.dataset import Tables
from nightsweep.analysis.tables.part_names import GROUPS
from nightsweep.jobs.record.input_error import InputError

LABELS = ("point_id", "sweep", "workload", "model", "strategy", "world_size", "config")
"""What names a point wherever it goes; config is the label that figures have for its settings."""
_STARTED_S = pl.col("started_at").str.to_datetime(time_unit="ns", time_zone="UTC").dt.timestamp("ns") / 1e9
ENDED = "ended_timestamp_seconds"
POINT_GAUGES = {
    "step_seconds": ("Mean time of a timed step.", pl.col("step_ms_mean") / 1000),
    "samples_per_second": ("Samples a second, of all ranks.", pl.col("samples_per_s")),
    "tokens_per_second": ("Tokens a second, of all ranks.", pl.col("tokens_per_s")),
    "mfu_ratio": ("Model FLOPs utilization.", pl.col("mfu_percent") / 100),
    "loss": ("Mean loss of the last timed step.", pl.col("loss_last")),
    "peak_memory_bytes": ("Peak memory of a rank, on its device or on the CPU.", pl.col("peak_memory_bytes")),
    "energy_joules": ("Energy of all GPUs in the timed steps.", pl.col("energy_j")),
    ENDED: ("When the point's launch ended.", _STARTED_S + pl.col("wall_s")),
}


@dataclass(frozen=True)
class Gauge:
    """A number of points: `values` has point_id, its own labels and value, each row once and none null."""

    name: str  # as Prometheus names metrics: with the unit, in base units
    meaning: str
    labels: tuple[str, ...]
    values: pl.DataFrame

    def rows(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Point, own labels and value."""
        for row in self.values.iter_rows(named=True):
            yield row["point_id"], {name: _text(row[name]) for name in self.labels}, row["value"]


def gauges(tables: Tables) -> list[Gauge]:
    """All numbers that the tables have of their points."""
    points, causes = tables["points"], tables["diagnoses"]
    parts = tables["breakdown"].filter(pl.col("part").is_in(GROUPS))
    length = parts.group_by("point_id", "part", maintain_order=True).agg(value=pl.col("duration_ns").sum())
    share = length.with_columns(pl.col("value") / pl.col("value").sum().over("point_id"))
    held = held_time.held(tables).group_by("point_id", "use", maintain_order=True).agg(value=pl.col("gpu_s").sum())
    ok = points.select("point_id", "reason", value=(pl.col("status") == "ok").cast(pl.Float64))
    lost = causes.filter(pl.col("share") > 0).rename({"share": "value"})
    found = [
        Gauge("ok", "1 if the point is ok; else 0, and `reason` says why.", ("reason",), ok),
        *(Gauge(name, text, (), points.select("point_id", value=of)) for name, (text, of) in POINT_GAUGES.items()),
        Gauge("step_part_ratio", "Share of the traced steps' time; idle and data_wait: an idle GPU.", ("part",), share),
        Gauge("gpu_seconds", "Time that the point held GPUs (or ranks on CPUs), by use.", ("use",), held),
        Gauge("cause_ratio", "Share of a step that the cause's remedy could save.", ("cause", "kind", "rank"), lost),
    ]
    return [Gauge(one.name, one.meaning, one.labels, one.values.drop_nulls("value")) for one in found]


def numbers(tables: Tables) -> dict[str, dict[str, float]]:
    """All of them of each point but the time, named by gauge and labels, for tools that have no labels."""
    found: dict[str, dict[str, float]] = {point: {} for point in tables["points"]["point_id"]}
    for gauge in gauges(tables):
        for point, own, value in gauge.rows() if gauge.name != ENDED else ():
            found[point]["/".join((gauge.name, *filter(None, own.values())))] = value
    return found


def labels(tables: Tables) -> dict[str, dict[str, str]]:
    """LABELS of each point, in the order of their configurations."""
    points = dataset.labelled(tables)
    if points.is_empty():
        raise InputError("no points; expected results/SWEEP, a data set or a point's folder")
    return {row["point_id"]: {k: _text(v) for k, v in row.items()} for row in points.select(LABELS).to_dicts()}


def settings(tables: Tables) -> dict[str, dict[str, Any]]:
    """Of each point the settings that vary among them, and what it trains."""
    points = tables["points"]
    names = dict.fromkeys(("point_id", "workload", "model", "strategy", *dataset.varying(points)))
    rows = points.select(*names).to_dicts()
    return {row.pop("point_id"): {name: value for name, value in row.items() if value is not None} for row in rows}


def steps(tables: Tables) -> Iterator[tuple[str, pl.DataFrame]]:
    """Each point that has steps, and these: the slowest rank's times, the mean loss, the samples of all ranks."""
    all_ranks = tables.scan("steps").group_by("point_id", "step").agg(
        pl.col("end_ns", "data_ms", "peak_allocated_bytes").max(), pl.col("loss").mean(), pl.col("samples").sum()
    )  # fmt: skip
    timed = tables.scan("steps").filter(pl.col("phase") == "timed")
    rank = slowest_rank(timed, "point_id").select("point_id", "rank").unique()
    slowest = tables.scan("steps").join(rank, on=["point_id", "rank"], how="semi").select("point_id", "step", "step_ms")
    per_step = all_ranks.join(slowest, on=["point_id", "step"], how="left")
    for part in per_step.sort("point_id", "step").collect().partition_by("point_id", maintain_order=True):
        yield part["point_id"][0], part.drop("point_id")


def new_folder(out: Path) -> Path:
    """The folder, made; refused where it holds something, since runs of two exports would mix."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is there already; expected a new or an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    return out


def _text(value: object) -> str:
    return "" if value is None else str(value)
