"""What the metrics of a trace share: its steps, their windows, and which events count as what."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals
from analysis.metrics.steps import detection as stepping
from analysis.tables import column, points
from analysis.tables.events import NCCL_KERNEL

Events = Mapping[str, pl.DataFrame]

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
_STEP = r"^step (\d+)$"
_COMMUNICATION = r"^(gloo:|c10d::|nccl:)"
SPAN = ("name", "start_ns", "end_ns")


def steps(events: Events) -> pl.DataFrame:
    """The steps' host ranges: step, start_ns, end_ns, in time order."""
    number = pl.col("name").str.extract(_STEP).cast(pl.Int64)
    marked = _texts(named(events["nvtx"], _STEP)).with_columns(step=number)
    return marked.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")


def on_gpu(events: Events) -> bool:
    """Whether the trace saw kernels; without them it is read as one of a CPU."""
    return not events["kernels"].is_empty()


def lanes(events: Events) -> dict[str, pl.DataFrame]:
    """What ran, as name, start_ns, end_ns, by lane: compute, communication, copy."""
    if on_gpu(events):
        kernels = events["kernels"].with_columns(pl.col("name").fill_null("?"))
        nccl = pl.col("name").str.contains(NCCL_KERNEL)
        copies = events["copies"].with_columns(name=pl.col("direction"))
        return {
            "compute": kernels.filter(~nccl).select(SPAN),
            "communication": kernels.filter(nccl).select(SPAN),
            "copy": pl.concat([copies.select(SPAN), events["memsets"].select(SPAN)]),
        }
    operators = events["operators"]
    marked = pl.concat([operators.select(SPAN), _texts(events["nvtx"]).select(SPAN)])
    return {
        "compute": operators.filter(pl.col("name").str.starts_with("aten::")).select(SPAN),
        "communication": marked.filter(pl.col("name").str.contains(_COMMUNICATION)),
        "copy": operators.clear().select(SPAN),
    }


def windows(events: Events) -> pl.DataFrame:
    """Each step's window (`stepping.windows`): step, start_ns, end_ns. Every step of a CPU trace is its host range."""
    ranges = steps(events)
    return stepping.windows(ranges, _launched(events)) if on_gpu(events) else ranges


def _launched(events: Events) -> pl.DataFrame:
    """Activities on the GPU that a call launched: launch_ns, start_ns, end_ns."""
    key = ["process", "correlation"]
    kinds = ("kernels", "copies", "memsets")
    activities = pl.concat([events[k].select("start_ns", "end_ns", *key) for k in kinds])
    calls = events["runtime"].select(*key, launch_ns="start_ns").drop_nulls()
    return activities.join(calls.unique(key, keep="first", maintain_order=True), on=key)


def spans(frame: pl.DataFrame) -> Intervals:
    """The time that events cover."""
    return intervals.union(np.column_stack((frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())))


def named(frame: pl.DataFrame, pattern: str, others: bool = False) -> pl.DataFrame:
    """Events whose name has the pattern, or with `others` those that have a name without it."""
    names = frame["name"].drop_nulls().unique()  # few, where there are many events
    wanted = names.filter(names.cast(pl.String).str.contains(pattern) ^ others)
    return frame.filter(pl.col("name").is_in(wanted.implode()))


def ranges(events: Events, names: tuple[str, ...] = PHASES) -> pl.DataFrame:
    """Host ranges of these names."""
    return _texts(events["nvtx"]).filter(pl.col("name").is_in(names)).select(SPAN)


def _texts(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their names as text."""
    return ranges.with_columns(pl.col("name").cast(pl.String))


def none() -> dict[str, pl.DataFrame]:
    """A trace that saw nothing."""
    return {kind: column.empty(columns) for kind, columns in points.EVENTS.items()}
