"""What the metrics of a trace share: which events count as what, and the time that they cover."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from analysis.metrics import intervals
from analysis.metrics.intervals import Intervals

Events = Mapping[str, pl.DataFrame]

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
"""Ranges that the step loop marks on the host."""
SPAN = ("name", "start_ns", "end_ns")
_CPU_COMMUNICATION = r"^(gloo:|c10d::|nccl:)"


def lanes(events: Events) -> dict[str, pl.DataFrame]:
    """What ran, as name, start_ns, end_ns, by lane: compute, communication, copy. `events`: of one rank, kernels with
    their category. A trace that saw no activity of a GPU is read as one of a CPU."""
    if all(events[kind].is_empty() for kind in ("kernels", "graphs", "copies", "memsets")):
        return cpu_lanes(events)
    kernels = events["kernels"].with_columns(pl.col("name").cast(pl.String).fill_null("?"))
    exchange = pl.col("category").cast(pl.String) == "communication"
    copies = events["copies"].with_columns(name=pl.col("direction"))
    return {
        "compute": pl.concat([kernels.filter(~exchange).select(SPAN), events["graphs"].select(SPAN)]),
        "communication": kernels.filter(exchange).select(SPAN),
        "copy": pl.concat([copies.select(SPAN), events["memsets"].select(SPAN)]),
    }


def cpu_lanes(events: Events) -> dict[str, pl.DataFrame]:
    """The same of a CPU: PyTorch's operators, and those of the process group."""
    operators = events["operators"].select(SPAN)
    marked = pl.concat([operators, texts(events["nvtx"]).select(SPAN)])
    return {
        "compute": operators.filter(pl.col("name").str.starts_with("aten::")),
        "communication": marked.filter(pl.col("name").str.contains(_CPU_COMMUNICATION)),
        "copy": operators.clear(),
    }


def spans(frame: pl.DataFrame) -> Intervals:
    """The time that events cover."""
    return intervals.union(np.column_stack((frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())))


def named(frame: pl.DataFrame, pattern: str, others: bool = False) -> pl.DataFrame:
    """Events whose name has the pattern, or with `others` those that have a name without it."""
    names = frame["name"].drop_nulls().unique()  # few, where there are many events
    wanted = names.filter(names.cast(pl.String).str.contains(pattern) ^ others)
    return frame.filter(pl.col("name").is_in(wanted.implode()))


def phases(events: Events) -> pl.DataFrame:
    """Host ranges of the step loop's phases: name, start_ns, end_ns."""
    return texts(events["nvtx"]).filter(pl.col("name").is_in(PHASES)).select(SPAN)


def texts(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their names as text."""
    return ranges.with_columns(pl.col("name").cast(pl.String))
