"""What the metrics of a trace share: its steps, their windows, and which events count as what."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from analysis import tables
from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals

Events = Mapping[str, pl.DataFrame]

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
_STEP = r"^step (\d+)$"
_NCCL = r"(?i)nccl"
_COMMUNICATION = r"^(gloo:|c10d::|nccl:)"
_SPAN = ("name", "start_ns", "end_ns")


def steps(events: Events) -> pl.DataFrame:
    """The steps' host ranges: step, start_ns, end_ns, in time order."""
    names = events["nvtx"]["name"].unique()
    wanted = names.filter(names.cast(pl.String).str.contains(_STEP))
    number = pl.col("name").str.extract(_STEP).cast(pl.Int64)
    marked = _texts(events["nvtx"].filter(pl.col("name").is_in(wanted.implode()))).with_columns(step=number)
    return marked.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("start_ns")


def on_gpu(events: Events) -> bool:
    """Whether the trace saw kernels; without them it is read as one of a CPU."""
    return not events["kernels"].is_empty()


def lanes(events: Events) -> dict[str, pl.DataFrame]:
    """What ran, as name, start_ns, end_ns, by lane: compute, communication, copy."""
    if on_gpu(events):
        kernels = events["kernels"].with_columns(pl.col("name").fill_null("?"))
        nccl = pl.col("name").str.contains(_NCCL)
        copies = events["copies"].with_columns(name=pl.col("direction"))
        return {
            "compute": kernels.filter(~nccl).select(_SPAN),
            "communication": kernels.filter(nccl).select(_SPAN),
            "copy": pl.concat([copies.select(_SPAN), events["memsets"].select(_SPAN)]),
        }
    operators = events["operators"]
    marked = pl.concat([operators.select(_SPAN), _texts(events["nvtx"]).select(_SPAN)])
    return {
        "compute": operators.filter(pl.col("name").str.starts_with("aten::")).select(_SPAN),
        "communication": marked.filter(pl.col("name").str.contains(_COMMUNICATION)),
        "copy": operators.clear().select(_SPAN),
    }


def windows(events: Events) -> pl.DataFrame:
    """Each step's window: step, start_ns, end_ns.

    On a GPU the host may run ahead, so a step ends when both its host range and the last activity that it launched
    have ended, and the next one begins there, or with its host range where that begins later. The first step begins
    with its host range, or where work that was launched before it has ended. Every step of a CPU trace is its host
    range.
    """
    ranges = steps(events)
    if not on_gpu(events) or ranges.is_empty():
        return ranges
    launched = _launched(events, ranges)
    own = launched.group_by("step").agg(last=pl.col("end_ns").max())
    before = launched.filter(pl.col("step").is_null())["end_ns"].max()
    ends = pl.max_horizontal("last", "end_ns", pl.lit(before, pl.Int64)).cum_max()
    found = ranges.join(own, on="step", how="left", maintain_order="left").with_columns(end_ns=ends)
    begins = pl.max_horizontal("start_ns", pl.col("end_ns").shift(1, fill_value=before))
    return found.select("step", start_ns=begins, end_ns="end_ns")


def _launched(events: Events, ranges: pl.DataFrame) -> pl.DataFrame:
    """Activities on the GPU with the step in whose host range they were launched; null before the first step. Those
    launched between steps are left out."""
    key = ["process", "correlation"]
    kinds = ("kernels", "copies", "memsets")
    activities = pl.concat([events[k].select("start_ns", "end_ns", *key) for k in kinds])
    calls = (
        events["runtime"].select(*key, launch="start_ns").drop_nulls().unique(key, keep="first", maintain_order=True)
    )
    launched = activities.join(calls, on=key).sort("launch")
    hosts = ranges.select("step", range_start="start_ns", range_end="end_ns").sort("range_start")
    found = launched.join_asof(hosts, left_on="launch", right_on="range_start", strategy="backward")
    return found.filter(pl.col("range_end").is_null() | (pl.col("launch") < pl.col("range_end")))


def spans(frame: pl.DataFrame) -> Intervals:
    """The time that events cover."""
    return intervals.union(np.column_stack((frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())))


def ranges(events: Events, names: tuple[str, ...] = PHASES) -> pl.DataFrame:
    """Host ranges of these names."""
    return _texts(events["nvtx"]).filter(pl.col("name").is_in(names)).select(_SPAN)


def _texts(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their names as text."""
    return ranges.with_columns(pl.col("name").cast(pl.String))


def none() -> dict[str, pl.DataFrame]:
    """A trace that saw nothing."""
    return {kind: tables.empty(columns) for kind, columns in tables.EVENTS.items()}
