"""Selections of a trace's events, by kind of work or by name, and the time that they cover."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from nightsweep.analysis.metrics import intervals
from nightsweep.analysis.metrics.intervals import Intervals

Events = Mapping[str, pl.DataFrame]

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
"""Ranges that the step loop marks on the host."""
SPAN = ("name", "start_ns", "end_ns")
_CPU_COMMUNICATION = r"^(gloo:|c10d::|nccl:)"


def split_by_kind(events: Events) -> dict[str, pl.DataFrame]:
    """The device's work as name, start_ns and end_ns, by kind: compute, communication, copy.

    A trace without activities of a GPU is read as one of a CPU. `events`: of one rank, kernels with their category.
    """
    if all(events[kind].is_empty() for kind in ("kernels", "graphs", "copies", "memsets")):
        return split_cpu_by_kind(events)
    kernels = events["kernels"].with_columns(pl.col("name").cast(pl.String).fill_null("?"))
    exchange = pl.col("category").cast(pl.String) == "communication"
    copies = events["copies"].with_columns(name=pl.col("direction"))
    return {
        "compute": pl.concat([kernels.filter(~exchange).select(SPAN), events["graphs"].select(SPAN)]),
        "communication": kernels.filter(exchange).select(SPAN),
        "copy": pl.concat([copies.select(SPAN), events["memsets"].select(SPAN)]),
    }


def split_cpu_by_kind(events: Events) -> dict[str, pl.DataFrame]:
    """The work of a CPU by the same kinds: PyTorch's operators, and those of the process group."""
    operators = events["operators"].select(SPAN)
    marked = pl.concat([operators, names_as_text(events["nvtx"]).select(SPAN)])
    return {
        "compute": operators.filter(pl.col("name").str.starts_with("aten::")),
        "communication": marked.filter(pl.col("name").str.contains(_CPU_COMMUNICATION)),
        "copy": operators.clear(),
    }


def covered_time(frame: pl.DataFrame) -> Intervals:
    """The time that these events cover."""
    return intervals.union(np.column_stack((frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())))


def filter_by_name(frame: pl.DataFrame, pattern: str, others: bool = False) -> pl.DataFrame:
    """Events whose name matches the pattern, or with `others` those that have a name that does not."""
    names = frame["name"].drop_nulls().unique()  # few, where there are many events
    wanted = names.filter(names.cast(pl.String).str.contains(pattern) ^ others)
    return frame.filter(pl.col("name").is_in(wanted.implode()))


def phase_ranges(events: Events) -> pl.DataFrame:
    """The step loop's PHASES on the host: name, start_ns, end_ns."""
    return names_as_text(events["nvtx"]).filter(pl.col("name").is_in(PHASES)).select(SPAN)


def launching_calls(events: Events) -> pl.DataFrame:
    """Calls of CUDA by the threads that launch the device's work: name, start_ns, end_ns."""
    work = [events[kind]["thread"] for kind in ("kernels", "graphs", "copies", "memsets")]
    threads = pl.concat([thread.cast(pl.Int64) for thread in work]).drop_nulls().unique()
    return names_as_text(events["runtime"]).filter(pl.col("thread").is_in(threads.implode())).select(SPAN)


def names_as_text(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their names as text, not categorical."""
    return ranges.with_columns(pl.col("name").cast(pl.String))


def pass_time(ranges: pl.DataFrame, pattern: str) -> Intervals:
    """When a range of such a name was open. Of an optimizer's step that runs both passes, too (Lightning's closure),
    what is left after its last backward pass."""
    rows = filter_by_name(ranges, pattern)
    spans = rows.select("start_ns", "end_ns").to_numpy().copy()
    ends = filter_by_name(ranges, r"(?i)backward").select("start_ns", "end_ns").to_numpy()
    for place in np.flatnonzero(rows["name"].cast(pl.String).str.contains("(?i)optim").to_numpy()).tolist():
        start, end = spans[place]
        inside = ends[(ends[:, 0] >= start) & (ends[:, 1] <= end), 1]
        if len(inside):
            spans[place, 0] = inside.max()
    return intervals.union(spans)
